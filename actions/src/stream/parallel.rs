//! Decodes the pieces of a stream by several threads, which write to the disk in whatever order they get done. A piece that is
//! too large to be kept, or does not say how large it is, is decoded as it comes, like a stream of one piece.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::buffers::wait_until;
use super::decode::{Input, Output};
use super::pieces::Piece;
use super::{Halt, xz, zstd};
use crate::error::{Error, ImageError};
use crate::machine::Cancel;

/// The most bytes of one piece that are kept. `xz -T` makes blocks of three times its dictionary, 24 MiB by default, before
/// compression.
const MAX_PIECE: u64 = 5 << 20;
/// By how much the memory for a piece grows.
const GROWTH: usize = 512 << 10;
/// Memory for pieces being decoded and waiting for it: their bytes, and what a decoder keeps of its past. Enough for two of the
/// largest `xz -T` makes by default, whose decoders keep 8 MiB, and for their headers.
const MEMORY: u64 = 2 * ((8 << 20) + MAX_PIECE) + (64 << 10);
/// More threads than this would have no memory to work with.
const MAX_WORKERS: usize = 8;

/// Formats whose streams have pieces.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pieces {
    Zstd,
    Xz,
}

/// A piece, and where its content belongs.
struct Job {
    at: u64,
    content: u64,
    memory: u64,
    bytes: Vec<u8>,
}

/// Decodes a stream to its end. Returns the size of its content in bytes.
pub(super) fn run(pieces: Pieces, input: Input, output: &Output) -> Result<u64, Halt> {
    let jobs = Jobs::new(output.out.stop());
    let workers = match output.in_order {
        true => 0,
        false => thread::available_parallelism().map_or(1, usize::from).min(MAX_WORKERS),
    };
    let size = thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| jobs.work(|job| decode(pieces, job, output)));
        }
        let splitter = Splitter { pieces, input, output, jobs: (workers > 0).then_some(&jobs), at: 0 };
        let size = match pieces {
            Pieces::Zstd => splitter.zstd(),
            Pieces::Xz => splitter.xz(),
        };
        jobs.close();
        size
    });
    match jobs.into_failure() {
        Some(halt) => Err(halt),
        None => size,
    }
}

impl Pieces {
    fn name(self) -> &'static str {
        match self {
            Pieces::Zstd => "zstd",
            Pieces::Xz => "xz",
        }
    }

    fn failed(self, raw_bytes: u64, source: io::Error) -> Halt {
        Halt::Failed(Error::Image(ImageError::Decode { format: self.name(), raw_bytes, source }))
    }

    fn decoder<'a>(self, bytes: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Pieces::Zstd => Box::new(::zstd::Decoder::with_buffer(bytes)?.single_frame()),
            Pieces::Xz => Box::new(xz::Decoder::new(bytes)?),
        })
    }
}

/// Decodes a piece that is there as a whole.
fn decode(pieces: Pieces, job: &Job, output: &Output) -> Result<(), Halt> {
    let mut decoder = pieces.decoder(job.bytes.as_slice()).map_err(|source| pieces.failed(job.at, source))?;
    let end = output.fill(pieces.name(), &mut decoder, job.at)?;
    check_content(pieces, job.at..end, job.content)
}

fn check_content(pieces: Pieces, found: std::ops::Range<u64>, expected: u64) -> Result<(), Halt> {
    if found.end - found.start == expected {
        return Ok(());
    }
    let reason = format!("a piece says that it has {expected} bytes, and has {}", found.end - found.start);
    Err(pieces.failed(found.end, io::Error::new(io::ErrorKind::InvalidData, reason)))
}

/// Cuts a stream into pieces.
struct Splitter<'a, 'b> {
    pieces: Pieces,
    input: Input<'a>,
    output: &'b Output<'b>,
    /// Where pieces go that can wait; none if everything is to be decoded in order.
    jobs: Option<&'b Jobs>,
    at: u64,
}

impl<'a> Splitter<'a, '_> {
    fn zstd(mut self) -> Result<u64, Halt> {
        while !self.is_at_end()? {
            let failed = |source| self.pieces.failed(self.at, source);
            let mut frame = zstd::Frame::default();
            let mut piece = Piece::new(&mut self.input, &mut frame).map_err(failed)?;
            let bytes = start(&mut piece, Vec::new()).map_err(failed)?;
            let (is_whole, content, window) = (piece.is_at_end(), piece.walk().content, piece.walk().window);
            content.map_or(Ok(()), |content| self.output.limits.check(self.at.saturating_add(content)))?;
            match content.filter(|_| is_whole) {
                Some(0) => {}
                Some(content) => self.whole(bytes, content, window)?,
                None => {
                    let _memory = reserve(self.jobs, bytes.len(), window)?;
                    let stream = io::BufReader::new(bytes.chain(piece));
                    let mut decoder = self.pieces.decoder(stream).map_err(failed)?;
                    let end = self.output.fill(self.pieces.name(), &mut decoder, self.at)?;
                    drop(decoder);
                    content.map_or(Ok(()), |content| check_content(self.pieces, self.at..end, content))?;
                    self.at = end;
                }
            }
        }
        Ok(self.at)
    }

    fn xz(mut self) -> Result<u64, Halt> {
        while !self.is_at_end()? {
            let mut header = self.ask(xz::Header::read)?;
            while self.ask(xz::is_block)? {
                let block = self.xz_block(&header)?;
                header.add(&block);
            }
            self.ask(|input| header.end(input))?;
            self.ask(xz::skip_padding)?;
        }
        Ok(self.at)
    }

    fn xz_block(&mut self, header: &xz::Header) -> Result<xz::Block, Halt> {
        let failed = |source| self.pieces.failed(self.at, source);
        let mut block = header.block();
        let mut piece = Piece::new(&mut self.input, &mut block).map_err(failed)?;
        let mut bytes = start(&mut piece, header.bytes().to_vec()).map_err(failed)?;
        if piece.is_at_end() {
            bytes.extend(xz::END_OF_BLOCK);
            self.whole(bytes, block.content, block.dictionary)?;
            return Ok(block);
        }
        let _memory = reserve(self.jobs, bytes.len(), piece.walk().dictionary)?;
        let stream = io::BufReader::new(bytes.chain(piece).chain(&xz::END_OF_BLOCK[..]));
        let mut decoder = self.pieces.decoder(stream).map_err(failed)?;
        let end = self.output.fill(self.pieces.name(), &mut decoder, self.at)?;
        drop(decoder);
        check_content(self.pieces, self.at..end, block.content)?;
        self.at = end;
        Ok(block)
    }

    /// Has a piece decoded whose bytes are all here.
    fn whole(&mut self, bytes: Vec<u8>, content: u64, past: u64) -> Result<(), Halt> {
        let (at, memory) = (self.at, bytes.len() as u64 + past.min(content));
        self.at = at.saturating_add(content);
        self.output.limits.check(self.at)?;
        let job = Job { at, content, memory, bytes };
        match self.jobs {
            Some(jobs) if memory <= MEMORY => jobs.send(job),
            _ => {
                let _memory = reserve(self.jobs, job.bytes.len(), past.min(content))?;
                decode(self.pieces, &job, self.output)
            }
        }
    }

    fn is_at_end(&mut self) -> Result<bool, Halt> {
        self.ask(|input| input.fill_buf().map(<[u8]>::is_empty))
    }

    fn ask<T>(&mut self, read: impl FnOnce(&mut Input<'a>) -> io::Result<T>) -> Result<T, Halt> {
        read(&mut self.input).map_err(|source| self.pieces.failed(self.at, source))
    }
}

/// Reads a piece to its end, or to the most that is kept of one, after what must precede it.
fn start(piece: &mut impl Read, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut piece = piece.take(MAX_PIECE);
    loop {
        // Left to itself, a vector doubles: memory for twice the bytes.
        bytes.reserve_exact(GROWTH);
        if piece.by_ref().take(GROWTH as u64).read_to_end(&mut bytes)? < GROWTH {
            bytes.shrink_to_fit();
            return Ok(bytes);
        }
    }
}

/// Pieces on their way to the threads that decode them, within the bounds of the memory.
struct Jobs {
    state: Mutex<State>,
    changed: Condvar,
    stop: Cancel,
}

/// Waits for the memory to decode a piece on the thread that cuts, beside those that decode.
fn reserve(jobs: Option<&Jobs>, bytes: usize, past: u64) -> Result<Option<Reserved<'_>>, Halt> {
    jobs.map(|jobs| jobs.reserve((bytes as u64).saturating_add(past))).transpose()
}

/// Memory that is given back in the end.
struct Reserved<'a> {
    jobs: &'a Jobs,
    memory: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.jobs.lock().memory -= self.memory;
        self.jobs.changed.notify_all();
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    memory: u64,
    closed: bool,
    failure: Option<Halt>,
}

impl Jobs {
    fn new(stop: &Cancel) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), stop: stop.clone() }
    }

    /// Hands a piece over once there is memory for it.
    fn send(&self, job: Job) -> Result<(), Halt> {
        let mut state = self.wait(|state| state.memory + job.memory <= MEMORY || state.failure.is_some())?;
        if state.failure.is_some() {
            return Err(Halt::Stopped);
        }
        state.memory += job.memory;
        state.waiting.push_back(job);
        self.changed.notify_all();
        Ok(())
    }

    /// Takes memory for something that is no job. What would never fit waits until nothing else is there.
    fn reserve(&self, memory: u64) -> Result<Reserved<'_>, Halt> {
        let fits = |state: &State| state.memory == 0 || state.memory + memory <= MEMORY || state.failure.is_some();
        self.wait(fits)?.memory += memory;
        Ok(Reserved { jobs: self, memory })
    }

    /// Says that no more will come.
    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Decodes one piece after the other until there are no more or one fails.
    fn work(&self, decode: impl Fn(&Job) -> Result<(), Halt>) {
        while let Ok(mut state) =
            self.wait(|state| !state.waiting.is_empty() || state.closed || state.failure.is_some())
        {
            let Some(job) = state.waiting.pop_front().filter(|_| state.failure.is_none()) else { return };
            drop(state);
            let result = decode(&job);
            let mut state = self.lock();
            state.memory -= job.memory;
            if let Err(halt) = result {
                state.failure.get_or_insert(halt);
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    fn wait(&self, until: impl Fn(&State) -> bool) -> Result<MutexGuard<'_, State>, Halt> {
        wait_until(&self.state, &self.changed, &self.stop, until)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn into_failure(self) -> Option<Halt> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).failure
    }
}
