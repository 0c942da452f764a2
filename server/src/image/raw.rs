//! Decodes a file once when it is added, so that an image that would fail on a machine, after its disk was erased,
//! fails here. Of qcow2 only the tables and what the partition table needs are read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use liblzma::stream::{CONCATENATED, Stream};
use sha2::{Digest as _, Sha256};
use slipway_formats::gzip::Members;
use slipway_formats::image::{Format, check_raw};
use slipway_formats::qcow2::{HEADER_LEN, Header, Image};
use slipway_formats::zstd::FrameHeader;
use slipway_protocol::{Digest, ErrorCode};

use super::table::{self, Ends};
use super::{CHUNK_BYTES, sha256};
use crate::error::Error;

/// Memory limit of the xz decoder, in bytes. A machine has no more for it either.
const XZ_MEMORY: u64 = 80 << 20;
/// What the decoders say of data that needs more memory.
const ZSTD_MEMORY: &str = "Frame requires too much memory for decoding";
const XZ_NEEDS_MORE: &str = "memory limit reached";

/// The raw image.
#[derive(Debug)]
pub(super) struct Raw {
    /// Size in bytes.
    pub(super) size: u64,
    /// SHA-256; none for qcow2, which is not read as a whole.
    pub(super) digest: Option<Digest>,
    /// What the operator should know of its partition table.
    pub(super) warnings: Vec<String>,
}

/// Decodes a file to its end. `name` is the path that the operator gave. `progress` is called with the bytes read so
/// far. Fails if writing the image would fail: if the file is clearly not an image, is damaged, ends too early, has
/// data after its end, or has a damaged partition table.
pub(super) fn decode(file: &Path, name: &Path, progress: &mut dyn FnMut(u64)) -> Result<Raw, Error> {
    let failed = |doing| move |source| Error::File { doing, path: name.to_owned(), source };
    let open = File::open(file).map_err(failed("opening the copy of"))?;
    let len = open.metadata().map_err(failed("reading the size of"))?.len();
    let random = open.try_clone().map_err(failed("opening the copy of"))?;
    let mut input = BufReader::with_capacity(CHUNK_BYTES, Counted { file: open, read: 0, progress });
    let head = input.fill_buf().map_err(failed("reading the copy of"))?;
    let format = Format::of(head).map_err(|found| no_image(name, &format!("is {found}")))?;
    if let Some(Err(reason)) = FrameHeader::of(head).map(|header| header.check()) {
        return Err(Error::refused(
            ErrorCode::InvalidRequest,
            format!("the image {name:?} cannot be installed: {reason}"),
        ));
    }
    let decoder: Box<dyn Read + '_> = match format {
        Format::Qcow2 => return of_qcow2(&random, head, len, name),
        Format::Raw => Box::new(input),
        Format::Zstd => Box::new(zstd::Decoder::with_buffer(input).map_err(failed("decoding"))?),
        Format::Gzip => Box::new(Members::new(input)),
        Format::Xz => {
            let stream = Stream::new_stream_decoder(XZ_MEMORY, CONCATENATED);
            let stream = stream.map_err(|source| failed("decoding")(source.into()))?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(input, stream))
        }
        Format::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(input)),
    };
    let (raw, ends) = read(decoder, format, name)?;
    let warnings = table::judge(name, raw.size, &mut |offset, len| match format {
        Format::Raw => table::of_file(&random, offset, len),
        _ => ends.read(offset, len),
    })?;
    Ok(Raw { warnings, ..raw })
}

/// Decodes to the end. Also returns the ends of the raw image.
fn read(mut decoder: Box<dyn Read + '_>, format: Format, name: &Path) -> Result<(Raw, Ends), Error> {
    let (mut hash, mut size, mut ends) = (Sha256::new(), 0, Ends::default());
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    loop {
        chunk.clear();
        let read = decoder.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut chunk);
        // Even if the data is damaged, its first bytes show what it is.
        if size == 0 {
            let verb = if format == Format::Raw { "is" } else { "contains" };
            check_raw(&chunk).map_err(|found| no_image(name, &format!("{verb} {found}")))?;
        }
        if let Err(source) = read {
            let decoded = size + chunk.len() as u64;
            let source = source.to_string();
            let reason = match source.as_str() {
                ZSTD_MEMORY => {
                    "it needs more memory than machines have for it; compress it with zstd --long=27, or \
                                without --long"
                }
                XZ_NEEDS_MORE => "it needs more memory than machines have for it; compress it with xz -9 or less",
                _ => "it is damaged, was cut off, or has other data after its end; create the image again",
            };
            let message = format!(
                "the {} data of the image {name:?} cannot be decoded after {decoded} bytes of the raw image \
                 ({source}): {reason}",
                format.name()
            );
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        if chunk.is_empty() {
            break;
        }
        hash.update(&chunk);
        ends.push(&chunk);
        size += chunk.len() as u64;
    }
    if size == 0 {
        return Err(super::empty(name));
    }
    Ok((Raw { size, digest: Some(sha256(hash)), warnings: Vec::new() }, ends))
}

/// Reads the header, and the clusters that the partition table needs. The others are checked when the image is written.
fn of_qcow2(file: &File, head: &[u8], len: u64, name: &Path) -> Result<Raw, Error> {
    let refused = |reason: &str| {
        let message = format!("the image {name:?} cannot be installed: {reason}");
        Error::refused(ErrorCode::InvalidRequest, message)
    };
    let header = Header::parse(head.get(..HEADER_LEN).unwrap_or(head)).map_err(|error| refused(&error.to_string()))?;
    let needed = header.l1.end.max(header.refcounts.end);
    if len < needed {
        let reason =
            format!("the file ends at byte {len}, but its tables end at byte {needed}; download or create it again");
        return Err(refused(&reason));
    }
    let mut read_at = |at, buffer: &mut [u8]| file.read_exact_at(buffer, at);
    let image = Image::open(len, &mut read_at).map_err(|error| refused(&error.to_string()))?;
    let mut failure = None;
    let warnings = table::judge(name, header.size, &mut |offset, len| {
        table::of_qcow2(&image, file, offset, len).map_err(|error| failure = Some(error)).ok()
    });
    match failure {
        Some(error) => Err(refused(&error.to_string())),
        None => Ok(Raw { size: header.size, digest: None, warnings: warnings? }),
    }
}

fn no_image(name: &Path, what: &str) -> Error {
    let message = format!(
        "the image {name:?} cannot be installed: it {what}; give the disk image itself: raw, compressed once with \
         zstd, gzip, xz or bzip2, or qcow2; to add a file that is not an image, for actions to fetch, use \
         --not-an-image"
    );
    Error::refused(ErrorCode::InvalidRequest, message)
}

/// Reports how much of a file was read.
struct Counted<'a> {
    file: File,
    read: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read += read as u64;
        (self.progress)(self.read);
        Ok(read)
    }
}
