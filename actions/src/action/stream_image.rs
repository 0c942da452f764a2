//! `stream-image`: writes an image to a disk while fetching it.

use slipway_protocol::StreamImage;
use slipway_protocol::workflow::Location;

use crate::action::Done;
use crate::disk::choose;
use crate::disk::grow::Growth;
use crate::disk::open::{Access, OpenDisk};
use crate::disk::relocate::{Moved, Relocation};
use crate::error::{Error, ImageError, SourceError};
use crate::fetch::source::Source;
use crate::fetch::{self, retry};
use crate::machine::Machine;
use crate::report::{Report, Tell};
use crate::stream::{self, RawImage, Reading, Written};
use crate::target::grow;
use crate::text;

pub(crate) fn run(inputs: &StreamImage, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let mut source = Source::prepare(&inputs.origin(), machine, report)?;
    let raw = RawImage::find(inputs, machine, report)?;
    let disk = choose::open(&inputs.disk, Access::Write, machine, report)?;
    let is_on_disk = |url: &&str| {
        let file = Location::local_path(url).and_then(|path| std::fs::metadata(path).ok());
        file.is_some_and(|file| disk.holds(&file))
    };
    if let Some(url) = source.mirrors.urls().find(is_on_disk) {
        return Err(SourceError::OnTarget { url: fetch::shown(url), disk: disk.path().to_owned() }.into());
    }
    if let Some(raw_size) = raw.size.filter(|raw_size| *raw_size > disk.size()) {
        let (size, needed) = text::two_sizes(disk.size(), raw_size);
        return Err(ImageError::TooLarge { disk: disk.path().to_owned(), size, needed }.into());
    }
    let (written, Relocation { moved, growth }) = write(inputs, &mut source, &raw, &disk, machine, report)?;
    let mut warnings = Vec::new();
    let is_proven_by_map = raw.map.as_ref().is_some_and(|map| map.proves());
    if !(inputs.is_verified() || is_proven_by_map) {
        warnings.push("the image was written without a digest to check it against".to_owned());
    }
    warnings.extend(source.mirrors.warning());
    warnings.extend(written.remarks);
    if let Moved::NotPossible(reason) = moved {
        warnings.push(format!(
            "the backup partition table stays at the end of the image, not at the end of the disk: {reason}"
        ));
    }
    if let Err(errno) = disk.reread_partitions() {
        warnings.push(format!("the kernel does not know the new partitions of {} yet: {errno}", disk.path()));
    }
    let mut summary = format!(
        "wrote {} to {} from {} of {} data",
        text::size(written.raw_size),
        disk.path(),
        text::size(written.fetched),
        written.format
    );
    if let Some(map) = &raw.map {
        let left_out = text::size(map.image_size - map.mapped_size());
        summary.push_str(&format!("; left out {left_out} without data, according to its block map"));
    }
    let path = disk.path().to_owned();
    // A partition cannot be mounted while the disk is held open.
    drop(disk);
    match growth {
        Growth::NotNeeded => {}
        Growth::Left { partition, reason } => summary.push_str(&format!("; did not grow {partition}: {reason}")),
        Growth::Grown(grown) => {
            let (done, warning) = grow::finish(&path, &grown);
            summary.push_str(&format!("; {done}"));
            warnings.extend(warning);
        }
    }
    Ok(Done::go_on(summary, warnings))
}

/// Writes the image. If one place serves something else than the wanted image, tries the next place. Nothing of the
/// wrong data that could be recognised is left on the disk.
fn write(
    inputs: &StreamImage,
    source: &mut Source<'_>,
    raw: &RawImage,
    disk: &OpenDisk,
    machine: &dyn Machine,
    report: Tell,
) -> Result<(Written, Relocation), Error> {
    let is_verified = inputs.is_verified();
    source.at_each_place(
        report,
        |error| is_another_image(error, is_verified),
        |source, report| write_once(inputs, source, raw, disk, machine, report),
    )
}

/// Writes the image from the current place.
fn write_once(
    inputs: &StreamImage,
    source: &mut Source<'_>,
    raw: &RawImage,
    disk: &OpenDisk,
    machine: &dyn Machine,
    report: Tell,
) -> Result<(Written, Relocation), Error> {
    let mut reading = Reading::Stream;
    retry::starting_over(report, |report| match stream::run(inputs, source, raw, reading, disk, machine, report) {
        Err(error) if reading == Reading::Stream && needs_ranges(&error) && !source.is_checked() => {
            let reason = "its blocks are needed in another order than they have in the file";
            report(Report::Note(format!("reading the qcow2 image out of order: {reason}")));
            reading = Reading::Ranges;
            stream::run(inputs, source, raw, reading, disk, machine, report)
        }
        other => other,
    })
}

/// Whether the fetched data is damaged or not the wanted image, so that another place may have the right one. An image
/// that does not fit the disk is detected before its digest is checked, so such an error counts only if the image has a
/// digest (`is_verified`).
pub(super) fn is_another_image(error: &Error, is_verified: bool) -> bool {
    let is_another = match error {
        Error::Source(SourceError::Signature { .. }) => true,
        Error::Image(
            ImageError::TooLarge { .. }
            | ImageError::TableTooLarge { .. }
            | ImageError::BlockSize { .. }
            | ImageError::MadeForOther { .. },
        ) => is_verified,
        Error::Image(error) => matches!(
            error,
            ImageError::Digest { .. }
                | ImageError::MappedDigest { .. }
                | ImageError::RawSize { .. }
                | ImageError::Empty
                | ImageError::Format { .. }
                | ImageError::NotRaw { .. }
                | ImageError::TableDamaged { .. }
                | ImageError::Decode { .. }
                | ImageError::Qcow2 { .. }
        ),
        _ => false,
    };
    is_another && !needs_ranges(error)
}

/// Whether a qcow2 image can be read, but not in one pass.
fn needs_ranges(error: &Error) -> bool {
    use slipway_formats::qcow2::Error::{NotInOrder, TooManyPending};
    let Error::Image(error) = error else { return false };
    match error {
        ImageError::Qcow2Order | ImageError::FirstBlockLate => true,
        ImageError::Qcow2 { source } => matches!(source, NotInOrder { .. } | TooManyPending { .. }),
        _ => false,
    }
}
