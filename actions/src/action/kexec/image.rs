//! Builds in-memory files from parts of others, because the running kernel takes a new kernel and one initramfs, each
//! as a file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, memfd_create};

/// Maximum size in bytes of what is started. It is held in memory twice.
const MAX_SIZE: u64 = 1 << 30;
/// Each cpio archive in a concatenated initramfs begins at a multiple of this many bytes (kernel documentation,
/// driver-api/early-userspace).
const ALIGNMENT: u64 = 4;

/// A part of a file.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) file: File,
    /// Offset of the part in `file`, in bytes.
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Part {
    /// A whole file.
    pub(super) fn whole(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { file, offset: 0, len })
    }

    /// Reads the bytes of the part. Fails if there are more than `max`.
    pub(super) fn read(&mut self, max: u64) -> io::Result<Vec<u8>> {
        if self.len > max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut bytes = vec![0; self.len as usize];
        self.file.seek(SeekFrom::Start(self.offset))?;
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Concatenates all parts into one file.
pub(super) fn join(parts: Vec<Part>) -> io::Result<File> {
    if parts.iter().fold(0, |size: u64, part| size.saturating_add(part.len)) > MAX_SIZE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut joined = File::from(memfd_create("slipway", MemfdFlags::CLOEXEC)?);
    for mut part in parts {
        part.file.seek(SeekFrom::Start(part.offset))?;
        if io::copy(&mut part.file.take(part.len), &mut joined)? != part.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let padding = part.len.next_multiple_of(ALIGNMENT) - part.len;
        io::copy(&mut io::repeat(0).take(padding), &mut joined)?;
    }
    // The kernel rejects a file that is open for writing.
    File::open(format!("/proc/self/fd/{}", joined.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn part(content: &[u8], offset: u64, len: u64) -> Part {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        Part { file, offset, len }
    }

    #[test]
    fn a_part_that_is_not_there_is_an_error() {
        let kind = |result: io::Result<File>| result.unwrap_err().kind();
        assert_eq!(kind(join(vec![part(b"abc", 1, 3)])), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(join(vec![part(b"abc", 0, MAX_SIZE), part(b"abc", 0, u64::MAX)])), io::ErrorKind::FileTooLarge);
        assert_eq!(part(b"abc", 1, 2).read(2).unwrap(), b"bc");
        assert!(part(b"abc", 1, 3).read(2).is_err());
        assert!(part(b"abc", 1, 3).read(3).is_err());
    }
}
