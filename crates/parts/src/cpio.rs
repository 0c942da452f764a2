//! Initramfs archives, which the kernel unpacks as its first root file system: cpio in the "new ASCII" format
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeMap;

/// The type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A folder.
    Directory,
    /// A file with its content.
    File(Vec<u8>),
    /// A symbolic link with its target.
    Symlink(String),
    /// A character device: major and minor number.
    CharDevice(u32, u32),
}

/// An entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The type, with the content of a file or the target of a link.
    pub node: Node,
    /// Permission bits, such as 0o755.
    pub mode: u32,
}

/// The entries of an archive by path, without a leading slash. Sorted, so that a folder comes before its content and
/// the same entries give the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archive(BTreeMap<String, Entry>);

impl Archive {
    /// Adds an entry and the missing folders above it.
    pub fn add(&mut self, path: &str, entry: Entry) {
        let path = path.trim_matches('/');
        for (at, _) in path.match_indices('/') {
            self.0.entry(path[..at].to_owned()).or_insert(Entry { node: Node::Directory, mode: 0o755 });
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// Adds a file.
    pub fn add_file(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        self.add(path, Entry { node: Node::File(content), mode });
    }

    /// Returns the archive's bytes. Every entry is owned by root and has the date `date`, in seconds since 1970.
    pub fn to_bytes(&self, date: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (index, (path, entry)) in self.0.iter().enumerate() {
            let (kind, content, device) = match &entry.node {
                Node::Directory => (0o040_000, &b""[..], (0, 0)),
                Node::File(content) => (0o100_000, &content[..], (0, 0)),
                Node::Symlink(to) => (0o120_000, to.as_bytes(), (0, 0)),
                Node::CharDevice(major, minor) => (0o020_000, &b""[..], (*major, *minor)),
            };
            let header = Header { inode: index + 1, mode: kind | entry.mode, date, device };
            append(&mut bytes, path, header, content);
        }
        append(&mut bytes, "TRAILER!!!", Header { inode: 0, mode: 0, date: 0, device: (0, 0) }, b"");
        bytes
    }
}

struct Header {
    inode: usize,
    mode: u32,
    date: u64,
    device: (u32, u32),
}

fn append(bytes: &mut Vec<u8>, path: &str, header: Header, content: &[u8]) {
    let Header { inode, mode, date, device: (major, minor) } = header;
    let (uid, gid, links, own_major, own_minor, checksum) = (0, 0, 1, 0, 0, 0);
    let (size, name_size) = (content.len(), path.len() + 1);
    bytes.extend_from_slice(
        format!(
            "070701{inode:08x}{mode:08x}{uid:08x}{gid:08x}{links:08x}{date:08x}{size:08x}{own_major:08x}{own_minor:08x}\
             {major:08x}{minor:08x}{name_size:08x}{checksum:08x}{path}\0"
        )
        .as_bytes(),
    );
    pad(bytes);
    bytes.extend_from_slice(content);
    pad(bytes);
}

/// Pads with zeros, see [`padding`].
pub fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len() + padding(bytes.len()), 0);
}

/// Returns the number of zeros to append to `len` bytes, up to a multiple of four, where the kernel looks for the next
/// header or archive.
pub fn padding(len: usize) -> usize {
    len.next_multiple_of(4) - len
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// Lists an archive with the cpio program.
    fn list(bytes: &[u8]) -> std::io::Result<String> {
        let mut cpio = Command::new("cpio")
            .args(["--list", "--verbose", "--numeric-uid-gid", "--quiet"])
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = cpio.stdin.take() {
            stdin.write_all(bytes)?;
        }
        Ok(String::from_utf8_lossy(&cpio.wait_with_output()?.stdout).into_owned())
    }

    #[test]
    fn cpio_reads_back_what_was_added_in_any_order() -> std::io::Result<()> {
        let (mut one, mut other) = (Archive::default(), Archive::default());
        one.add_file("/etc/slipway/a", 0o600, b"12345".to_vec());
        one.add("/dev/console", Entry { node: Node::CharDevice(5, 1), mode: 0o600 });
        one.add("/init", Entry { node: Node::Symlink("/bin/a".to_owned()), mode: 0o777 });
        other.add("/init", Entry { node: Node::Symlink("/bin/a".to_owned()), mode: 0o777 });
        other.add("/dev/console", Entry { node: Node::CharDevice(5, 1), mode: 0o600 });
        other.add_file("/etc/slipway/a", 0o600, b"12345".to_vec());
        assert_eq!(one.to_bytes(86_400), other.to_bytes(86_400));

        let listed = list(&one.to_bytes(86_400))?;
        let lines: Vec<String> =
            listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "drwxr-xr-x 1 0 0 0 Jan 2 1970 dev",
            "crw------- 1 0 0 5, 1 Jan 2 1970 dev/console",
            "drwxr-xr-x 1 0 0 0 Jan 2 1970 etc",
            "drwxr-xr-x 1 0 0 0 Jan 2 1970 etc/slipway",
            "-rw------- 1 0 0 5 Jan 2 1970 etc/slipway/a",
            "lrwxrwxrwx 1 0 0 6 Jan 2 1970 init -> /bin/a",
        ];
        assert_eq!(lines, expected);
        Ok(())
    }
}
