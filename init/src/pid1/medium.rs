//! Checks that kernel, initramfs and configuration are of one build. With mixed or damaged files the machine must not
//! use the network, because its behaviour would be unpredictable.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use base16ct::lower::encode_string as hex;
use ring::digest::{SHA256, digest};
use rustix::fs::OFlags;
use slipway_installer::config::BAKED;
use slipway_protocol::{MEDIUM, MOST_CONFIG_BYTES, Medium};

/// Maximum size of the medium's manifest in bytes.
const MOST_MEDIUM: u64 = 4 << 10;
/// Maximum size of a kernel log record in bytes (`PRINTK_MESSAGE_MAX`, kernel/printk/internal.h), rounded up.
const LONGEST_RECORD: usize = 8 << 10;
/// Kernel messages about an initramfs that cannot be unpacked, with a built-in RAM disk and without (init/initramfs.c).
const UNPACKING_FAILED: [&str; 2] = ["Initramfs unpacking failed", "rootfs image is not initramfs"];

/// What the machine finds out about its boot medium.
struct Found {
    /// The medium's manifest, or why it cannot be read.
    medium: Result<Vec<u8>, String>,
    /// The configuration, or why it cannot be read.
    config: Result<Vec<u8>, String>,
    /// Release of the running kernel.
    release: String,
    /// The kernel's message about the initramfs, if unpacking failed.
    complaint: Option<String>,
}

/// Checks the medium that this machine booted from. The error is a whole sentence for the console.
pub fn check() -> Result<(), String> {
    judge(&Found {
        medium: read(MEDIUM, MOST_MEDIUM),
        config: read(BAKED, MOST_CONFIG_BYTES as u64),
        release: rustix::system::uname().release().to_string_lossy().into_owned(),
        complaint: complaint(),
    })
}

fn judge(found: &Found) -> Result<(), String> {
    let medium = found.medium.clone().and_then(|bytes| {
        let parsed = serde_json::from_slice::<Medium>(&bytes);
        parsed.map_err(|error| format!("{MEDIUM} in the initramfs is damaged: {error}"))
    });
    let mut wrong: Vec<String> = found.complaint.iter().map(|said| format!("the kernel logged \"{said}\"")).collect();
    let build = match medium {
        Ok(Medium { build, release, config_sha256 }) => {
            if release != found.release {
                wrong.push(format!("the initramfs is for kernel {release}, but {} runs", found.release));
            }
            match &found.config {
                Ok(config) if hex(digest(&SHA256, config).as_ref()) == config_sha256 => {}
                Ok(_) => wrong.push(format!("{BAKED} in the initramfs was changed")),
                Err(error) => wrong.push(error.clone()),
            }
            format!("build {build}")
        }
        Err(error) => {
            wrong.push(error);
            "its build is unknown".to_owned()
        }
    };
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the boot medium does not match its manifest ({build}): {}; make the medium again, or copy all files of one \
         build",
        wrong.join("; ")
    ))
}

fn read(path: &str, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)) {
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(format!("{path} is missing in the initramfs")),
        Err(error) => Err(format!("reading {path}: {error}")),
    }
}

/// Reads the kernel's log message about an initramfs that it could not unpack. `None` if there is no such message.
fn complaint() -> Option<String> {
    let options = OFlags::NONBLOCK.bits().cast_signed();
    let mut log: File = OpenOptions::new().read(true).custom_flags(options).open("/dev/kmsg").ok()?;
    let mut record = vec![0; LONGEST_RECORD];
    loop {
        match log.read(&mut record) {
            Ok(length) => {
                let found = record.get(..length).and_then(complaint_of);
                if found.is_some() {
                    return found;
                }
            }
            // The oldest records were overwritten. The next read returns the oldest one left.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            // No more records.
            Err(_) => return None,
        }
    }
}

/// Returns the message in a record if it is about unpacking. A record has numbers, `;`, the text, and lines with fields
/// (Documentation/ABI/testing/dev-kmsg).
fn complaint_of(record: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(record).ok()?.split_once(';')?.1.lines().next()?;
    UNPACKING_FAILED.iter().any(|start| text.starts_with(start)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &[u8] = b"server: \"https://s\"\n";

    fn found() -> Found {
        let medium = Medium {
            build: "0123456789abcdef".to_owned(),
            release: "6.1.0-1-amd64".to_owned(),
            config_sha256: hex(digest(&SHA256, CONFIG).as_ref()),
        };
        Found {
            medium: serde_json::to_vec(&medium).map_err(|error| error.to_string()),
            config: Ok(CONFIG.to_vec()),
            release: "6.1.0-1-amd64".to_owned(),
            complaint: None,
        }
    }

    #[test]
    fn files_of_one_build_go_on() {
        assert_eq!(judge(&found()), Ok(()));
    }

    #[test]
    fn what_does_not_belong_together_is_named_with_the_build_and_what_to_do() {
        let check = |found: Found, expect: &[&str]| {
            let said = judge(&found).err().unwrap_or_default();
            for part in
                expect.iter().chain(&["does not match its manifest", "make the medium again, or copy all files"])
            {
                assert!(said.contains(part), "no {part:?} in {said:?}");
            }
        };
        let build = "(build 0123456789abcdef)";
        let other = "6.1.0-1-cloud-amd64";
        let kernel = "the initramfs is for kernel 6.1.0-1-amd64, but 6.1.0-1-cloud-amd64 runs";
        check(Found { release: other.to_owned(), ..found() }, &[build, kernel]);

        for at in 0..CONFIG.len() {
            let mut config = CONFIG.to_vec();
            config[at] ^= 1;
            check(Found { config: Ok(config), ..found() }, &[build, "config.yaml in the initramfs was changed"]);
        }
        let cut_off = CONFIG.split_at(10).0.to_vec();
        check(Found { config: Ok(cut_off), ..found() }, &[build, "was changed"]);
        let missing = || Err("/etc/x is missing in the initramfs".to_owned());
        check(Found { config: missing(), ..found() }, &[build, "/etc/x is missing"]);

        let unknown = "its build is unknown";
        check(Found { medium: missing(), ..found() }, &[unknown, "/etc/x is missing"]);
        let whole = found().medium.unwrap_or_default();
        for length in 0..whole.len() {
            let cut_off = whole.split_at(length).0.to_vec();
            check(Found { medium: Ok(cut_off), ..found() }, &[unknown, "medium.json in the initramfs is damaged"]);
        }
        let more = String::from_utf8_lossy(&whole).replace('}', ",\"x\":1}").into_bytes();
        check(Found { medium: Ok(more), ..found() }, &[unknown, "unknown field"]);

        let said = "Initramfs unpacking failed: ZSTD-compressed data is corrupt";
        check(Found { complaint: Some(said.to_owned()), ..found() }, &[build, said]);
        let both = Found { complaint: Some(said.to_owned()), medium: missing(), ..found() };
        check(both, &[unknown, said, "/etc/x is missing"]);
    }

    #[test]
    fn the_kernel_is_believed_and_nobody_else() {
        let failed = "Initramfs unpacking failed: junk within compressed archive";
        let record = format!("0,412,1234567,-;{failed}\n SUBSYSTEM=x\n");
        assert_eq!(complaint_of(record.as_bytes()).as_deref(), Some(failed));
        let other = "6,1,2,-;rootfs image is not initramfs (no cpio magic); looks like an initrd\n";
        assert!(complaint_of(other.as_bytes()).is_some());
        // The kernel's command line is a record too.
        let quoted = "5,3,4,-;Kernel command line: Initramfs unpacking failed\n";
        for record in [quoted, "6,1,2,-;Unpacking initramfs...\n", "no record", ""] {
            assert_eq!(complaint_of(record.as_bytes()), None, "{record:?}");
        }
        assert_eq!(complaint_of(b"0,1,2,-;\xff"), None);
    }
}
