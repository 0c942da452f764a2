//! Decodes a file once when it is added, so that a bad image fails here and not on a machine whose disk was already
//! erased.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use liblzma::stream::{CONCATENATED, Stream};
use sha2::{Digest as _, Sha256};
use slipway_formats::gzip::Members;
use slipway_formats::image::made_for::{HEAD, MadeFor};
use slipway_formats::image::{Format, check_raw};
use slipway_formats::partition_table::Table;
use slipway_formats::zstd::FrameHeader;
use slipway_protocol::{Digest, ErrorCode};

use super::spool::Spool;
use super::table::{self, Ends};
use super::{CHUNK_BYTES, Raw, inside, qcow2, refused, sha256};
use crate::base::error::Error;
use crate::store::findings::Inside;

/// Memory limit of the xz decoder in bytes, the same as on machines.
const XZ_MEMORY: u64 = 80 << 20;
/// The decoders' messages for data that needs more memory.
const ZSTD_MEMORY: &str = "Frame requires too much memory for decoding";
const XZ_NEEDS_MORE: &str = "memory limit reached";

/// Advice in errors about files that are not images.
const OTHER_FILES: &str = "; to add a file that is not an image, for actions to fetch, use --not-an-image";

/// Decodes a file to its end. `name` is the path that the operator gave. `progress` is called with the bytes read so
/// far. Fails if writing the image would fail: if the file is clearly not an image, is damaged, ends too early, has
/// data after its end, or has a damaged partition table.
pub(super) fn decode(file: &Path, name: &Path, progress: &mut dyn FnMut(u64)) -> Result<Raw, Error> {
    let Opened { format, random, len, input } = open(file, name, OTHER_FILES, progress)?;
    if format == Format::Qcow2 {
        return of_qcow2(&random, len, input, name);
    }
    let mut spool = match format {
        Format::Raw => Spool::default(),
        _ => file.parent().map(Spool::begin).unwrap_or_default(),
    };
    let (size, digest, ends) = read(decoder(format, input).map_err(decoding(name))?, format, name, &mut spool)?;
    let (made_for, table, warnings) = table::judge(name, Some(size), &mut |offset, len| match format {
        Format::Raw => table::of_file(&random, offset, len),
        _ => ends.read(offset, len),
    })?;
    let inside = look_inside(&table, size, if format == Format::Raw { Some(random) } else { spool.finish() });
    Ok(Raw { size, digest: Some(digest), warnings, made_for, inside })
}

/// Decodes only the beginning of a file, which tells nearly as much as [`decode`] and takes a moment. A qcow2 image is
/// read completely, because only that shows the order of its blocks. Fails like [`decode`].
pub(super) fn look(file: &Path, name: &Path) -> Result<(MadeFor, Inside), Error> {
    let mut no_progress = |_| {};
    let Opened { format, random, len, input } = open(file, name, "", &mut no_progress)?;
    if format == Format::Qcow2 {
        return of_qcow2(&random, len, input, name).map(|raw| (raw.made_for, raw.inside));
    }
    let mut head = Vec::new();
    // Damage after the beginning is not detected.
    let read = decoder(format, input).and_then(|decoder| decoder.take(HEAD as u64).read_to_end(&mut head));
    check(&head, format, name, "")?;
    match read {
        Err(source) if head.is_empty() => return Err(refused(name, &format!("it cannot be decoded: {source}"))),
        Ok(0) => return Err(super::empty(name)),
        _ => {}
    }
    let size = (format == Format::Raw).then_some(len);
    let (made_for, table, _) = table::judge(name, size, &mut |offset, len| match format {
        Format::Raw => table::of_file(&random, offset, len),
        _ => head.get(usize::try_from(offset).ok()?..)?.get(..len).map(<[u8]>::to_vec),
    })?;
    Ok((made_for, look_inside(&table, len, size.map(|_| random))))
}

/// Looks into the file systems of a raw image. Without a raw image they are unknown.
fn look_inside(table: &Table, len: u64, raw: Option<File>) -> Inside {
    let read = |raw: File| Box::new(move |at: u64, buffer: &mut [u8]| raw.read_exact_at(buffer, at));
    raw.map(|raw| inside::look(table, len, read(raw))).unwrap_or_default()
}

/// A file that may be an image.
struct Opened<'a> {
    format: Format,
    /// For reading at offsets.
    random: File,
    /// Size of the file in bytes.
    len: u64,
    /// For reading from beginning to end.
    input: BufReader<Counted<'a>>,
}

/// Opens a file and checks its first bytes. `advice` is added to the error if the file is clearly not an image.
fn open<'a>(file: &Path, name: &Path, advice: &str, progress: &'a mut dyn FnMut(u64)) -> Result<Opened<'a>, Error> {
    let failed = |doing| move |source| Error::File { doing, path: name.to_owned(), source };
    let open = File::open(file).map_err(failed("opening the copy of"))?;
    let len = open.metadata().map_err(failed("reading the size of"))?.len();
    let random = open.try_clone().map_err(failed("opening the copy of"))?;
    let mut input = BufReader::with_capacity(CHUNK_BYTES, Counted { file: open, read: 0, progress });
    let head = input.fill_buf().map_err(reading(name))?;
    let format = Format::of(head).map_err(|found| no_image(name, &format!("is {found}"), advice))?;
    match FrameHeader::of(head).map(|header| header.check()) {
        Some(Err(reason)) => Err(refused(name, &reason)),
        _ => Ok(Opened { format, random, len, input }),
    }
}

fn of_qcow2(random: &File, len: u64, mut input: BufReader<Counted<'_>>, name: &Path) -> Result<Raw, Error> {
    let head = input.fill_buf().map_err(reading(name))?;
    let raw = qcow2::look(random, head, len, name)?;
    let needs_ranges = !qcow2::can_be_read_once(input, name)?;
    Ok(Raw { made_for: MadeFor { needs_ranges, ..raw.made_for }, ..raw })
}

/// Returns a decoder for any format except qcow2, whose data is passed on undecoded.
fn decoder<'a>(format: Format, input: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match format {
        Format::Raw | Format::Qcow2 => Box::new(input),
        Format::Zstd => Box::new(zstd::Decoder::with_buffer(input)?),
        Format::Gzip => Box::new(Members::new(input)),
        Format::Xz => {
            let stream = Stream::new_stream_decoder(XZ_MEMORY, CONCATENATED)?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(input, stream))
        }
        Format::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(input)),
    })
}

fn reading(name: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::File { doing: "reading the copy of", path: name.to_owned(), source }
}

fn decoding(name: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::File { doing: "decoding", path: name.to_owned(), source }
}

/// Fails if the first bytes of the raw image show that it is something else.
fn check(head: &[u8], format: Format, name: &Path, advice: &str) -> Result<(), Error> {
    let verb = if format == Format::Raw { "is" } else { "contains" };
    check_raw(head).map_err(|found| no_image(name, &format!("{verb} {found}"), advice))
}

/// Decodes to the end. Returns size, digest and ends of the raw image.
fn read(
    mut decoder: Box<dyn Read + '_>,
    format: Format,
    name: &Path,
    spool: &mut Spool,
) -> Result<(u64, Digest, Ends), Error> {
    let (mut hash, mut size, mut ends) = (Sha256::new(), 0, Ends::default());
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    loop {
        chunk.clear();
        let read = decoder.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut chunk);
        // Even if the data is damaged, its first bytes show what it is.
        if size == 0 {
            check(&chunk, format, name, OTHER_FILES)?;
        }
        if let Err(source) = read {
            let decoded = size + chunk.len() as u64;
            let source = source.to_string();
            let reason = match source.as_str() {
                ZSTD_MEMORY => {
                    "decompressing it needs more memory than machines have; compress it with zstd --long=27, or \
                     without --long"
                }
                XZ_NEEDS_MORE => {
                    "decompressing it needs more memory than machines have; compress it with xz -9 or less"
                }
                _ => "it is damaged, truncated, or has other data after its end; create the image again",
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
        spool.push(&chunk);
        size += chunk.len() as u64;
    }
    if size == 0 {
        return Err(super::empty(name));
    }
    Ok((size, sha256(hash), ends))
}

fn no_image(name: &Path, what: &str, advice: &str) -> Error {
    let message = format!(
        "the image {name:?} cannot be installed: it {what}; give the disk image itself: raw, compressed once with \
         zstd, gzip, xz or bzip2, or qcow2{advice}"
    );
    Error::refused(ErrorCode::InvalidRequest, message)
}

/// A reader that reports how many bytes of a file were read.
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
