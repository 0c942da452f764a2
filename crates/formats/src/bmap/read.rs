//! Parser for block maps.

use std::ops::Range;
use std::str::FromStr;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::{BLOCK_SIZES, Bmap, Checksum, Error, MAX_DEPTH, MAX_RANGES, MAX_TEXT, Mapped};

/// Parses a block map and verifies its own digest.
pub fn parse(text: &[u8]) -> Result<Bmap, Error> {
    if text.len() > MAX_TEXT {
        return Err(Error::TooLong { size: text.len() });
    }
    let line_of = |at: usize| 1 + text.iter().take(at).filter(|byte| **byte == b'\n').count();
    let utf8 = str::from_utf8(text);
    let utf8 = utf8.map_err(|error| refusal(line_of(error.valid_up_to()), "it is not UTF-8".to_owned()))?;
    let mut reader = Reader::from_str(utf8);
    let mut raw = Raw::default();
    let mut path: Vec<String> = Vec::new();
    loop {
        let event = reader.read_event();
        let event = event.map_err(|source| Error::Xml { line: line_of(reader.error_position() as usize), source })?;
        // The position is after the event that was just read.
        let end = reader.buffer_position() as usize;
        match raw.take(&event, &mut path, end) {
            Ok(true) if raw.ranges.len() > MAX_RANGES => return Err(Error::TooManyRanges),
            Ok(true) => {}
            Ok(false) => break,
            Err(reason) => return Err(refusal(line_of(end.saturating_sub(1)), reason)),
        }
    }
    raw.checked(text)
}

fn refusal(line: usize, reason: String) -> Error {
    Error::Line { line, reason }
}

fn whole(reason: impl Into<String>) -> Error {
    Error::Whole { reason: reason.into() }
}

/// The elements as given in the text.
#[derive(Default)]
struct Raw {
    version: Option<(u32, u32)>,
    image_size: Option<u64>,
    block_size: Option<u64>,
    blocks: Option<u64>,
    mapped_blocks: Option<u64>,
    checksum: Option<Checksum>,
    /// The map's own digest, and its place in the text.
    own: Option<(String, Range<usize>)>,
    ranges: Vec<Blocks>,
    /// Digest of the range whose text comes next.
    range_digest: Option<Box<[u8]>>,
}

/// A range as given in the text.
struct Blocks {
    first: u64,
    last: u64,
    digest: Option<Box<[u8]>>,
}

impl Raw {
    /// Takes the next event of the text, which ends at byte `end`. False at the end of the text.
    fn take(&mut self, event: &Event<'_>, path: &mut Vec<String>, end: usize) -> Result<bool, String> {
        match event {
            Event::Start(element) => {
                if path.len() == MAX_DEPTH {
                    return Err(format!("its elements are nested more than {MAX_DEPTH} deep"));
                }
                path.push(element.name().as_ref().to_owned());
                self.start(element, path)?;
            }
            Event::End(_) => {
                path.pop();
            }
            Event::Text(text) if !text.trim().is_empty() => {
                let start = end - text.len() + (text.len() - text.trim_start().len());
                self.text(text.trim(), path, start)?;
            }
            Event::Text(_) | Event::Empty(_) | Event::Comment(_) | Event::Decl(_) => {}
            Event::CData(_) | Event::PI(_) | Event::DocType(_) | Event::GeneralRef(_) => {
                return Err("a block map cannot contain entities, document types or the like".to_owned());
            }
            Event::Eof if path.is_empty() => return Ok(false),
            Event::Eof => return Err(format!("the text ends inside {:?}", path.join("/"))),
        }
        Ok(true)
    }

    fn start(&mut self, element: &BytesStart<'_>, path: &[String]) -> Result<(), String> {
        match path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["bmap"] => {
                let version = attribute(element, "version")?.ok_or("the map has no version")?;
                let numbers = version.split_once('.');
                let numbers = numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
                let known = numbers.filter(|numbers| matches!(numbers, (1, _) | (2, 0)));
                let known = known.ok_or_else(|| format!("version {version:?} is not supported; 1.0 to 2.0 are"))?;
                once(&mut self.version, known, "bmap")
            }
            ["bmap", "BlockMap", "Range"] => {
                let name = if self.names_checksum() { "chksum" } else { "sha1" };
                let digits = attribute(element, name)?;
                self.range_digest = digits.as_deref().map(bytes_of_hex).transpose()?;
                Ok(())
            }
            [] | [_] if path.first().is_none_or(|root| root != "bmap") => Err("this is not a block map".to_owned()),
            _ => Ok(()),
        }
    }

    fn text(&mut self, text: &str, path: &[String], start: usize) -> Result<(), String> {
        match path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["bmap", name @ "ImageSize"] => once(&mut self.image_size, number(text)?, name),
            ["bmap", name @ "BlockSize"] => once(&mut self.block_size, number(text)?, name),
            ["bmap", name @ "BlocksCount"] => once(&mut self.blocks, number(text)?, name),
            ["bmap", name @ "MappedBlocksCount"] => once(&mut self.mapped_blocks, number(text)?, name),
            ["bmap", name @ "ChecksumType"] => {
                let known = Checksum::named(text);
                let known = known
                    .ok_or_else(|| format!("checksum type {text:?} is not supported; sha1, sha256 and sha512 are"))?;
                once(&mut self.checksum, known, name)
            }
            ["bmap", name @ ("BmapFileChecksum" | "BmapFileSHA1")] => {
                once(&mut self.own, (text.to_owned(), start..start + text.len()), name)
            }
            ["bmap", "BlockMap", "Range"] => self.range(text),
            ["bmap", ..] => Ok(()),
            _ => Err("there is text outside the map".to_owned()),
        }
    }

    fn range(&mut self, text: &str) -> Result<(), String> {
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (number(first.trim())?, number(last.trim())?),
            None => (number(text)?, number(text)?),
        };
        if first > last {
            return Err(format!("range {text:?} ends before it starts"));
        }
        if self.ranges.last().is_some_and(|before| first <= before.last) {
            return Err(format!("range {text:?} does not follow the one before it"));
        }
        self.ranges.push(Blocks { first, last, digest: self.range_digest.take() });
        Ok(())
    }

    /// Whether the map names its hash function. Otherwise SHA-1 is implied.
    fn names_checksum(&self) -> bool {
        self.version.is_some_and(|version| version >= (1, 4))
    }

    fn checked(self, text: &[u8]) -> Result<Bmap, Error> {
        let version = self.version.ok_or_else(|| whole("it has no element bmap"))?;
        let given = |value: Option<u64>, name| value.ok_or_else(|| whole(format!("it has no {name}")));
        let (block_size, image_size) = (given(self.block_size, "BlockSize")?, given(self.image_size, "ImageSize")?);
        let (blocks, mapped) = (given(self.blocks, "BlocksCount")?, given(self.mapped_blocks, "MappedBlocksCount")?);
        let checksum = match version {
            _ if self.names_checksum() => Some(self.checksum.ok_or_else(|| whole("it has no ChecksumType"))?),
            (_, 3) => Some(Checksum::Sha1),
            _ => None,
        };
        if let Some(checksum) = checksum {
            let (own, place) = self.own.as_ref().ok_or_else(|| whole("it has no digest of itself"))?;
            verify(text, checksum, own, place)?;
        }
        if !BLOCK_SIZES.contains(&block_size) || !block_size.is_multiple_of(512) {
            return Err(whole(format!("a block cannot have {block_size} bytes")));
        }
        if image_size == 0 || image_size > i64::MAX as u64 || blocks != image_size.div_ceil(block_size) {
            return Err(whole(format!("{image_size} bytes are not {blocks} blocks of {block_size} bytes")));
        }
        let mut ranges = Vec::with_capacity(self.ranges.len());
        let mut sum = 0;
        for Blocks { first, last, digest } in self.ranges {
            if last >= blocks {
                return Err(whole(format!("range \"{first}-{last}\" is not within its {blocks} blocks")));
            }
            let fits = digest.as_ref().is_none_or(|digest| checksum.is_some_and(|known| known.len() == digest.len()));
            if !fits {
                return Err(whole(format!("the digest of range \"{first}-{last}\" has the wrong length")));
            }
            sum += last - first + 1;
            let bytes = first * block_size..image_size.min((last + 1) * block_size);
            ranges.push(Mapped { bytes, digest });
        }
        if ranges.is_empty() {
            return Err(whole("it lists no blocks, so there would be nothing to write"));
        }
        if sum != mapped {
            return Err(whole(format!("its ranges have {sum} blocks, but it declares {mapped}")));
        }
        Ok(Bmap { block_size, image_size, checksum, ranges })
    }
}

/// Verifies the map's own digest. The digest is computed with its own digits replaced by zeros.
fn verify(text: &[u8], checksum: Checksum, own: &str, place: &Range<usize>) -> Result<(), Error> {
    let mut context = checksum.context();
    context.update(text.get(..place.start).unwrap_or_default());
    context.update("0".repeat(own.len()).as_bytes());
    context.update(text.get(place.end..).unwrap_or_default());
    let found = base16ct::lower::encode_string(context.finish().as_ref());
    match own.eq_ignore_ascii_case(&found) {
        true => Ok(()),
        false => Err(Error::Checksum { expected: own.to_owned(), found }),
    }
}

fn once<T>(place: &mut Option<T>, value: T, name: &str) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{name} is given twice")),
    }
}

fn number(text: &str) -> Result<u64, String> {
    u64::from_str(text).map_err(|_| format!("{text:?} is not a number of bytes or blocks"))
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Result<Option<String>, String> {
    let found = element.try_get_attribute(name).map_err(|error| error.to_string())?;
    Ok(found.map(|attribute| attribute.value.trim().to_owned()))
}

pub(super) fn bytes_of_hex(digits: &str) -> Result<Box<[u8]>, String> {
    let short = Some(digits).filter(|digits| digits.len() <= 2 * Checksum::Sha512.len());
    let bytes = short.and_then(|digits| base16ct::mixed::decode_vec(digits).ok());
    bytes
        .map(Vec::into_boxed_slice)
        .ok_or_else(|| "a digest has characters other than hexadecimal digits, or too many digits".to_owned())
}
