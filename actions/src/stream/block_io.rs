//! How decoders read the source, and where they send raw blocks.

use std::cell::Cell;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

use super::buffers::Queue;
use super::halt::Halt;
use super::progress::Meter;
use crate::disk::Buffer;
use crate::error::{Error, ImageError};
use crate::text;

/// The limits for the size of the raw image.
pub(super) struct Limits<'a> {
    pub(super) disk: &'a str,
    /// Size of the disk in bytes.
    pub(super) disk_size: u64,
    /// Size of the raw image in bytes, if known.
    pub(super) raw_size: Option<u64>,
}

/// Where raw blocks go.
pub(super) struct Output<'a> {
    pub(super) limits: &'a Limits<'a>,
    pub(super) pool: &'a Queue,
    /// How many buffers of the pipeline's size may be added to the pool, if the decoder leaves memory for them.
    pub(super) more: usize,
    pub(super) out: &'a Queue,
    pub(super) meter: &'a Meter,
    /// Whether blocks must be sent in the order of the image.
    pub(super) in_order: bool,
}

impl Output<'_> {
    /// Sends everything a decoder returns, starting at an offset of the image. Returns the offset of the end.
    pub(super) fn fill(&self, format: &'static str, decoder: &mut dyn Read, mut at: u64) -> Result<u64, Halt> {
        loop {
            let mut buffer = self.pool.take(self.meter)?;
            buffer.place(at);
            if let Err(source) = buffer.read_from(decoder) {
                let raw_bytes = at + buffer.filled().len() as u64;
                return Err(Halt::Failed(Error::Image(ImageError::decode(format, raw_bytes, source))));
            }
            at += buffer.filled().len() as u64;
            self.limits.check(at)?;
            let is_last = !buffer.spare().is_empty();
            if buffer.filled().is_empty() {
                self.pool.recycle(buffer);
            } else {
                self.out.send(buffer);
            }
            if is_last {
                return Ok(at);
            }
        }
    }
}

impl Limits<'_> {
    /// Fails if an image of at least this many bytes is too large.
    pub(super) fn check(&self, size: u64) -> Result<(), Halt> {
        if let Some(expected) = self.raw_size.filter(|&expected| size > expected) {
            let found = format!("at least {size}");
            return Err(Halt::Failed(Error::Image(ImageError::RawSize { expected, found })));
        }
        if size > self.disk_size {
            let (size, needed) = text::two_sizes(self.disk_size, size);
            let (disk, needed) = (self.disk.to_owned(), format!("at least {needed}"));
            return Err(Halt::Failed(Error::Image(ImageError::TooLarge { disk, size, needed })));
        }
        Ok(())
    }

    /// Fails if a complete image of this many bytes is empty or does not have the expected size.
    pub(super) fn check_end(&self, size: u64) -> Result<(), Halt> {
        if size == 0 {
            return Err(Halt::Failed(Error::Image(ImageError::Empty)));
        }
        match self.raw_size {
            Some(expected) if expected != size => {
                Err(Halt::Failed(Error::Image(ImageError::RawSize { expected, found: size.to_string() })))
            }
            _ => Ok(()),
        }
    }
}

/// The source's buffers as a reader.
pub(super) struct Input<'a> {
    queue: &'a Queue,
    pool: &'a Queue,
    meter: &'a Meter,
    current: Option<Buffer>,
    at: usize,
    /// Whether a read failed because the pipeline is stopping.
    pub(super) stopped: Rc<Cell<bool>>,
}

impl<'a> Input<'a> {
    pub(super) fn new(queue: &'a Queue, pool: &'a Queue, meter: &'a Meter) -> Self {
        Self { queue, pool, meter, current: None, at: 0, stopped: Rc::default() }
    }

    /// Returns the first bytes without consuming them.
    pub(super) fn head(&mut self) -> Result<&[u8], Halt> {
        self.fill_buf().map_err(|_| Halt::Stopped)
    }

    /// Sends an uncompressed image. Its buffers are passed on as they are, each in exchange for an empty one. Returns
    /// the size of the image.
    pub(super) fn pass_on(mut self, output: &Output) -> Result<u64, Halt> {
        let mut at = 0;
        while let Some(buffer) =
            self.current.take().map_or_else(|| self.queue.recv(self.meter), |first| Ok(Some(first)))?
        {
            at = buffer.offset() + buffer.filled().len() as u64;
            output.limits.check(at)?;
            self.pool.recycle(output.pool.take(output.meter)?);
            if buffer.filled().is_empty() {
                self.pool.recycle(buffer);
            } else {
                output.out.send(buffer);
            }
        }
        Ok(at)
    }
}

impl BufRead for Input<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.as_ref().is_none_or(|buffer| self.at >= buffer.filled().len()) {
            if let Some(spent) = self.current.take() {
                self.pool.recycle(spent);
            }
            self.at = 0;
            match self.queue.recv(self.meter) {
                Ok(Some(buffer)) => self.current = Some(buffer),
                Ok(None) => return Ok(&[]),
                Err(_) => {
                    self.stopped.set(true);
                    return Err(io::Error::other("the pipeline stops"));
                }
            }
        }
        Ok(self.current.as_ref().and_then(|buffer| buffer.filled().get(self.at..)).unwrap_or_default())
    }

    fn consume(&mut self, n: usize) {
        self.at += n;
    }
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(buffer)?;
        self.consume(n);
        Ok(n)
    }
}
