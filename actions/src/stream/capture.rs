//! The pipeline in the other direction: from a disk to an image.
//!
//! ```text
//! read -> digest of the disk -> compress, compress -> digest of the image, send
//! ```
//!
//! The image is a sequence of zstd frames that each state their size, so that several threads can decode it later. Each
//! compressing thread has its own lane. Frames are dealt to the lanes and collected from them in turn, so they keep
//! their order. Memory use is about 30 MiB: the buffers below, and the data being sent, twice.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;
use std::{iter, thread};

use slipway_protocol::{Algorithm, CapturedImage, Digest, MAX_REQUEST_BYTES, Stage};
use zstd::bulk::Compressor;

use super::buffers::Queue;
use super::halt::Halt;
use super::pipeline::{Shared, joined, spawn, watch};
use super::progress::{Counters, Meter, Watch};
use crate::disk::Buffer;
use crate::disk::open::OpenDisk;
use crate::error::{CaptureError, Error};
use crate::fetch::retry::{self, Outage};
use crate::fetch::verify;
use crate::machine::{Cancel, Machine, Upload, UploadError};
use crate::report::{Report, Tell};
use crate::text;

/// Bytes of the disk per frame and per read.
const FRAME: usize = 2 << 20;
/// Maximum number of compressing threads. They are as fast as a disk or a network of 10 Gbit/s.
const MOST_LANES: usize = 3;
/// How many frames a lane may be ahead of the sender.
const PACKED: usize = 1;
/// Compression level, the default of zstd. Most of the time is spent waiting for the upload anyway.
const LEVEL: i32 = 3;
/// Bytes per upload request.
const PIECE: usize = MAX_REQUEST_BYTES;
/// Granularity for locating a failed read, in bytes.
const BLOCK: usize = 4096;

/// Stores a whole disk as an image. If it fails, there is no image.
pub(crate) fn run(name: &str, disk: &OpenDisk, machine: &dyn Machine, report: Tell) -> Result<CapturedImage, Error> {
    if disk.size() == 0 {
        let source = std::io::Error::other("it has a size of 0 bytes");
        return Err(Error::ReadDisk { disk: disk.path().to_owned(), offset: 0, source });
    }
    let cancel = machine.cancel();
    let patience = machine.setup().patience;
    let mut tries = Tries::new(name, patience, cancel);
    let mut upload = loop {
        match machine.upload(name) {
            Ok(upload) => break upload,
            Err(error) => tries.failed(error, &mut |note| report(Report::Note(note))).map_err(why)?,
        }
    };
    let image = stages(name, disk, upload.as_mut(), machine, report)?;
    let mut tries = Tries { stored: image.size, ..Tries::new(name, patience, cancel) };
    while let Err(error) = upload.commit(&image) {
        tries.failed(error, &mut |note| report(Report::Note(note))).map_err(why)?;
    }
    Ok(image)
}

fn why(halt: Halt) -> Error {
    match halt {
        Halt::Stopped => Error::Cancelled,
        Halt::Failed(error) => error,
    }
}

/// A compressing thread and its queues.
struct Lane {
    raw: Queue,
    pool: Queue,
    packed: Queue,
}

impl Lane {
    fn new(stop: &Cancel) -> Self {
        let largest = zstd::compress_bound(FRAME).next_multiple_of(BLOCK);
        Self { raw: Queue::new(stop), pool: Queue::pool(stop, PACKED, largest), packed: Queue::new(stop) }
    }
}

fn stages(
    name: &str,
    disk: &OpenDisk,
    upload: &mut dyn Upload,
    machine: &dyn Machine,
    report: Tell,
) -> Result<CapturedImage, Error> {
    let shared = Shared::new(Cancel::new());
    let stop = &shared.stop;
    let counters = Counters::default();
    let count = thread::available_parallelism().map_or(1, usize::from).min(MOST_LANES);
    let lanes: Vec<Lane> = iter::repeat_with(|| Lane::new(stop)).take(count).collect();
    let (pool, read) = (Queue::pool(stop, count + 2, FRAME), Queue::new(stop));
    let read_meter = Meter::new(Stage::Read, 1);
    let digest_meter = Meter::new(Stage::Digest, 1);
    let encode_meter = Meter::new(Stage::Encode, count as u64);
    let send_meter = Meter::new(Stage::Send, 1);
    let meters = [&read_meter, &digest_meter, &encode_meter, &send_meter];

    let (raw_digest, sent) = thread::scope(|scope| {
        let (notes, told) = mpsc::channel::<String>();
        let (lanes, pool, read, counters) = (&lanes, &pool, &read, &counters);
        let [read_meter, digest_meter, encode_meter, send_meter] = meters;
        spawn(scope, &shared, &notes, move || read_all(disk, pool, read, counters, read_meter));
        let raw_digest = spawn(scope, &shared, &notes, move || deal(read, lanes, digest_meter));
        for lane in lanes {
            spawn(scope, &shared, &notes, move || compress(disk, lane, pool, encode_meter));
        }
        let send_notes = notes.clone();
        let sent = spawn(scope, &shared, &notes, move || {
            let note = |text| _ = send_notes.send(text);
            Sender {
                upload,
                counters,
                tries: Tries::new(name, machine.setup().patience, stop),
                note,
                context: verify::context(Algorithm::Sha256),
            }
            .run(lanes, send_meter)
        });
        drop(notes);
        watch(&told, Watch::new(counters, &meters, Some(disk.size())), machine, &shared, report);
        (joined(raw_digest), joined(sent))
    });
    if let Some(error) = shared.into_failure() {
        return Err(error);
    }
    let (raw_digest, (size, digest)) = raw_digest.zip(sent).ok_or(Error::Cancelled)?;
    Ok(CapturedImage { name: name.to_owned(), size, digest, raw_size: disk.size(), raw_digest })
}

fn read_all(disk: &OpenDisk, pool: &Queue, out: &Queue, counters: &Counters, meter: &Meter) -> Result<(), Halt> {
    let mut offset = 0;
    while offset < disk.size() {
        let mut buffer = pool.take(meter)?;
        buffer.place(offset);
        let len = (disk.size() - offset).min(FRAME as u64);
        if let Err(error) = disk.read_past_cache(&mut buffer, len as usize) {
            return Err(Halt::Failed(first_failure(disk, buffer, len, error)));
        }
        offset += len;
        counters.written.store(offset, Relaxed);
        out.send(buffer);
    }
    out.close();
    Ok(())
}

/// Finds the first block of a piece that cannot be read. Returns its error instead of that of the whole piece.
fn first_failure(disk: &OpenDisk, mut buffer: Buffer, len: u64, error: Error) -> Error {
    let start = buffer.offset();
    let mut blocks = (start..start + len).step_by(BLOCK);
    let failure = blocks.find_map(|at| {
        buffer.place(at);
        disk.read_past_cache(&mut buffer, (start + len - at).min(BLOCK as u64) as usize).err()
    });
    failure.unwrap_or(error)
}

/// Computes the digest of the disk and deals its frames to the lanes in turn.
fn deal(input: &Queue, lanes: &[Lane], meter: &Meter) -> Result<Digest, Halt> {
    let mut context = verify::context(Algorithm::Sha256);
    for lane in lanes.iter().cycle() {
        let Some(buffer) = input.recv(meter)? else { break };
        context.update(buffer.filled());
        lane.raw.send(buffer);
    }
    lanes.iter().for_each(|lane| lane.raw.close());
    Ok(verify::finish(context))
}

fn compress(disk: &OpenDisk, lane: &Lane, pool: &Queue, meter: &Meter) -> Result<(), Halt> {
    let failed =
        |offset| move |source| Error::Capture(CaptureError::Compress { disk: disk.path().to_owned(), offset, source });
    let mut compressor = Compressor::new(LEVEL).map_err(failed(0))?;
    compressor.include_checksum(true).map_err(failed(0))?;
    while let Some(raw) = lane.raw.recv(meter)? {
        let mut packed = lane.pool.take(meter)?;
        let len = compressor.compress_to_buffer(raw.filled(), packed.spare()).map_err(failed(raw.offset()))?;
        packed.advance(len);
        pool.recycle(raw);
        lane.packed.send(packed);
    }
    lane.packed.close();
    Ok(())
}

/// Collects the frames from the lanes in turn and sends them.
struct Sender<'a, F> {
    upload: &'a mut dyn Upload,
    counters: &'a Counters,
    tries: Tries<'a>,
    note: F,
    context: ring::digest::Context,
}

impl<F: FnMut(String)> Sender<'_, F> {
    /// Collects and sends all frames. Returns the size of the image in bytes, and its digest.
    fn run(mut self, lanes: &[Lane], meter: &Meter) -> Result<(u64, Digest), Halt> {
        let mut piece = Vec::with_capacity(PIECE);
        for lane in lanes.iter().cycle() {
            let Some(packed) = lane.packed.recv(meter)? else { break };
            self.context.update(packed.filled());
            let mut rest = packed.filled();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(PIECE - piece.len()));
                piece.extend_from_slice(now);
                rest = later;
                if piece.len() == PIECE {
                    self.send(&piece)?;
                    piece.clear();
                }
            }
            lane.pool.recycle(packed);
        }
        self.send(&piece)?;
        Ok((self.tries.stored, verify::finish(self.context)))
    }

    fn send(&mut self, piece: &[u8]) -> Result<(), Halt> {
        let mut rest = piece;
        while !rest.is_empty() {
            let offset = self.tries.stored;
            match self.upload.put(offset, rest) {
                Ok(stored) => {
                    let new = stored.checked_sub(offset).filter(|new| *new > 0);
                    let Some(left) = new.and_then(|new| rest.get(usize::try_from(new).ok()?..)) else {
                        let name = self.tries.name.to_owned();
                        let lost = CaptureError::UploadLost { name, sent: offset, stored };
                        return Err(Halt::Failed(Error::Capture(lost)));
                    };
                    self.tries.stored(stored);
                    self.counters.fetched.store(stored, Relaxed);
                    rest = left;
                }
                Err(error) => self.tries.failed(error, &mut self.note)?,
            }
        }
        Ok(())
    }
}

/// How much of an image is stored, and the current series of failures.
struct Tries<'a> {
    name: &'a str,
    stored: u64,
    outage: Outage,
    patience: Duration,
    stop: &'a Cancel,
}

impl<'a> Tries<'a> {
    fn new(name: &'a str, patience: Duration, stop: &'a Cancel) -> Self {
        Self { name, stored: 0, outage: Outage::default(), patience, stop }
    }

    fn stored(&mut self, bytes: u64) {
        self.stored = bytes;
        self.outage = Outage::default();
    }

    /// Waits until it is time for another try. Fails if there should be no other try.
    fn failed(&mut self, error: UploadError, note: &mut dyn FnMut(String)) -> Result<(), Halt> {
        let UploadError { source, is_transient } = error;
        if self.stop.is_set() {
            return Err(Halt::Stopped);
        }
        let (name, offset) = (self.name.to_owned(), self.stored);
        if !is_transient {
            return Err(Halt::Failed(Error::Capture(CaptureError::Upload { name, source, is_transient })));
        }
        self.outage.failed();
        let (failures, lasted) = (self.outage.failures(), self.outage.lasted());
        if lasted >= self.patience {
            let gave_up = CaptureError::UploadGaveUp { name, offset, failures, seconds: lasted.as_secs(), source };
            return Err(Halt::Failed(Error::Capture(gave_up)));
        }
        note(format!(
            "storing the image {name} was interrupted at byte {offset} and continues: {}",
            text::chain(source.as_ref())
        ));
        if retry::sleep(retry::usual_pause(failures), self.stop) { Ok(()) } else { Err(Halt::Stopped) }
    }
}
