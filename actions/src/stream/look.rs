//! Looks at the beginning of an image without writing anything, so that it can be judged before a run begins.

use std::io::{self, BufRead, BufReader, Read};

use slipway_formats::gzip::Members;
use slipway_formats::image::made_for::HEAD;
use slipway_formats::image::{Format, check_raw};
use slipway_formats::qcow2::Image;

use super::xz;
use crate::error::{Error, ImageError};
use crate::fetch::download::Download;
use crate::fetch::source::Source;
use crate::machine::Machine;

/// Bytes that are read from the source at once.
const CHUNK: usize = 128 << 10;
/// Bytes by which a format is recognised.
const FIRST: u64 = 4 << 10;

/// The beginning of a raw image.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// The image's first bytes, enough to recognise most formats, or the whole image if it is shorter.
    pub(crate) head: Vec<u8>,
    /// Size of the raw image in bytes, if it is known.
    pub(crate) size: Option<u64>,
}

/// Reads the beginning of an image from the current mirror of its source. None if the source cannot be read now, or not
/// by the range requests that qcow2 needs: then the step reports it. Fails if the file is not an image, cannot be
/// decoded, or cannot be checked. `is_raw_checked` is whether the raw image has to be checked.
pub(crate) fn at_beginning(
    source: &mut Source<'_>,
    is_raw_checked: bool,
    machine: &dyn Machine,
) -> Result<Option<Beginning>, Error> {
    let is_checked = source.is_checked();
    let from = source.from(true, false, true);
    let download = Download::new(from, machine, machine.cancel(), Box::new(|_| {}));
    let mut input = BufReader::with_capacity(CHUNK, Fetched { download, failed: false });
    let mut first = Vec::new();
    if input.by_ref().take(FIRST).read_to_end(&mut first).is_err() {
        return Ok(None);
    }
    let format = Format::of(&first).map_err(|format| ImageError::Format { format })?;
    if format == Format::Qcow2 && is_checked && is_raw_checked {
        return Err(ImageError::Qcow2Order.into());
    }
    if format == Format::Qcow2 {
        return of_qcow2(input.into_inner().download);
    }
    let size = input.get_ref().download.total().filter(|_| format == Format::Raw);
    let (mut head, failed) = decode(format, first.chain(&mut input));
    if input.get_ref().failed {
        return Ok(None);
    }
    head.truncate(HEAD);
    check_raw(&head).map_err(|format| ImageError::NotRaw { format })?;
    match failed {
        // The part that was decoded before an error is enough to judge the image.
        Some(source) if head.is_empty() => Err(ImageError::decode(format.name(), 0, source).into()),
        None if head.is_empty() => Err(ImageError::Empty.into()),
        _ => Ok(Some(Beginning { head, size })),
    }
}

/// Decodes as much as is wanted of any format but qcow2.
fn decode(format: Format, mut input: impl BufRead + Send) -> (Vec<u8>, Option<io::Error>) {
    let mut head = Vec::new();
    let mut read = |decoder: &mut dyn Read| decoder.take(HEAD as u64).read_to_end(&mut head);
    let read = match format {
        Format::Raw | Format::Qcow2 => read(&mut input),
        Format::Zstd => ::zstd::Decoder::with_buffer(input).and_then(|mut decoder| read(&mut decoder)),
        Format::Gzip => read(&mut Members::new(input)),
        // The decoder does not distinguish a truncated stream from a complete one.
        Format::Xz => match xz::Decoder::new(input).and_then(|mut decoder| read(&mut decoder)) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            other => other,
        },
        Format::Bzip2 => read(&mut bzip2::bufread::MultiBzDecoder::new(input)),
    };
    (head, read.err())
}

/// Reads the beginning of a qcow2 image by range requests.
fn of_qcow2(mut download: Download<'_, '_>) -> Result<Option<Beginning>, Error> {
    let Ok(len) = download.size() else { return Ok(None) };
    let mut failed = false;
    let mut read_at = |at, buffer: &mut [u8]| {
        download.read_at(at, buffer).map_err(|_| {
            failed = true;
            io::Error::other("the source cannot be read")
        })
    };
    let read = Image::open(len, &mut read_at).and_then(|image| {
        let size = image.size();
        let head = image.bytes(0..size.min(HEAD as u64), &mut read_at)?;
        Ok(Beginning { head, size: Some(size) })
    });
    match read {
        _ if failed => Ok(None),
        Err(source) => Err(ImageError::Qcow2 { source }.into()),
        Ok(beginning) => Ok(Some(beginning)),
    }
}

/// A download as a reader.
struct Fetched<'a, 'b> {
    download: Download<'a, 'b>,
    /// Whether the source could not be read.
    failed: bool,
}

impl Read for Fetched<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.download.read(buffer).map_err(|_| {
            self.failed = true;
            io::Error::other("the source cannot be read")
        })
    }
}
