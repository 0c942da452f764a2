//! Memory for direct reads and writes.

use std::io::{self, Read};

/// Alignment of memory for direct I/O, in bytes: at least the logical block size, which is at most a page.
const ALIGNMENT: usize = 4096;

/// A piece of a stream, in memory aligned for direct I/O.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    /// Offset of the first aligned byte of the memory.
    base: usize,
    start: usize,
    end: usize,
    len: usize,
    capacity: usize,
    offset: u64,
}

impl Buffer {
    /// Makes an empty buffer for up to `capacity` bytes, a multiple of the alignment.
    pub(crate) fn new(capacity: usize) -> Self {
        let memory = vec![0; capacity + ALIGNMENT];
        let base = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, base, start: base, end: base + capacity, len: 0, capacity, offset: 0 }
    }

    /// Makes a buffer filled with zeros.
    pub(crate) fn zeroed(capacity: usize) -> Self {
        Self { len: capacity, ..Self::new(capacity) }
    }

    /// Empties the buffer and prepares it for bytes from an offset of the image up to the next multiple of its
    /// capacity. Bytes that are aligned on the disk are aligned in memory too, whatever the offset.
    pub(crate) fn place(&mut self, offset: u64) {
        self.start = self.base + (offset % ALIGNMENT as u64) as usize;
        self.end = self.start + self.capacity - (offset % self.capacity as u64) as usize;
        self.end = self.end.min(self.base + self.capacity);
        self.len = 0;
        self.offset = offset;
    }

    /// Offset of the buffer's first byte in the image.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes in the buffer.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    /// The bytes in the buffer, to be changed in place.
    pub(crate) fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    /// The free space at the end of the buffer.
    pub(crate) fn spare(&mut self) -> &mut [u8] {
        &mut self.memory[self.start + self.len..self.end]
    }

    /// Returns `len` bytes of memory, beginning `before` bytes in front of the buffer's first byte, to read whole
    /// blocks into; `None` if there is not enough memory.
    pub(crate) fn blocks(&mut self, before: usize, len: usize) -> Option<&mut [u8]> {
        let start = self.start.checked_sub(before).filter(|start| *start >= self.base)?;
        self.memory.get_mut(start..start + len)
    }

    /// Reads until the buffer is full or the reader has ended.
    pub(crate) fn read_from(&mut self, reader: &mut dyn Read) -> io::Result<()> {
        while !self.spare().is_empty() {
            match reader.read(self.spare()) {
                Ok(0) => break,
                Ok(n) => self.advance(n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Marks `n` bytes of the free space as filled.
    pub(crate) fn advance(&mut self, n: usize) {
        self.len = (self.len + n).min(self.end - self.start);
    }

    /// Empties the buffer, and returns it.
    pub(crate) fn cleared(mut self) -> Self {
        self.place(0);
        self
    }
}

/// Whether all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // Pieces of this size are compiled to SIMD instructions. In most data the first piece ends the search.
    let (pieces, rest) = bytes.as_chunks::<128>();
    pieces.iter().all(|piece| {
        let (words, _) = piece.as_chunks::<8>();
        words.iter().fold(0, |all, word| all | u64::from_ne_bytes(*word)) == 0
    }) && rest.iter().all(|byte| *byte == 0)
}
