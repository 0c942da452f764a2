//! Keys, programs to sign, and the programs that judge.

#![allow(dead_code, clippy::unwrap_used, reason = "tests, each of which uses a part of it")]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::LazyLock;

use slipway_secure_boot::{KeySize, SigningKey};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};

/// A time at which all keys of tests are valid: in 2027.
pub const NOW: i64 = 1_800_000_000;

/// Two keys, which take a second to make.
pub static KEY: LazyLock<SigningKey> = LazyLock::new(|| key("slipway test db", KeySize::Rsa2048));
pub static OTHER_KEY: LazyLock<SigningKey> = LazyLock::new(|| key("another", KeySize::Rsa2048));

pub fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(NOW).unwrap()
}

pub fn key(name: &str, size: KeySize) -> SigningKey {
    SigningKey::generate(size, name, now() - Duration::days(1000), now() + Duration::days(5000)).unwrap()
}

/// A folder with files, in which programs run.
pub struct Folder(TempDir);

impl Folder {
    pub fn new(files: &[(&str, &[u8])]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        folder
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path().join(name)).unwrap()
    }

    /// Runs a program, which may fail. Returns whether it succeeded, and its standard output and standard error.
    pub fn try_run(&self, command: &[&str]) -> (bool, String) {
        let Output { status, stdout, stderr } =
            Command::new(command[0]).args(&command[1..]).current_dir(self.path()).output().unwrap();
        (status.success(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
    }

    /// Runs a program, which must succeed.
    pub fn run(&self, command: &[&str]) -> String {
        let (is_success, output) = self.try_run(command);
        assert!(is_success, "{command:?}: {output}");
        output
    }
}

/// Whether the programs that a test needs are installed.
pub fn has(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| Command::new(program).arg("--version").output().is_err());
    missing.inspect(|program| eprintln!("not checked: there is no {program}")).is_none()
}

/// The whole path of a program of virt-firmware. None if it cannot be installed here.
pub fn virt_firmware(program: &str) -> Option<String> {
    let tools = xtask::host::python::environment(xtask::host::python::FIRMWARE);
    let tools = tools.inspect_err(|error| eprintln!("not checked: virt-firmware: {error:#}")).ok()?;
    Some(tools.join(program).to_str().unwrap().to_owned())
}

/// Bytes of all headers of [`image`], and the place of the data directory of its signatures.
pub const HEADERS: usize = 512;
pub const DIRECTORY: usize = 64 + 24 + 144;

/// A PE32+ image with these sections, each an offset in the file and its content, in the order of the section table,
/// and bytes after the last one.
pub fn image(sections: &[(usize, &[u8])], trailing: &[u8]) -> Vec<u8> {
    let mut image = b"MZ".to_vec();
    image.resize(0x3C, 0);
    let put = |image: &mut Vec<u8>, values: &[(usize, u64)]| {
        for (size, value) in values {
            image.extend(&value.to_le_bytes()[..*size]);
        }
    };
    put(&mut image, &[(4, 64), (4, 0x4550)]);
    put(&mut image, &[(2, 0x8664), (2, sections.len() as u64), (4, 0), (4, 0), (4, 0), (2, 240), (2, 0x22E)]);
    put(&mut image, &[(2, 0x20B), (2, 0), (4, 0), (4, 0), (4, 0), (4, 0x1000), (4, 0x1000), (8, 0)]);
    put(&mut image, &[(4, 0x1000), (4, 0x200), (4, 0), (4, 0), (4, 0), (4, 0)]);
    // Sizes of the image in memory and of the headers, checksum, subsystem of EFI applications.
    put(&mut image, &[(4, 0x10_0000), (4, HEADERS as u64), (4, 0x1234), (2, 10), (2, 0)]);
    put(&mut image, &[(8, 0), (8, 0), (8, 0), (8, 0), (4, 0), (4, 16)]);
    image.extend([0; 16 * 8]);
    for (index, (offset, content)) in sections.iter().enumerate() {
        image.extend(format!(".s{index}\0\0\0\0\0").as_bytes());
        let (len, memory) = (content.len() as u64, 0x1000 * (index as u64 + 1));
        put(&mut image, &[(4, len), (4, memory), (4, len), (4, *offset as u64), (8, 0), (4, 0), (4, 0x4000_0040)]);
    }
    let end = sections.iter().map(|(offset, content)| offset + content.len()).max().unwrap_or(HEADERS);
    image.resize(end, 0);
    for (offset, content) in sections {
        image[*offset..offset + content.len()].copy_from_slice(content);
    }
    image.extend(trailing);
    image
}

/// Two sections, of which the second of the table comes first in the file.
pub fn unordered() -> Vec<u8> {
    image(&[(1536, &[b'a'; 512]), (512, &[b'b'; 1024])], b"")
}
