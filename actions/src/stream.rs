//! The image pipeline: blocking threads connected by queues. Buffers are recycled.
//!
//! ```text
//! fetch -> [digest] -> decode -> [digest] -> write, write
//! ```
//!
//! Memory use does not depend on the size of the image. It is bounded by the two buffer pools and the history that the
//! decoder keeps. The first failure stops every stage. The head of the disk is only written after all stages have
//! succeeded.

mod block_io;
pub(crate) mod buffers;
pub(crate) mod capture;
mod decode;
pub(crate) mod digest;
mod fetch;
mod halt;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod in_memory;
mod jobs;
pub(crate) mod look;
pub(crate) mod measure;
mod parallel;
mod pieces;
mod pipeline;
pub(crate) mod progress;
mod qcow2_stages;
pub(crate) mod read;
mod read_back;
pub(crate) mod write;
mod xz;
mod zstd;

use slipway_formats::bmap::{self, Bmap};
use slipway_protocol::{StreamImage, Verify};

use self::block_io::Limits;
use self::buffers::BUFFER;
use self::pipeline::{Decode, MORE, Plan, RAW, Sink, Sinks};
use self::progress::Counters;
use self::read_back::ReadBack;
use self::write::Target;
use crate::disk::open::OpenDisk;
use crate::disk::relocate::Relocation;
use crate::error::{Error, SourceError};
use crate::fetch::ranges::RangeCheck;
use crate::fetch::source::Source;
use crate::fetch::verify::Check;
use crate::fetch::{shown, small};
use crate::machine::{Cancel, Machine, Request};
use crate::report::{Report, Tell};
use crate::text;

pub(crate) use self::halt::Halt;
pub(crate) use self::pipeline::Reading;

/// Number of threads that write to a disk. Two with direct writes keep it busy; with one it is idle half of the time.
const WRITERS: u64 = 2;

/// What is known about a raw image before its first byte.
pub(crate) struct RawImage {
    /// Which blocks hold data.
    pub(crate) map: Option<Bmap>,
    /// Size in bytes, as given or from the map.
    pub(crate) size: Option<u64>,
}

impl RawImage {
    /// Fetches the block map of an image, if it has one.
    pub(crate) fn find(image: &StreamImage, machine: &dyn Machine, report: Tell) -> Result<Self, Error> {
        let map = image.bmap.as_ref().map(|url| read_map(url, image, machine, report)).transpose()?;
        let size = image.raw_size.or(map.as_ref().map(|map| map.image_size));
        Ok(Self { map, size })
    }

    /// Returns the checks of the raw image, which must get all of its bytes in order.
    pub(crate) fn checks(&self, image: &StreamImage) -> Vec<Check<'_>> {
        let digest = image.raw_digest.iter().map(|digest| Check::digest("the raw image", digest));
        digest.chain(self.map.as_ref().and_then(RangeCheck::new).map(Check::Ranges)).collect()
    }
}

/// Reads the block map of an image. Blocks outside of the map are not written.
fn read_map(url: &str, image: &StreamImage, machine: &dyn Machine, report: Tell) -> Result<Bmap, Error> {
    let text = small::read(&Request::new(url, image.ca.as_deref()), bmap::MAX_TEXT, machine, report)?;
    let map = bmap::parse(&text).map_err(|source| SourceError::Bmap { url: shown(url), source })?;
    if let Some(raw_size) = image.raw_size.filter(|raw_size| *raw_size != map.image_size) {
        let (found, remedy) = (map.image_size, "give the map of this image, or leave raw_size out");
        let problem =
            format!("has a raw_size of {raw_size} bytes, but a block map for an image of {found} bytes: {remedy}");
        return Err(SourceError::Contradiction { what: "image", problem }.into());
    }
    let (mapped, size) = (text::size(map.mapped_size()), text::size(map.image_size));
    report(Report::Note(format!("the image has data in {mapped} of its {size}, according to {}", shown(url))));
    Ok(map)
}

/// The result of writing an image.
#[derive(Debug)]
pub(crate) struct Written {
    /// Format of the source: its compression, raw or qcow2.
    pub(crate) format: &'static str,
    /// Size of the raw image in bytes.
    pub(crate) raw_size: u64,
    /// Bytes received from the source.
    pub(crate) fetched: u64,
    /// What an operator should know about the partition table of the image.
    pub(crate) remarks: Vec<String>,
}

/// Writes an image to a disk. The head of the disk is written last, after everything was written and checked and the
/// backup of its partition table is in place. After an error the disk is unchanged or has no partition table.
pub(crate) fn run(
    image: &StreamImage,
    source: &mut Source<'_>,
    raw: &RawImage,
    reading: Reading,
    disk: &OpenDisk,
    machine: &dyn Machine,
    report: Tell,
) -> Result<(Written, Relocation), Error> {
    let target = Target::new(disk, raw.map.as_ref());
    // Someone who runs slipway by hand may write an image for another machine.
    let target = if machine.setup().is_operating_system { target.for_this_machine() } else { target };
    let written = stages(image, source, raw, reading, &target, machine, report).and_then(|written| {
        let (relocation, remarks) = target.commit(written.raw_size, image.grow, image.verify)?;
        Ok((Written { remarks, ..written }, relocation))
    });
    if written.is_err() {
        match target.wipe_partial_write() {
            Ok(true) => report(Report::Note(format!("{} has no partition table now and will not boot", disk.path()))),
            Ok(false) => {}
            Err(error) => {
                let reason = text::chain(&error);
                report(Report::Note(format!("the head of {} could not be cleared again: {reason}", disk.path())));
            }
        }
    }
    written
}

fn stages(
    image: &StreamImage,
    source: &mut Source<'_>,
    raw: &RawImage,
    reading: Reading,
    target: &Target,
    machine: &dyn Machine,
    report: Tell,
) -> Result<Written, Error> {
    let disk = target.disk;
    let stream_checks = source.checks()?;
    let raw_checks = raw.checks(image);
    // If the image is read by range requests, only the raw image can be checked.
    let verified = !stream_checks.is_empty() || (reading == Reading::Ranges && image.raw_digest.is_some());
    let limits = Limits { disk: disk.path(), disk_size: disk.size(), raw_size: raw.size };
    let decode = Some(Decode { limits, in_order: !raw_checks.is_empty(), buffers: RAW, more: MORE });
    let from = source.from(verified, false, image.is_verified() || raw.size.is_some());
    let plan = Plan { from, reading, stream_checks, decode, raw_checks, total: raw.size };

    let (stop, counters) = (Cancel::new(), Counters::default());
    let read_back = (image.verify == Verify::Readback).then(|| ReadBack::new(disk, WRITERS, &stop));
    let write = |sink: Sink| target.run(&sink, read_back.as_ref(), &counters);
    let compare = read_back.as_ref().map(|read_back| || read_back.run(BUFFER));
    let beside = compare.as_ref().map(|compare| compare as &(dyn Fn() -> Result<(), Halt> + Sync));
    let sinks = Sinks { threads: WRITERS, each: &write, beside };
    let passed = pipeline::run(plan, &sinks, &stop, &counters, machine, report)?;
    let (format, raw_size) = passed.image.ok_or(Error::Cancelled)?;
    Ok(Written { format: format.name(), raw_size, fetched: counters.fetched.into_inner(), remarks: Vec::new() })
}
