//! Runs one stage alone, to measure the best that the whole pipeline could reach.

use std::time::{Duration, Instant};

use slipway_protocol::{Stage, StreamImage};

use super::block_io::Limits;
use super::buffers::Queue;
use super::halt::Halt;
use super::pipeline::{self, Decode, MORE, Plan, RAW, Sink, Sinks};
use super::progress::{Counters, Meter};
use super::{Reading, WRITERS, write};
use crate::disk::open::OpenDisk;
use crate::error::Error;
use crate::fetch::download::From;
use crate::fetch::mirrors::Mirrors;
use crate::fetch::verify::Check;
use crate::machine::{Cancel, Machine};

/// Runs one stage over a whole source and returns how long that took. The fetch stage delivers the data, so to measure
/// another stage, use a file that is in memory.
///
/// `Fetch` receives, `Digest` computes the digest and fails if it differs from `image.digest`, `Decode` decodes, and
/// `Write` overwrites the disk.
pub(crate) fn run(
    stage: Stage,
    image: &StreamImage,
    disk: Option<&OpenDisk>,
    machine: &dyn Machine,
) -> Result<Duration, Error> {
    let mut mirrors = Mirrors::new(&image.url, &image.mirrors);
    let from = From {
        mirrors: &mut mirrors,
        registries: &mut [],
        ca: image.ca.as_deref(),
        verified: true,
        plain: false,
        whole: true,
    };
    let stream_checks = match (stage, &image.digest) {
        (Stage::Digest, Some(expected)) => vec![Check::digest("the stream", expected)],
        _ => Vec::new(),
    };
    let decode = matches!(stage, Stage::Decode | Stage::Write).then(|| {
        let (path, disk_size) = disk.map_or(("no disk", u64::MAX), |disk| (disk.path(), disk.size()));
        Decode { limits: Limits { disk: path, disk_size, raw_size: None }, in_order: false, buffers: RAW, more: MORE }
    });
    let plan = Plan { from, reading: Reading::Stream, stream_checks, decode, raw_checks: Vec::new(), total: None };
    let (stop, counters) = (Cancel::new(), Counters::default());
    let target = disk.map(|disk| write::Target::new(disk, None));
    let sink = |sink: Sink| match &target {
        Some(target) => target.run(&sink, None, &counters),
        None => drain(sink.queue, sink.pool, sink.meter),
    };
    let sinks = Sinks { threads: WRITERS, each: &sink, beside: None };
    let began = Instant::now();
    pipeline::run(plan, &sinks, &stop, &counters, machine, &mut |_| {})?;
    disk.map_or(Ok(()), OpenDisk::flush).map(|()| began.elapsed())
}

fn drain(last: &Queue, pool: &Queue, meter: &Meter) -> Result<(), Halt> {
    while let Some(buffer) = last.recv(meter)? {
        pool.recycle(buffer);
    }
    Ok(())
}
