//! Random access to a raw image, with limits, because a damaged file system can make its reader read anything.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

/// Reads at an offset in the raw image until the buffer is full.
pub type ReadAt = dyn Fn(u64, &mut [u8]) -> io::Result<()> + Send;

/// Number of bytes that are read at a time and cached.
const PIECE: u64 = 64 << 10;
/// Maximum number of pieces read. Usual images need a hundredth of that.
const MAX_PIECES: usize = 1024;

/// A raw image.
pub(super) struct Source {
    read: Box<ReadAt>,
    /// Size of the raw image in bytes.
    len: u64,
    until: Instant,
    pieces: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl Source {
    /// Takes a raw image of `len` bytes, from which nothing is read after `until`.
    pub(super) fn new(read: Box<ReadAt>, len: u64, until: Instant) -> Self {
        Self { read, len, until, pieces: RefCell::default() }
    }

    /// Fills the buffer from this offset in the image. `None` if the image ends before, cannot be read, or was read for
    /// too long or too much.
    pub(super) fn fill(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        let (mut at, mut left) = (offset, buffer);
        while !left.is_empty() {
            let mut pieces = self.pieces.borrow_mut();
            let start = at / PIECE * PIECE;
            if !pieces.contains_key(&start) {
                let piece = self.piece(start, pieces.len())?;
                pieces.insert(start, piece);
            }
            let found = pieces.get(&start)?.get((at - start) as usize..)?;
            let len = found.len().min(left.len());
            let (now, rest) = left.split_at_mut(len);
            now.copy_from_slice(found.get(..len).filter(|found| !found.is_empty())?);
            (at, left) = (at + len as u64, rest);
        }
        Some(())
    }

    /// Like [`Source::fill`], into a new buffer.
    pub(super) fn bytes(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.fill(offset, &mut bytes).map(|()| bytes)
    }

    fn piece(&self, start: u64, read: usize) -> Option<Vec<u8>> {
        let len = self.len.checked_sub(start)?.min(PIECE);
        if read >= MAX_PIECES || Instant::now() > self.until {
            return None;
        }
        let mut piece = vec![0; len as usize];
        (self.read)(start, &mut piece).ok().map(|()| piece)
    }
}
