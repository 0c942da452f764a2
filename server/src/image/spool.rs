//! The raw image of a compressed file, kept while it is decoded, so that its file systems can be looked into.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fstatvfs};

/// Zeros in so many bytes need no space.
const PIECE: usize = 64 << 10;
/// How much is written before the free space is looked at again.
const STRIDE: u64 = 64 << 20;
/// Bytes of the file system of the data folder that stay free.
const REST: u64 = 2 << 30;

/// A file without a name, which is gone when it is closed. Without space or on any error, there is none.
#[derive(Default)]
pub(super) struct Spool {
    file: Option<File>,
    len: u64,
    unchecked: u64,
}

impl Spool {
    /// Begins a file in this folder.
    pub(super) fn begin(folder: &Path) -> Self {
        let flags = OFlags::TMPFILE.bits().cast_signed();
        let file = File::options().read(true).write(true).custom_flags(flags).mode(0o600).open(folder);
        Self { file: file.ok(), len: 0, unchecked: STRIDE }
    }

    /// Takes the next bytes of the raw image.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        for piece in chunk.chunks(PIECE) {
            if piece.iter().any(|byte| *byte != 0) && self.write(piece).is_err() {
                self.file = None;
            }
            self.len += piece.len() as u64;
        }
    }

    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        self.unchecked += piece.len() as u64;
        if self.unchecked > STRIDE {
            let system = fstatvfs(file)?;
            if system.f_bavail.saturating_mul(system.f_frsize) < REST + STRIDE {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.unchecked = 0;
        }
        file.write_all_at(piece, self.len)
    }

    /// The raw image, if all of it is there.
    pub(super) fn finish(self) -> Option<File> {
        self.file.filter(|file| file.set_len(self.len).is_ok())
    }
}
