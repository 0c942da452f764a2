//! `capture-disk`: stores a disk as a compressed image, with digests. The disk is only read.

use slipway_protocol::{CaptureDisk, Outcome};

use crate::action::{Done, Next};
use crate::disk::choose;
use crate::disk::open::Access;
use crate::error::Error;
use crate::machine::Machine;
use crate::report::Tell;
use crate::stream::capture;
use crate::text;

pub(crate) fn run(inputs: &CaptureDisk, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let disk = choose::open(&inputs.disk, Access::Capture, machine, report)?;
    let image = capture::run(&inputs.name, &disk, machine, report)?;
    let summary = format!(
        "captured {} ({}) as {}: {} of zstd data with digest {}; digest of the disk {}",
        disk.path(),
        text::size(image.raw_size),
        image.name,
        text::size(image.size),
        image.digest,
        image.raw_digest
    );
    Ok(Done { outcome: Outcome { summary, image: Some(image), ..Outcome::default() }, next: Next::Continue })
}
