//! Judges the image of a step by its first bytes, and by the digests and maps that will be used to check it.

use std::env::consts::ARCH;

use slipway_formats::architecture;
use slipway_formats::image::made_for::MadeFor;
use slipway_formats::partition_table::Fault;
use slipway_protocol::{Disk, StreamImage};

use crate::action::stream_image::is_another_image;
use crate::error::{Error, ImageError, is_transient};
use crate::fetch::source::Source;
use crate::machine::Machine;
use crate::report::{Report, Tell};
use crate::stream::RawImage;
use crate::stream::look::{Beginning, at_beginning};
use crate::text;

/// Returns why an image cannot be installed on this machine and this disk, if that is certain. `disk` is `None` if the
/// disk is not known yet.
pub(super) fn problem(image: &StreamImage, disk: Option<&Disk>, machine: &dyn Machine) -> Option<String> {
    let judged = judge(image, disk, machine);
    judged
        .err()
        .filter(|error| !is_transient(error) && !matches!(error, Error::Cancelled))
        .map(|error| text::chain(&error))
}

/// Returns the numbers of all partitions of an image, if its beginning shows them.
pub(super) fn numbers(image: &StreamImage, machine: &dyn Machine) -> Option<Vec<u32>> {
    judge(image, None, machine).ok().flatten()?.numbers
}

fn judge(image: &StreamImage, disk: Option<&Disk>, machine: &dyn Machine) -> Result<Option<MadeFor>, Error> {
    let report: Tell = &mut |_: Report| {};
    let mut source = Source::prepare(&image.origin(), machine, report)?;
    let raw = RawImage::find(image, machine, report)?;
    if let (Some(size), Some(disk)) = (raw.size, disk)
        && size > disk.size
    {
        let (size, needed) = text::two_sizes(disk.size, size);
        return Err(ImageError::TooLarge { disk: disk.path.clone(), size, needed }.into());
    }
    let (is_verified, is_raw_checked) = (image.is_verified(), !raw.checks(image).is_empty());
    source.at_each_place(
        report,
        |error| is_another_image(error, is_verified),
        |source, _| match at_beginning(source, is_raw_checked, machine)? {
            Some(beginning) => judge_beginning(&beginning, disk).map(Some),
            None => Ok(None),
        },
    )
}

fn judge_beginning(Beginning { head, size }: &Beginning, disk: Option<&Disk>) -> Result<MadeFor, Error> {
    let mut read = |offset: u64, len: usize| {
        let start = usize::try_from(offset).ok()?;
        head.get(start..start.checked_add(len)?).map(<[u8]>::to_vec)
    };
    let (made_for, _) = MadeFor::of(*size, &mut read).map_err(damaged)?;
    let of_disk = |disk: &Disk| made_for.mismatch(&disk.path, disk.size, disk.logical_block.into());
    let reason = architecture::mismatch(&made_for.machines, ARCH).or_else(|| disk.and_then(of_disk));
    match reason {
        Some(reason) => Err(ImageError::MadeForOther { reason }.into()),
        None => Ok(made_for),
    }
}

/// Returns the error for a fault of an image. No fault is about a disk here, because none was passed.
fn damaged(fault: Fault) -> Error {
    match fault {
        Fault::Damaged { reason, remedy } => ImageError::TableDamaged { reason, remedy }.into(),
        other => ImageError::MadeForOther { reason: other.to_string() }.into(),
    }
}
