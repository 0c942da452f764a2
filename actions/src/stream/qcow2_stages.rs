//! How a qcow2 image becomes raw blocks: as it is delivered, or read by ranges where that is not possible.

use std::io::{self, Read};
use std::sync::atomic::Ordering::Relaxed;

use super::decode::{Format, Output};
use super::progress::Counters;
use super::qcow2::{Block, FileOrder, Image};
use super::{Halt, qcow2};
use crate::error::Error;
use crate::fetch::{self, FetchError, Request, retry};
use crate::machine::{Cancel, Machine, Response};

/// A gap between two reads that is skipped on the same connection; past a longer one another connection is cheaper.
const MAX_SKIP: u64 = 1 << 20;

impl From<qcow2::Error> for Halt {
    fn from(source: qcow2::Error) -> Self {
        Halt::Failed(Error::Qcow2 { source })
    }
}

/// Sends the blocks of an image in the order of its file. Returns the size of the raw image in bytes.
pub(super) fn in_file_order(input: impl Read, output: &Output) -> Result<u64, Halt> {
    let image = FileOrder::open(input)?;
    let size = image.size();
    output.limits.check(size)?;
    if output.in_order {
        return Err(Halt::Failed(Error::Qcow2Order { url: fetch::shown(output.limits.url) }));
    }
    image.run(|at, block| send(at, block, output))?;
    Ok(size)
}

/// Sends the blocks of an image in the order of the raw image, reading the file where it must. Returns the size of the raw
/// image in bytes.
pub(super) fn by_ranges(mut file: Ranges, output: &Output) -> Result<(Format, u64), Halt> {
    let total = file.open(0)?;
    let image = Image::open(total, &mut |at, buffer| file.read_at(at, buffer))?;
    output.limits.check(image.size())?;
    image.read(&mut |at, buffer| file.read_at(at, buffer), |at, block| send(at, block, output))?;
    output.out.close();
    Ok((Format::Qcow2, image.size()))
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
    url: &'a str,
    ca: Option<&'a str>,
    counters: &'a Counters,
    stop: &'a Cancel,
    etag: Option<String>,
    /// An answer, and the offset of its next byte.
    open: Option<(Response, u64)>,
}

impl<'a> Ranges<'a> {
    /// A source that was not opened yet.
    pub(super) fn new(
        machine: &'a dyn Machine,
        url: &'a str,
        ca: Option<&'a str>,
        counters: &'a Counters,
        stop: &'a Cancel,
    ) -> Self {
        Self { machine, url, ca, counters, stop, etag: None, open: None }
    }

    /// Asks for the source from an offset on. Returns its size in bytes.
    fn open(&mut self, offset: u64) -> Result<u64, Halt> {
        let failed = |source| Halt::Failed(Error::Fetch { url: fetch::shown(self.url), source });
        let request = Request { offset, etag: self.etag.as_deref(), ..Request::new(self.url, self.ca) };
        let response = self.machine.fetch(&request, self.stop).map_err(failed)?;
        let unknown = || FetchError::NotResumable { offset, reason: "the size of the source is not known".to_owned() };
        let total = response.total.ok_or_else(unknown).map_err(failed)?;
        if offset == 0 {
            self.etag.clone_from(&response.etag);
            self.counters.set_fetch_total(Some(total));
        }
        self.open = Some((response, offset));
        Ok(total)
    }

    /// Fills a buffer from an offset, over as many connections as it takes.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut failures = 0;
        loop {
            let error = match self.try_read_at(offset, buffer) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            self.open = None;
            failures += 1;
            if failures >= retry::MAX_FAILURES || self.stop.is_set() {
                return Err(error);
            }
            retry::sleep(retry::back_off(failures), self.stop);
        }
    }

    fn try_read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let near = |at: u64| (at..=at + MAX_SKIP).contains(&offset);
        if !self.open.as_ref().is_some_and(|(_, at)| near(*at)) {
            self.open(offset).map_err(|halt| match halt {
                Halt::Failed(error) => io::Error::other(error),
                Halt::Stopped => io::Error::other("the pipeline stops"),
            })?;
        }
        let Some((response, at)) = &mut self.open else { return Err(io::ErrorKind::NotConnected.into()) };
        io::copy(&mut response.body.by_ref().take(offset - *at), &mut io::sink())?;
        response.body.read_exact(buffer)?;
        *at = offset + buffer.len() as u64;
        self.counters.fetched.fetch_add(buffer.len() as u64, Relaxed);
        Ok(())
    }
}
