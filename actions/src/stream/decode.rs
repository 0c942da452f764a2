//! Detects the compression of the source and decodes it to raw blocks.

use std::rc::Rc;

use slipway_formats::gzip::Members;
use slipway_formats::image::Format;

use super::block_io::{Input, Output};
use super::buffers::BUFFER;
use super::halt::Halt;
use super::parallel::{self, Pieces};
use super::qcow2_stages;
use crate::error::{Error, ImageError};

/// Sends the raw image block by block. `fetch_total` is the size of the source, if known. Returns the format and the
/// size of the image in bytes.
///
/// It is an error if the compressed stream is truncated or is followed by other data, except for zeros after gzip.
pub(super) fn run(
    mut input: Input,
    output: &Output,
    fetch_total: impl FnOnce() -> Option<u64>,
) -> Result<(Format, u64), Halt> {
    let unsuitable = |format| Halt::Failed(Error::Image(ImageError::Format { format }));
    let format = Format::of(input.head()?).map_err(unsuitable)?;
    let stopped = Rc::clone(&input.stopped);
    if matches!(format, Format::Raw | Format::Gzip | Format::Bzip2) {
        // These decoders need little memory.
        output.pool.add(output.more, BUFFER);
    }
    let size = match format {
        Format::Raw => {
            fetch_total().map_or(Ok(()), |total| output.limits.check(total))?;
            input.pass_on(output)
        }
        Format::Zstd => parallel::run(Pieces::Zstd, input, output),
        Format::Xz => parallel::run(Pieces::Xz, input, output),
        Format::Qcow2 => qcow2_stages::in_file_order(input, output),
        Format::Gzip => output.fill(format.name(), &mut Members::new(input), 0),
        Format::Bzip2 => output.fill(format.name(), &mut bzip2::bufread::MultiBzDecoder::new(input), 0),
    };
    // Decoders return errors of their input without the distinction between stopped and failed.
    let size = size.map_err(|halt| if stopped.get() { Halt::Stopped } else { halt })?;
    output.limits.check_end(size)?;
    output.out.close();
    Ok((format, size))
}
