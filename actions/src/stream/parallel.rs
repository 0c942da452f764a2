//! Decodes the pieces of a stream with several threads. If the order of the image does not matter, pieces are written
//! to the disk in the order in which they are finished, after the first piece. The order matters if there is a digest
//! of the raw image or if the image is read as a stream. Then each thread decodes ahead into its own memory, and only
//! takes buffers of the pipeline once everything before its piece was passed on. So later pieces never hold the buffers
//! that earlier ones wait for.
//!
//! The place of a frame that does not state the size of its content is only known once all earlier frames are done, so
//! such streams are decoded in order, too. A piece that is too large to be kept in memory is decoded while it arrives,
//! like a stream of one piece.
//!
//! Memory use is the same in both cases: [`MEMORY`], and [`MAX_PIECE`] for the piece that is being split off, 31 MiB
//! together. In order, [`AHEAD`] per thread is taken from [`MEMORY`], so that only one of the largest pieces is decoded
//! at a time. The loss is small: a block of `xz -T` has 24 MiB of content, and not much more of it could be kept. While
//! a piece is decoded as it arrives, the memory that it leaves is lent to the buffers of the pipeline.

use std::io::{self, BufRead, Read};
use std::thread;

use super::block_io::{Input, Output};
use super::buffers::{BUFFER, Lent};
use super::halt::{Halt, StopOnPanic};
use super::jobs::{Job, Jobs, Reserved, Turn};
use super::pieces::Piece;
use super::{xz, zstd};
use crate::disk::Buffer;
use crate::error::{Error, ImageError};

/// Maximum size of a piece that is kept in memory, in bytes. `xz -T` makes blocks of three times its dictionary, 24 MiB
/// by default, before compression.
const MAX_PIECE: u64 = 5 << 20;
/// Step by which the memory for a piece grows, in bytes.
const GROWTH: usize = 512 << 10;
/// Memory in bytes for pieces that are waiting or being decoded: their bytes, the history of the decoders, and content
/// decoded ahead. Enough for two of the largest pieces that `xz -T` makes by default, whose decoders keep 8 MiB.
const MEMORY: u64 = 2 * ((8 << 20) + MAX_PIECE + EACH);
/// Bytes counted in addition for each piece, however small it is. Otherwise there could be millions of pieces.
const EACH: u64 = 32 << 10;
/// Maximum number of threads. More would have no memory to work with.
const MAX_WORKERS: usize = 8;
/// Maximum number of threads if the order matters. They are as fast as a digest of the raw image.
const MAX_IN_ORDER: usize = 3;
/// Maximum content that a thread decodes ahead of its turn, in bytes. A frame made by `capture-disk` has half as much.
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
    // One more in order than there are processors, because one may be waiting for its turn.
    let workers = if in_order { (cores + 1).min(MAX_IN_ORDER) } else { cores.min(MAX_WORKERS) };
    let ahead = in_order.then_some((MAX_IN_ORDER * AHEAD) as u64);
    let jobs = Jobs::new(MEMORY - ahead.unwrap_or(0), ahead, output.out.stop());
    let size = thread::scope(|scope| {
        let _stop_on_panic = StopOnPanic(output.out.stop());
        let work = || {
            let mut ahead = None;
            jobs.work(|job, turn| match in_order {
                true => {
                    let ahead = ahead.get_or_insert_with(|| Buffer::new(AHEAD));
                    decode_in_turn(pieces, &job, ahead, &turn, output)
                }
                false => decode(pieces, &job, &jobs, output),
            });
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let splitter = Splitter { pieces, input, output, jobs: &jobs, at: 0 };
        let size = match pieces {
            Pieces::Zstd => splitter.split_zstd(),
            Pieces::Xz => splitter.split_xz(),
        };
        jobs.close();
        // A scope ends when the closures of its threads end, but the threads may live a moment longer. If the process
        // ends then, a leak check as in fuzz targets would report their memory as lost.
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
        Halt::Failed(Error::Image(ImageError::decode(self.name(), raw_bytes, source)))
    }

    fn decoder<'a>(self, bytes: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Pieces::Zstd => Box::new(::zstd::Decoder::with_buffer(bytes)?.single_frame()),
            Pieces::Xz => Box::new(xz::Decoder::new(bytes)?),
        })
    }
}

/// Decodes a complete piece. Returns the end of its content.
fn decode(pieces: Pieces, job: &Job, jobs: &Jobs, output: &Output) -> Result<u64, Halt> {
    jobs.wait_for_beginning(job.at)?;
    let mut decoder = pieces.decoder(job.bytes.as_slice()).map_err(|source| pieces.failed(job.at, source))?;
    pass_on(pieces, &mut decoder, job.at, job.content, output)
}

/// As [`decode`], in order: until its turn, the piece is only decoded into `ahead`. Errors wait for the turn too, so
/// that the first error in the image is reported.
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

/// Passes on the content of a decoder, starting at an offset of the image. It must have the size that the piece states,
/// if any. Returns the end.
fn pass_on(pieces: Pieces, input: &mut dyn Read, at: u64, content: Option<u64>, output: &Output) -> Result<u64, Halt> {
    let end = output.fill(pieces.name(), input, at)?;
    check_content(pieces, at..end, content)?;
    Ok(end)
}

fn check_content(pieces: Pieces, found: std::ops::Range<u64>, expected: Option<u64>) -> Result<(), Halt> {
    let len = found.end - found.start;
    match expected.filter(|expected| *expected != len) {
        None => Ok(()),
        Some(expected) => {
            let reason = format!("a piece says that it has {expected} bytes, but has {len}");
            Err(pieces.failed(found.end, io::Error::new(io::ErrorKind::InvalidData, reason)))
        }
    }
}

/// Splits a stream into pieces.
struct Splitter<'a, 'b> {
    pieces: Pieces,
    input: Input<'a>,
    output: &'b Output<'b>,
    /// Where complete pieces go.
    jobs: &'b Jobs,
    /// Offset in the image at which the next piece's content begins. Not used in order: then [`Jobs`] keeps track.
    at: u64,
}

impl<'a> Splitter<'a, '_> {
    fn split_zstd(mut self) -> Result<u64, Halt> {
        while !self.is_at_end()? {
            let (pieces, jobs, at) = (self.pieces, self.jobs, self.at);
            let failed = |source| failed_behind(jobs, pieces, at, source);
            let mut frame = zstd::Frame::default();
            let mut piece = Piece::new(&mut self.input, &mut frame).map_err(failed)?;
            let bytes = start(&mut piece, Vec::new()).map_err(failed)?;
            let (is_whole, header) = (piece.is_at_end(), piece.walk().header);
            let (content, window) = (header.content, header.window);
            content.map_or(Ok(()), |content| self.output.limits.check(jobs.place(at).saturating_add(content)))?;
            piece.walk().check().map_err(failed)?;
            if is_whole && (content.is_some() || jobs.are_in_order()) {
                self.whole(bytes, content, window)?;
                continue;
            }
            let _memory = reserve_all(jobs, self.output, (bytes.len() as u64).saturating_add(window))?;
            // In order, all earlier pieces are done now.
            let at = jobs.place(at);
            jobs.wait_for_beginning(at)?;
            let stream = io::BufReader::new(bytes.chain(piece));
            let mut decoder = pieces.decoder(stream).map_err(|source| pieces.failed(at, source))?;
            let end = pass_on(pieces, &mut decoder, at, content, self.output)?;
            drop(decoder);
            self.passed_on(end);
        }
        Ok(self.at)
    }

    fn split_xz(mut self) -> Result<u64, Halt> {
        while !self.is_at_end()? {
            let mut header = self.ask(xz::Header::read)?;
            while self.ask(xz::is_block)? {
                let block = self.split_xz_block(&header)?;
                header.add(&block);
            }
            self.ask(|input| header.end(input))?;
            self.ask(xz::skip_padding)?;
        }
        Ok(self.at)
    }

    fn split_xz_block(&mut self, header: &xz::Header) -> Result<xz::Block, Halt> {
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
        let _memory = reserve_all(jobs, self.output, bytes.len() as u64 + piece.walk().dictionary)?;
        let at = jobs.place(at);
        jobs.wait_for_beginning(at)?;
        let stream = io::BufReader::new(bytes.chain(piece).chain(&xz::END_OF_BLOCK[..]));
        let mut decoder = pieces.decoder(stream).map_err(|source| pieces.failed(at, source))?;
        let end = self.output.fill(pieces.name(), &mut decoder, at)?;
        drop(decoder);
        // The size that the block states is only known now.
        check_content(pieces, at..end, Some(block.content))?;
        self.passed_on(end);
        Ok(block)
    }

    /// Queues a complete piece for decoding.
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
        let end = decode(self.pieces, &Job { at, ..job }, self.jobs, self.output)?;
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

/// Reserves the memory for a piece that is decoded while it arrives. Meanwhile no other piece is split off, so the
/// memory that is left goes to the buffers of the pipeline, where it absorbs the stalls of a slow disk.
fn reserve_all<'a>(jobs: &'a Jobs, output: &'a Output, memory: u64) -> Result<(Lent<'a>, Reserved<'a>), Halt> {
    let mut reserved = jobs.reserve(memory)?;
    let more = (reserved.add_the_rest() as usize / BUFFER).min(output.more);
    Ok((output.pool.lend(more, BUFFER), reserved))
}

/// Returns the error of a stream that failed behind the pieces already split from it. In order, waits for these pieces:
/// if one failed, its error is returned, and only their content tells where in the image this error is.
fn failed_behind(jobs: &Jobs, pieces: Pieces, at: u64, source: io::Error) -> Halt {
    match jobs.are_in_order().then(|| jobs.reserve(0)) {
        Some(Err(halt)) => halt,
        _ => pieces.failed(jobs.place(at), source),
    }
}

/// Appends a piece to `bytes`, which must precede it. Reads at most [`MAX_PIECE`] bytes of the piece.
fn start(piece: &mut impl Read, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut piece = piece.take(MAX_PIECE);
    loop {
        // By default a vector doubles its size, which could need twice the memory.
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
        // There are only two buffers, and each frame fills several. They only return in the order of the image.
        let frames: Vec<u8> =
            image.chunks(70_001).flat_map(|frame| ::zstd::bulk::compress(frame, 1).unwrap()).collect();
        assert!(in_memory::decode(&frames, image.len() as u64).unwrap() == image);
    }

    #[test]
    fn the_beginning_of_the_image_comes_first_however_long_it_takes() {
        let first: Vec<u8> = (0..300_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let frame = |bytes: &[u8]| ::zstd::bulk::compress(bytes, 1).unwrap();
        let skippable = [0x50, 0x2A, 0x4D, 0x18, 1, 0, 0, 0, 7];
        let stream = [&skippable[..], &frame(&[]), &frame(&first), &frame(&[0; 100]).repeat(50)].concat();
        for _ in 0..20 {
            let mut blocks = in_memory::blocks(&stream, 2 << 20, false).unwrap();
            assert_eq!(blocks[0].0, 0, "the image is judged by its first block");
            blocks.sort();
            let image: Vec<u8> = blocks.into_iter().flat_map(|(_, bytes)| bytes).collect();
            assert!(image == [&first[..], &[0; 5000]].concat());
        }
    }
}
