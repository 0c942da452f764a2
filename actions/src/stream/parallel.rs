//! Decodes the pieces of a stream by several threads. Where the order of the image does not matter, they write to the disk in
//! whatever order they get done. Where it does, because there is a digest of the raw image or somebody reads it, each thread
//! decodes ahead of its turn into memory of its own, and takes buffers of the pipeline only when all that comes before its piece
//! has been passed on: so what comes later never holds the buffers that what comes first waits for.
//!
//! A frame that does not say how large its content is has its place only when all before it are done, so a stream of those is
//! decoded in order, too. A piece that is too large to be kept is decoded as it comes, like a stream of one piece.
//!
//! Memory is the same in order or not: [`MEMORY`], and [`MAX_PIECE`] for the piece that is being cut, 31 MiB together. In order,
//! [`AHEAD`] of each thread is taken from it, so that of the largest pieces one is decoded at a time. That loses little: of the
//! 24 MiB that a block of `xz -T` has, not much more could be kept.

use std::io::{self, BufRead, Read};
use std::thread;

use super::block_io::{Input, Output};
use super::halt::{Halt, StopOnPanic};
use super::jobs::{Job, Jobs, Turn};
use super::pieces::Piece;
use super::{xz, zstd};
use crate::disk::Buffer;
use crate::error::{Error, ImageError};

/// The most bytes of one piece that are kept. `xz -T` makes blocks of three times its dictionary, 24 MiB by default, before
/// compression.
const MAX_PIECE: u64 = 5 << 20;
/// By how much the memory for a piece grows.
const GROWTH: usize = 512 << 10;
/// Memory for pieces being decoded and waiting for it: their bytes, what a decoder keeps of its past, and what is decoded ahead.
/// Enough for two of the largest `xz -T` makes by default, whose decoders keep 8 MiB.
const MEMORY: u64 = 2 * ((8 << 20) + MAX_PIECE + EACH);
/// Counted for each piece beside that, however small it is: there could be millions of them otherwise.
const EACH: u64 = 32 << 10;
/// More threads than this would have no memory to work with.
const MAX_WORKERS: usize = 8;
/// A digest of the raw image is not faster than this many.
const MAX_IN_ORDER: usize = 3;
/// The most content one thread decodes ahead of its turn, in bytes. A frame that `capture-disk` makes has half as much.
const AHEAD: usize = 4 << 20;

/// Formats whose streams have pieces.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pieces {
    Zstd,
    Xz,
}

/// Decodes a stream to its end. Returns the size of its content in bytes.
pub(super) fn run(pieces: Pieces, mut input: Input, output: &Output) -> Result<u64, Halt> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let are_sizes_known = match pieces {
        Pieces::Zstd => zstd::says_size(input.head()?),
        Pieces::Xz => true,
    };
    let in_order = output.in_order || !are_sizes_known;
    let (workers, memory) = match in_order {
        // One more than there are processors: one may be waiting for its turn.
        true => ((cores + 1).min(MAX_IN_ORDER), MEMORY - (MAX_IN_ORDER * AHEAD) as u64),
        false => (cores.min(MAX_WORKERS), MEMORY),
    };
    let jobs = Jobs::new(memory, in_order, output.out.stop());
    let size = thread::scope(|scope| {
        let _stop_on_panic = StopOnPanic(output.out.stop());
        let work = || {
            let mut ahead = None;
            jobs.work(|job, turn| match in_order {
                true => {
                    let ahead = ahead.get_or_insert_with(|| Buffer::new(AHEAD));
                    decode_in_turn(pieces, &job, ahead, &turn, output)
                }
                false => decode(pieces, &job, output),
            });
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let splitter = Splitter { pieces, input, output, jobs: &jobs, at: 0 };
        let size = match pieces {
            Pieces::Zstd => splitter.zstd(),
            Pieces::Xz => splitter.xz(),
        };
        jobs.close();
        // A scope ends with the work of its threads. They themselves may be there for a moment more, and what they have not given
        // back yet counts as lost when the process ends then and is checked for leaks, as fuzz targets are.
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        size
    });
    let end = jobs.finish()?;
    size.map(|size| if in_order { end } else { size })
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

/// Decodes a piece that is there as a whole. Returns the end of its content.
fn decode(pieces: Pieces, job: &Job, output: &Output) -> Result<u64, Halt> {
    let mut decoder = pieces.decoder(job.bytes.as_slice()).map_err(|source| pieces.failed(job.at, source))?;
    pass_on(pieces, &mut decoder, job.at, job.content, output)
}

/// Does the same in order: until it is the turn of the piece, its content goes no further than `ahead`. An error waits for the
/// turn too, so that the first one in the image is told.
fn decode_in_turn(pieces: Pieces, job: &Job, ahead: &mut Buffer, turn: &Turn, output: &Output) -> Result<u64, Halt> {
    ahead.place(0);
    let begun = pieces.decoder(job.bytes.as_slice()).and_then(|mut decoder| {
        if !turn.has_come() {
            ahead.read_from(&mut decoder)?;
        }
        Ok(decoder)
    });
    let at = turn.wait()?;
    let decoder = begun.map_err(|source| pieces.failed(at + ahead.filled().len() as u64, source))?;
    pass_on(pieces, &mut ahead.filled().chain(decoder), at, job.content, output)
}

/// Passes on what a decoder gives, from an offset of the image on, which has to be as much as the piece says, if it says anything.
/// Returns its end.
fn pass_on(
    pieces: Pieces,
    decoder: &mut dyn Read,
    at: u64,
    content: Option<u64>,
    output: &Output,
) -> Result<u64, Halt> {
    let end = output.fill(pieces.name(), decoder, at)?;
    check_content(pieces, at..end, content)?;
    Ok(end)
}

fn check_content(pieces: Pieces, found: std::ops::Range<u64>, expected: Option<u64>) -> Result<(), Halt> {
    let len = found.end - found.start;
    match expected.filter(|expected| *expected != len) {
        None => Ok(()),
        Some(expected) => {
            let reason = format!("a piece says that it has {expected} bytes, and has {len}");
            Err(pieces.failed(found.end, io::Error::new(io::ErrorKind::InvalidData, reason)))
        }
    }
}

/// Cuts a stream into pieces.
struct Splitter<'a, 'b> {
    pieces: Pieces,
    input: Input<'a>,
    output: &'b Output<'b>,
    /// Where pieces go that are there as a whole.
    jobs: &'b Jobs,
    /// Where the next piece belongs, unless all are passed on in order: then the jobs know.
    at: u64,
}

impl<'a> Splitter<'a, '_> {
    fn zstd(mut self) -> Result<u64, Halt> {
        while !self.is_at_end()? {
            let (pieces, jobs, at) = (self.pieces, self.jobs, self.at);
            let failed = |source| failed_behind(jobs, pieces, at, source);
            let mut frame = zstd::Frame::default();
            let mut piece = Piece::new(&mut self.input, &mut frame).map_err(failed)?;
            let bytes = start(&mut piece, Vec::new()).map_err(failed)?;
            let (is_whole, content, window) = (piece.is_at_end(), piece.walk().content, piece.walk().window);
            content.map_or(Ok(()), |content| self.output.limits.check(jobs.place(at).saturating_add(content)))?;
            if is_whole && (content.is_some() || jobs.are_in_order()) {
                self.whole(bytes, content, window)?;
                continue;
            }
            let _memory = self.jobs.reserve((bytes.len() as u64).saturating_add(window))?;
            // Those in front of it are done now.
            let at = jobs.place(at);
            let stream = io::BufReader::new(bytes.chain(piece));
            let mut decoder = pieces.decoder(stream).map_err(|source| pieces.failed(at, source))?;
            let end = pass_on(pieces, &mut decoder, at, content, self.output)?;
            drop(decoder);
            self.passed_on(end);
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
        let (pieces, jobs, at) = (self.pieces, self.jobs, self.at);
        let failed = |source| failed_behind(jobs, pieces, at, source);
        let mut block = header.block();
        let mut piece = Piece::new(&mut self.input, &mut block).map_err(failed)?;
        let mut bytes = start(&mut piece, header.bytes().to_vec()).map_err(failed)?;
        if piece.is_at_end() {
            bytes.extend(xz::END_OF_BLOCK);
            self.whole(bytes, Some(block.content), block.dictionary)?;
            return Ok(block);
        }
        let _memory = self.jobs.reserve(bytes.len() as u64 + piece.walk().dictionary)?;
        let at = jobs.place(at);
        let stream = io::BufReader::new(bytes.chain(piece).chain(&xz::END_OF_BLOCK[..]));
        let mut decoder = pieces.decoder(stream).map_err(|source| pieces.failed(at, source))?;
        let end = self.output.fill(pieces.name(), &mut decoder, at)?;
        drop(decoder);
        // What the block has is known only now.
        check_content(pieces, at..end, Some(block.content))?;
        self.passed_on(end);
        Ok(block)
    }

    /// Has a piece decoded whose bytes are all here.
    fn whole(&mut self, bytes: Vec<u8>, content: Option<u64>, past: u64) -> Result<(), Halt> {
        let at = self.jobs.place(self.at);
        let past = content.map_or(past, |content| past.min(content));
        let memory = (bytes.len() as u64).saturating_add(past).saturating_add(EACH);
        if let Some(content) = content {
            self.at = at.saturating_add(content);
            self.output.limits.check(self.at)?;
        }
        let job = Job { at, content, memory, bytes };
        if self.jobs.have_room_for(memory) {
            return self.jobs.send(job);
        }
        let _memory = self.jobs.reserve(memory)?;
        let at = self.jobs.place(at);
        let end = decode(self.pieces, &Job { at, ..job }, self.output)?;
        self.passed_on(end);
        Ok(())
    }

    fn passed_on(&mut self, end: u64) {
        self.at = end;
        self.jobs.passed_on(end);
    }

    fn is_at_end(&mut self) -> Result<bool, Halt> {
        self.ask(|input| input.fill_buf().map(<[u8]>::is_empty))
    }

    fn ask<T>(&mut self, read: impl FnOnce(&mut Input<'a>) -> io::Result<T>) -> Result<T, Halt> {
        let (jobs, pieces, at) = (self.jobs, self.pieces, self.at);
        read(&mut self.input).map_err(|source| failed_behind(jobs, pieces, at, source))
    }
}

/// What is wrong with a stream behind the pieces that were cut from it. In order, those come first: theirs is the error to tell, if there
/// is one, and only they say where in the image this one is.
fn failed_behind(jobs: &Jobs, pieces: Pieces, at: u64, source: io::Error) -> Halt {
    match jobs.are_in_order().then(|| jobs.reserve(0)) {
        Some(Err(halt)) => halt,
        _ => pieces.failed(jobs.place(at), source),
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

#[cfg(test)]
mod tests {
    use crate::stream::in_memory;

    #[test]
    fn what_is_decoded_ahead_takes_no_buffers_of_the_pipeline() {
        let image: Vec<u8> = (0..600_000_u32).flat_map(|n| (n / 3).to_le_bytes()).collect();
        // There are two buffers, of which each frame fills several, and which come back only in the order of the image.
        let frames: Vec<u8> =
            image.chunks(70_001).flat_map(|frame| ::zstd::bulk::compress(frame, 1).unwrap()).collect();
        assert!(in_memory::decode(&frames, image.len() as u64).unwrap() == image);
    }
}
