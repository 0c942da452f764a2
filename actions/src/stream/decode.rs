//! Finds out how the source is compressed, and turns it into raw blocks.

use std::io::{self, BufRead, Read};

use super::Halt;
use super::buffers::{Buffer, Queue};
use super::progress::Meter;
use crate::error::Error;
use crate::fetch;

/// Compression found by the first bytes of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Raw,
    Zstd,
    Gzip,
    Xz,
}

impl Format {
    pub(super) fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Zstd => "zstd",
            Format::Gzip => "gzip",
            Format::Xz => "xz",
        }
    }

    /// The format, or the name of one that would end up on the disk as it is and never boot.
    pub(super) fn of(head: &[u8]) -> Result<Self, &'static str> {
        match head {
            // RFC 8878, 3.1.1 and 3.1.2: a frame, or a skippable frame in front of it.
            [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Ok(Format::Zstd),
            // RFC 1952, 2.3.1.
            [0x1F, 0x8B, ..] => Ok(Format::Gzip),
            // The .xz file format, 2.1.1.1.
            [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => Ok(Format::Xz),
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Err("a bzip2 stream"),
            [0x04, 0x22, 0x4D, 0x18, ..] => Err("an LZ4 stream"),
            [b'P', b'K', 3, 4, ..] => Err("a zip archive"),
            [b'Q', b'F', b'I', 0xFB, ..] => Err("a qcow2 image"),
            [b'K', b'D', b'M', b'V', ..] => Err("a VMDK image"),
            [b'v', b'h', b'd', b'x', ..] => Err("a VHDX image"),
            [b'<', ..] => Err("an HTML or XML page"),
            _ => Ok(Format::Raw),
        }
    }
}

/// What bounds the raw image.
pub(super) struct Limits<'a> {
    pub(super) url: &'a str,
    pub(super) disk: &'a str,
    /// Size of the disk in bytes.
    pub(super) disk_size: u64,
    /// Size of the raw image in bytes, if the workflow gives it.
    pub(super) raw_size: Option<u64>,
}

/// Sends the raw image block by block, each but the last as large as a buffer. Returns its format and size in bytes.
///
/// Every end that is not the end of the compressed stream is an error, and so is anything that follows it.
pub(super) fn run(
    limits: &Limits,
    mut input: Input,
    pool: &Queue,
    out: &Queue,
    meter: &Meter,
) -> Result<(Format, u64), Halt> {
    let unsuitable = |format| Halt::Failed(Error::Format { url: fetch::shown(limits.url), format });
    let format = Format::of(input.head()?).map_err(unsuitable)?;
    let stopped = input.stopped.clone();
    let decode_failed = |raw_bytes, source| match stopped.get() {
        true => Halt::Stopped,
        false => Halt::Failed(Error::Decode { format: format.name(), raw_bytes, source }),
    };
    let mut decoder: Box<dyn Read + '_> = match format {
        Format::Raw => Box::new(input),
        Format::Zstd => Box::new(zstd::Decoder::with_buffer(input).map_err(|source| decode_failed(0, source))?),
        Format::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
        Format::Xz => Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(input)),
    };
    let mut size = 0;
    loop {
        let mut buffer = pool.take(meter)?;
        buffer.offset = size;
        while !buffer.spare().is_empty() {
            match decoder.read(buffer.spare()) {
                Ok(0) => break,
                Ok(n) => buffer.advance(n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(decode_failed(size + buffer.filled().len() as u64, error)),
            }
        }
        size += buffer.filled().len() as u64;
        limits.check(size)?;
        let last = !buffer.spare().is_empty();
        if !buffer.filled().is_empty() {
            out.send(buffer);
        }
        if last {
            break;
        }
    }
    limits.check_end(size)?;
    out.close();
    Ok((format, size))
}

impl Limits<'_> {
    fn check(&self, size: u64) -> Result<(), Halt> {
        if let Some(expected) = self.raw_size.filter(|&expected| size > expected) {
            let found = format!("at least {size}");
            return Err(Halt::Failed(Error::RawSize { expected, found }));
        }
        if size > self.disk_size {
            let (disk, needed) = (self.disk.to_owned(), format!("at least {size}"));
            return Err(Halt::Failed(Error::ImageTooLarge { disk, size: self.disk_size, needed }));
        }
        Ok(())
    }

    fn check_end(&self, size: u64) -> Result<(), Halt> {
        if size == 0 {
            return Err(Halt::Failed(Error::EmptyImage { url: fetch::shown(self.url) }));
        }
        match self.raw_size {
            Some(expected) if expected != size => {
                Err(Halt::Failed(Error::RawSize { expected, found: size.to_string() }))
            }
            _ => Ok(()),
        }
    }
}

/// The delivered buffers as a reader.
pub(super) struct Input<'a> {
    queue: &'a Queue,
    pool: &'a Queue,
    meter: &'a Meter,
    current: Option<Buffer>,
    at: usize,
    /// Set when a read failed because the pipeline stops; decoders pass an error on without its meaning.
    stopped: std::rc::Rc<std::cell::Cell<bool>>,
}

impl<'a> Input<'a> {
    pub(super) fn new(queue: &'a Queue, pool: &'a Queue, meter: &'a Meter) -> Self {
        Self { queue, pool, meter, current: None, at: 0, stopped: Default::default() }
    }

    /// The first bytes, without taking them.
    fn head(&mut self) -> Result<&[u8], Halt> {
        self.fill_buf().map_err(|_| Halt::Stopped)
    }
}

impl BufRead for Input<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.as_ref().is_none_or(|buffer| self.at == buffer.filled().len()) {
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
        Ok(self.current.as_ref().map_or(&[], |buffer| &buffer.filled()[self.at..]))
    }

    fn consume(&mut self, n: usize) {
        self.at += n;
    }
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let n = available.len().min(buffer.len());
        buffer[..n].copy_from_slice(&available[..n]);
        self.consume(n);
        Ok(n)
    }
}
