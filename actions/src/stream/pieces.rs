//! Parts of a compressed stream that can be decoded independently: zstd frames, xz blocks. Only their boundaries are
//! parsed, so finding them costs next to nothing.

use std::io::{self, BufRead, Read};

/// What comes next in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A header of this many bytes, at most [`MAX_HEADER`]. It determines what follows.
    Header(usize),
    /// This many bytes that need not be parsed.
    Body(u64),
    /// Nothing: the piece is complete.
    End,
}

/// Size in bytes of the longest header, that of an xz block (The .xz file format, 3.1.1).
pub(super) const MAX_HEADER: usize = 1024;

/// Finds the end of a piece.
pub(super) trait Walk {
    /// Says what comes next. `header` is the header that was requested, or empty at the start and after a body.
    fn next(&mut self, header: &[u8]) -> io::Result<Next>;
}

/// The compressed bytes of one piece, as a reader that stops at its end.
pub(super) struct Piece<'a, R, W> {
    input: &'a mut R,
    walk: &'a mut W,
    next: Next,
    header: Vec<u8>,
    /// Number of header bytes that were returned to the reader.
    told: usize,
}

impl<'a, R: BufRead, W: Walk> Piece<'a, R, W> {
    /// A piece that starts at the next byte of the input.
    pub(super) fn new(input: &'a mut R, walk: &'a mut W) -> io::Result<Self> {
        let next = walk.next(&[])?;
        Ok(Self { input, walk, next, header: Vec::new(), told: 0 })
    }

    /// The parser of the piece, with what is known so far.
    pub(super) fn walk(&self) -> &W {
        self.walk
    }

    /// Whether the whole piece was read.
    pub(super) fn is_at_end(&self) -> bool {
        self.next == Next::End && self.told == self.header.len()
    }

    fn take_header(&mut self, len: usize) -> io::Result<()> {
        self.header.resize(len.min(MAX_HEADER), 0);
        self.told = 0;
        self.input.read_exact(&mut self.header)?;
        self.next = self.walk.next(&self.header)?;
        Ok(())
    }
}

impl<R: BufRead, W: Walk> Read for Piece<'_, R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(mut rest) = self.header.get(self.told..).filter(|rest| !rest.is_empty()) {
                let n = rest.read(buffer)?;
                self.told += n;
                return Ok(n);
            }
            match self.next {
                Next::End => return Ok(0),
                Next::Header(len) => self.take_header(len)?,
                Next::Body(0) => self.next = self.walk.next(&[])?,
                Next::Body(left) => {
                    let n = self.input.by_ref().take(left).read(buffer)?;
                    if n == 0 && !buffer.is_empty() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.next = Next::Body(left - n as u64);
                    return Ok(n);
                }
            }
        }
    }
}
