//! One stage by itself, as fast as it goes: what the whole pipeline could reach at best.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use slipway_protocol::{Stage, StreamImage};

use super::buffers::Queue;
use super::progress::{Counters, Meter};
use super::resume::Resume;
use super::{BUFFER, FETCHED, Halt, RAW, Shared, WRITERS, decode, digest, fetch, spawn, write};
use crate::disk::open::OpenDisk;
use crate::error::Error;
use crate::fetch::mirrors::Mirrors;
use crate::fetch::retry;
use crate::fetch::verify::Check;
use crate::machine::Machine;

/// Runs one stage over the whole of a source and returns how long that took. What the stage works on comes by the fetch stage,
/// so to measure another one, give it a file that is in memory.
///
/// `Fetch` receives, `Digest` computes that of `image.digest` and fails if it is another, `Decode` decodes, and `Write` writes
/// to the disk, which is then no longer what it was.
pub(crate) fn run(
    stage: Stage,
    image: &StreamImage,
    disk: Option<&OpenDisk>,
    machine: &dyn Machine,
) -> Result<Duration, Error> {
    let shared = Shared::new();
    let stop = &shared.stop;
    let (counters, meter) = (Counters::default(), Meter::new(stage, 1));
    let (fetched_pool, fetched, checked) = (Queue::pool(stop, FETCHED, BUFFER), Queue::new(stop), Queue::new(stop));
    let (raw_pool, raw) = (Queue::pool(stop, RAW, BUFFER), Queue::new(stop));
    let target = disk.map(|disk| write::Target::new(disk, None));
    let mut place = Mirrors::new(&image.url, &image.mirrors);
    let began = Instant::now();
    thread::scope(|scope| {
        let (notes, _told) = mpsc::channel();
        let mirrors = &mut place;
        let (counters, meter, target) = (&counters, &meter, &target);
        let (fetched_pool, fetched, checked, raw_pool, raw) = (&fetched_pool, &fetched, &checked, &raw_pool, &raw);
        spawn(scope, &shared, &notes, move || {
            let resume = Resume {
                mirrors,
                verified: true,
                note: Box::new(|_| {}),
                pause: retry::pause,
                patience: machine.patience(),
            };
            let (ca, registries, whole) = (image.ca.as_deref(), &mut [], true);
            fetch::Fetch { machine, resume, registries, ca, whole, counters, meter, stop }.run(fetched_pool, fetched)
        });
        let (last, pool) = match (stage, &image.digest) {
            (Stage::Decode | Stage::Write, _) => {
                spawn(scope, &shared, &notes, move || {
                    let disk_size = disk.map_or(u64::MAX, OpenDisk::size);
                    let path = disk.map_or("no disk", OpenDisk::path);
                    let limits = decode::Limits { url: &image.url, disk: path, disk_size, raw_size: None };
                    let output = decode::Output { limits: &limits, pool: raw_pool, out: raw, meter, in_order: false };
                    decode::run(decode::Input::new(fetched, fetched_pool, meter), &output, || None)
                });
                (raw, raw_pool)
            }
            (Stage::Digest, Some(expected)) => {
                spawn(scope, &shared, &notes, move || {
                    digest::run(vec![Check::digest("the stream", expected)], fetched, checked, meter)
                });
                (checked, fetched_pool)
            }
            _ => (fetched, fetched_pool),
        };
        for _ in 0..WRITERS {
            spawn(scope, &shared, &notes, move || match target {
                Some(target) => target.run(last, pool, None, counters, meter),
                None => drain(last, pool, meter),
            });
        }
    });
    match shared.into_failure() {
        Some(error) => Err(error),
        None => disk.map_or(Ok(()), OpenDisk::flush).map(|()| began.elapsed()),
    }
}

fn drain(last: &Queue, pool: &Queue, meter: &Meter) -> Result<(), Halt> {
    while let Some(buffer) = last.recv(meter)? {
        pool.recycle(buffer);
    }
    Ok(())
}
