//! Keeps the raw image of a compressed file while it is decoded, so that its file systems can be examined.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fstatvfs};

/// Pieces of this many zero bytes become holes.
const PIECE: usize = 64 << 10;
/// Number of bytes written between two checks of the free space.
const STRIDE: u64 = 64 << 20;
/// Number of bytes that must stay free in the data folder's file system.
const REST: u64 = 2 << 30;

/// A file without a name, which is removed when it is closed. `file` is `None` if there is no space or writing failed.
#[derive(Default)]
pub(super) struct Spool {
    file: Option<File>,
    len: u64,
    unchecked: u64,
}

impl Spool {
    /// Creates the file in this folder.
    pub(super) fn begin(folder: &Path) -> Self {
        let flags = OFlags::TMPFILE.bits().cast_signed();
        let file = File::options().read(true).write(true).custom_flags(flags).mode(0o600).open(folder);
        Self { file: file.ok(), len: 0, unchecked: STRIDE }
    }

    /// Adds the next bytes of the raw image.
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

    /// Returns the file with the raw image, if all of it was written.
    pub(super) fn finish(self) -> Option<File> {
        self.file.filter(|file| file.set_len(self.len).is_ok())
    }
}
