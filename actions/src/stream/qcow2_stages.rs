//! How a qcow2 image becomes raw blocks: as it is delivered, or read by ranges where that is not possible.

use std::io::{self, Read};
use std::sync::atomic::Ordering::Relaxed;

use slipway_formats::image::Format;
use slipway_formats::qcow2;
use slipway_formats::qcow2::{Block, FileOrder, Image};

use super::Halt;
use super::decode::Output;
use super::progress::Counters;
use super::resume::{Position, Resume};
use crate::error::{Error, FetchError, ImageError};
use crate::fetch::{self, retry};
use crate::machine::{Cancel, Machine, Request, Response};

/// A gap between two reads that is skipped on the same connection; past a longer one another connection is cheaper.
const MAX_SKIP: u64 = 1 << 20;

impl From<qcow2::Error> for Halt {
    fn from(source: qcow2::Error) -> Self {
        Halt::Failed(Error::Image(ImageError::Qcow2 { source }))
    }
}

/// Sends the blocks of an image in the order of its file. Returns the size of the raw image in bytes.
pub(super) fn in_file_order(input: impl Read, output: &Output) -> Result<u64, Halt> {
    let image = FileOrder::open(input)?;
    let size = image.size();
    if output.in_order {
        return Err(Halt::Failed(Error::Image(ImageError::Qcow2Order { url: fetch::shown(output.limits.url) })));
    }
    output.limits.check(size)?;
    image.run(|at, block| send(at, block, output))?;
    Ok(size)
}

/// Sends the blocks of an image in the order of the raw image, reading the file where it must. Returns the size of the raw
/// image in bytes.
pub(super) fn by_ranges(mut file: Ranges, output: &Output) -> Result<(Format, u64), Halt> {
    let sent = send_image(&mut file, output);
    // Told by what it is, and not as a read of the format's.
    match file.failure.take() {
        Some(Halt::Failed(error)) => return Err(Halt::Failed(error)),
        Some(Halt::Stopped) => return Err(Halt::Stopped),
        None => {}
    }
    let size = sent?;
    output.limits.check_end(size)?;
    output.out.close();
    Ok((Format::Qcow2, size))
}

fn send_image(file: &mut Ranges, output: &Output) -> Result<u64, Halt> {
    let total = file.size()?;
    let image = Image::open(total, &mut |at, buffer| file.read_at(at, buffer))?;
    output.limits.check(image.size())?;
    image.read(&mut |at, buffer| file.read_at(at, buffer), |at, block| send(at, block, output))?;
    Ok(image.size())
}

fn send(mut at: u64, block: Block, output: &Output) -> Result<(), Halt> {
    let end = at
        + match block {
            Block::Data(bytes) => bytes.len() as u64,
            Block::Zero(len) => len,
        };
    let start = at;
    while at < end {
        let mut buffer = output.pool.take(output.meter)?;
        buffer.place(at);
        let room = buffer.spare();
        let len = room.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        match block {
            Block::Data(bytes) => room[..len].copy_from_slice(&bytes[(at - start) as usize..][..len]),
            Block::Zero(_) => room[..len].fill(0),
        }
        buffer.advance(len);
        output.out.send(buffer);
        at += len as u64;
    }
    Ok(())
}

/// A source that is read here and there.
pub(super) struct Ranges<'a> {
    machine: &'a dyn Machine,
    resume: Resume<'a>,
    ca: Option<&'a str>,
    counters: &'a Counters,
    stop: &'a Cancel,
    at: Position,
    /// An answer, and the offset of its next byte.
    open: Option<(Response, u64)>,
    /// Why it could not be read.
    failure: Option<Halt>,
}

impl<'a> Ranges<'a> {
    /// A source that was not opened yet.
    pub(super) fn new(
        machine: &'a dyn Machine,
        resume: Resume<'a>,
        ca: Option<&'a str>,
        counters: &'a Counters,
        stop: &'a Cancel,
    ) -> Self {
        resume.mirrors.begin();
        Self { machine, resume, ca, counters, stop, at: Position::default(), open: None, failure: None }
    }

    /// Asks how large the source is, in bytes.
    fn size(&mut self) -> Result<u64, Halt> {
        self.patiently(0, |file| file.open(0))
    }

    /// Fills a buffer from an offset, over as many connections as it takes.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let read = self.patiently(offset, |file| file.try_read_at(offset, buffer));
        read.map_err(|halt| {
            self.failure = Some(halt);
            io::Error::other("the source cannot be read")
        })
    }

    /// Does it again, perhaps at another place, for as long as what went wrong may pass.
    fn patiently<T>(
        &mut self,
        offset: u64,
        mut ask: impl FnMut(&mut Self) -> Result<T, FetchError>,
    ) -> Result<T, Halt> {
        self.at.offset = offset;
        loop {
            let error = match ask(self) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            self.open = None;
            if self.stop.is_set() {
                return Err(Halt::Stopped);
            }
            let pause = self.resume.go_on(&mut self.at, error)?;
            self.resume.mirrors.attempts += 1;
            if !retry::sleep(pause, self.stop) {
                return Err(Halt::Stopped);
            }
        }
    }

    /// Asks for the source from an offset on. Returns its size in bytes.
    fn open(&mut self, offset: u64) -> Result<u64, FetchError> {
        let (url, stall) = (self.resume.mirrors.url(), self.resume.mirrors.stall());
        let request = Request { offset, etag: self.at.etag.as_deref(), stall, ..Request::new(url, self.ca) };
        let response = self.machine.fetch(&request, self.stop)?;
        let not_resumable = |reason: String| FetchError::NotResumable { offset, reason };
        let total = response.total.ok_or_else(|| not_resumable("the size of the source is not known".to_owned()))?;
        if let Some(known) = self.at.total.filter(|known| *known != total) {
            return Err(not_resumable(format!("the size was {known} and is now {total}")));
        }
        self.at.total = Some(total);
        // The answer to a request for the rest need not repeat the tag.
        self.at.etag = response.etag.clone().or(self.at.etag.take().filter(|_| offset > 0));
        self.counters.set_fetch_total(Some(total));
        self.open = Some((response, offset));
        Ok(total)
    }

    fn try_read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), FetchError> {
        let near = |at: u64| (at..=at + MAX_SKIP).contains(&offset);
        if !self.open.as_ref().is_some_and(|(_, at)| near(*at)) {
            self.open(offset)?;
        }
        let Some((response, at)) = &mut self.open else { return Err(FetchError::Stopped) };
        let broken = |source| FetchError::Body { source };
        io::copy(&mut response.body.by_ref().take(offset - *at), &mut io::sink()).map_err(broken)?;
        response.body.read_exact(buffer).map_err(broken)?;
        *at = offset + buffer.len() as u64;
        self.counters.fetched.fetch_add(buffer.len() as u64, Relaxed);
        self.resume.mirrors.received(buffer.len() as u64);
        Ok(())
    }
}
