//! Block maps of images, as bmaptool makes them: which blocks of an image hold data, with a digest for each run of them.
//!
//! The format is XML and has no document beside its program: bmap-tools, `bmaptools/BmapCreate.py`, versions 1.0 to 1.4 and
//! 2.0. From 1.3 on there are digests, of SHA-1; 1.4 is 2.0 under another number and names the hash function.

use std::ops::Range;
use std::str::FromStr;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use ring::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512};

/// Bytes of a block map that is read; a longer one is refused.
pub const MAX_TEXT: usize = 16 << 20;
/// Ranges that are kept; each takes at most 120 bytes of memory.
pub const MAX_RANGES: usize = 1 << 17;
/// Elements inside one another; the format has three.
const MAX_DEPTH: usize = 8;
const BLOCK_SIZES: Range<u64> = 512..(1 << 30) + 1;

/// A block map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bmap {
    /// Size of a block in bytes.
    pub block_size: u64,
    /// Size of the raw image in bytes.
    pub image_size: u64,
    /// How the digests are made; none where the map has none.
    pub checksum: Option<Checksum>,
    /// What holds data, in the order of the image; all else may be left as it is.
    pub ranges: Vec<Mapped>,
}

/// A run of blocks that hold data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Bytes of the image, not empty; the last run ends where the image does.
    pub bytes: Range<u64>,
    /// Digest of those bytes, where the map gives it.
    pub digest: Option<Box<[u8]>>,
}

/// A hash function of a block map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// SHA-1: it finds damage, and proves nothing.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Checksum {
    /// A digest to begin.
    pub fn context(self) -> digest::Context {
        digest::Context::new(match self {
            Checksum::Sha1 => &SHA1_FOR_LEGACY_USE_ONLY,
            Checksum::Sha256 => &SHA256,
            Checksum::Sha512 => &SHA512,
        })
    }

    fn named(name: &str) -> Option<Self> {
        match name {
            "sha1" => Some(Checksum::Sha1),
            "sha256" => Some(Checksum::Sha256),
            "sha512" => Some(Checksum::Sha512),
            _ => None,
        }
    }

    fn len(self) -> usize {
        match self {
            Checksum::Sha1 => 20,
            Checksum::Sha256 => 32,
            Checksum::Sha512 => 64,
        }
    }
}

/// Why a text is no block map that can be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is longer than [`MAX_TEXT`].
    #[error("reading the block map: it has {size} bytes, at most {MAX_TEXT} are read; write the image without it")]
    TooLong {
        /// Bytes it has.
        size: usize,
    },
    /// The text is not well-formed XML.
    #[error("reading the block map: line {line}")]
    Xml {
        /// Line, from 1.
        line: usize,
        /// The cause.
        #[source]
        source: quick_xml::Error,
    },
    /// Something in it is not what the format has there.
    #[error("reading the block map: line {line}: {reason}; make it again with bmaptool create")]
    Line {
        /// Line, from 1.
        line: usize,
        /// What is there, and what would be right.
        reason: String,
    },
    /// What it says as a whole does not fit together.
    #[error("reading the block map: {reason}; make it again with bmaptool create")]
    Whole {
        /// What is missing or contradicts.
        reason: String,
    },
    /// The text is not what it was when it was made.
    #[error("checking the digest of the block map: expected {expected}, got {found}; fetch it again")]
    Checksum {
        /// Hexadecimal digits in the map.
        expected: String,
        /// Hexadecimal digits of the text, with the digits of its own digest counted as zeros.
        found: String,
    },
}

/// Reads a block map and verifies its own digest.
pub fn parse(text: &[u8]) -> Result<Bmap, Error> {
    if text.len() > MAX_TEXT {
        return Err(Error::TooLong { size: text.len() });
    }
    let line_of = |at: usize| 1 + text[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count();
    let utf8 = str::from_utf8(text);
    let utf8 = utf8.map_err(|error| refusal(line_of(error.valid_up_to()), "it is not UTF-8".to_owned()))?;
    let mut reader = Reader::from_str(utf8);
    let mut raw = Raw::default();
    let mut path: Vec<String> = Vec::new();
    loop {
        let event = reader.read_event();
        let event = event.map_err(|source| Error::Xml { line: line_of(reader.error_position() as usize), source })?;
        // The reader stands behind what it has read.
        let end = reader.buffer_position() as usize;
        match raw.take(&event, &mut path, end) {
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

/// The elements as they stand in the text.
#[derive(Default)]
struct Raw {
    version: Option<(u32, u32)>,
    image_size: Option<u64>,
    block_size: Option<u64>,
    blocks: Option<u64>,
    mapped_blocks: Option<u64>,
    checksum: Option<Checksum>,
    /// The map's own digest, and where in the text it stands.
    own: Option<(String, Range<usize>)>,
    ranges: Vec<Blocks>,
    /// Of the range whose text comes next.
    range_digest: Option<Box<[u8]>>,
}

/// A range as it stands in the text.
struct Blocks {
    first: u64,
    last: u64,
    digest: Option<Box<[u8]>>,
}

impl Raw {
    /// Takes the next event of the text that ends at a byte; false at the end of the text.
    fn take(&mut self, event: &Event<'_>, path: &mut Vec<String>, end: usize) -> Result<bool, String> {
        match event {
            Event::Start(element) => {
                if path.len() == MAX_DEPTH {
                    return Err(format!("there are more than {MAX_DEPTH} elements inside one another"));
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
                return Err("entities, document types and the like have no place in a block map".to_owned());
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
                let known = known.ok_or_else(|| format!("version {version:?} is not known; 1.0 to 2.0 are"))?;
                once(&mut self.version, known, "bmap")
            }
            ["bmap", "BlockMap", "Range"] => {
                let name = if self.names_checksum() { "chksum" } else { "sha1" };
                let digits = attribute(element, name)?;
                self.range_digest = digits.as_deref().map(bytes_of_hex).transpose()?;
                Ok(())
            }
            [] | [_] if path.first().is_none_or(|root| root != "bmap") => Err("this is no block map".to_owned()),
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
                let known = known.ok_or_else(|| format!("{text:?} is not known; sha1, sha256 and sha512 are"))?;
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
        if self.ranges.len() == MAX_RANGES {
            return Err(format!("there are more than {MAX_RANGES} ranges; write the image without it"));
        }
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

    /// Whether the map names its hash function, and SHA-1 is not understood.
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
            let (own, place) = self.own.as_ref().ok_or_else(|| whole("it has no digest of its own"))?;
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
        if sum != mapped {
            return Err(whole(format!("its ranges have {sum} blocks, and it says {mapped}")));
        }
        Ok(Bmap { block_size, image_size, checksum, ranges })
    }
}

/// Compares the digest of the text, in which the digits of that digest count as zeros.
fn verify(text: &[u8], checksum: Checksum, own: &str, place: &Range<usize>) -> Result<(), Error> {
    let mut context = checksum.context();
    context.update(&text[..place.start]);
    context.update("0".repeat(own.len()).as_bytes());
    context.update(&text[place.end..]);
    let found: String = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
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
    u64::from_str(text).map_err(|_| format!("{text:?} is no number of bytes or blocks"))
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Result<Option<String>, String> {
    let found = element.try_get_attribute(name).map_err(|error| error.to_string())?;
    Ok(found.map(|attribute| attribute.value.trim().to_owned()))
}

fn bytes_of_hex(digits: &str) -> Result<Box<[u8]>, String> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| {
        let pair = str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|byte| byte.is_ascii_hexdigit()));
        pair.filter(|pair| pair.len() == 2).and_then(|pair| u8::from_str_radix(pair, 16).ok())
    });
    let too_long = digits.len() > 2 * Checksum::Sha512.len();
    let bytes: Option<Box<[u8]>> = if too_long { None } else { pairs.collect() };
    bytes.ok_or_else(|| "a digest is not made of hexadecimal digits, or has too many".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::process::Command;

    const DIGEST: &str = "b15056c9a8db77ab5708d19b7f330fe13d88eeae3d0ab271081d3438c0f46264";

    /// A map of 257 blocks and one byte, of which the first, the last and two others hold data, with its own digest.
    fn map() -> String {
        let head = "<?xml version=\"1.0\" ?>\n<!-- <BlockSize> 1 </BlockSize> -->\n<bmap version=\"2.0\">\n";
        let sizes = "<ImageSize> 1052673 </ImageSize>\n<BlockSize> 4096 </BlockSize>\n<BlocksCount>258</BlocksCount>\n";
        let kind = "<MappedBlocksCount> 4   </MappedBlocksCount>\n<ChecksumType> sha256 </ChecksumType>\n";
        let own = "<BmapFileChecksum> OWN </BmapFileChecksum>\n";
        let ranges = format!("<Range chksum=\"{DIGEST}\"> 0 </Range>\n<Range> 3-4 </Range>\n<Range>257</Range>\n");
        format!("{head}{sizes}{kind}{own}<BlockMap>\n{ranges}</BlockMap>\n</bmap>\n")
    }

    /// With the digest that bmaptool would put in.
    fn sealed(text: &str, checksum: Checksum) -> String {
        let zeros = "0".repeat(checksum.len() * 2);
        let mut context = checksum.context();
        context.update(text.replace("OWN", &zeros).as_bytes());
        let own: String = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        text.replace("OWN", &own)
    }

    fn message(text: &str) -> String {
        let error = parse(text.as_bytes()).unwrap_err();
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{error}{cause}")
    }

    /// Changes the map, seals it, and expects it to be refused with a message that has this in it.
    fn check(from: &str, to: &str, part: &str) {
        assert!(map().contains(from), "{from:?} is not in the map");
        let message = message(&sealed(&map().replacen(from, to, 1), Checksum::Sha256));
        assert!(message.contains(part), "{from:?} to {to:?}: {message}");
    }

    #[test]
    fn a_map_gives_sizes_and_ranges() {
        let found = parse(sealed(&map(), Checksum::Sha256).as_bytes()).unwrap();
        let bytes: Vec<_> = found.ranges.iter().map(|mapped| mapped.bytes.clone()).collect();
        assert_eq!((found.block_size, found.image_size), (4096, 1052673));
        assert_eq!(found.checksum, Some(Checksum::Sha256));
        assert_eq!(bytes, [0..4096, 12288..20480, 1052672..1052673]);
        assert_eq!(found.ranges[0].digest, Some(bytes_of_hex(DIGEST).unwrap()));
        assert_eq!(found.ranges[1].digest, None);
    }

    #[test]
    fn every_version_is_read() {
        let old = |version: &str| map().replace("2.0", version).replace("<ChecksumType> sha256 </ChecksumType>\n", "");
        let without = |text: &str| text.replace("<BmapFileChecksum> OWN </BmapFileChecksum>\n", "");
        let plain = without(&old("1.2")).replace(&format!(" chksum=\"{DIGEST}\""), "");
        assert_eq!(parse(plain.as_bytes()).unwrap().checksum, None);
        let sha1 = old("1.3").replace("BmapFileChecksum", "BmapFileSHA1").replace("chksum", "sha1");
        let sha1 = sealed(&sha1.replace(DIGEST, &DIGEST[..40]), Checksum::Sha1);
        let found = parse(sha1.as_bytes()).unwrap();
        assert_eq!((found.checksum, found.ranges[0].digest.as_ref().unwrap().len()), (Some(Checksum::Sha1), 20));
        let sha512 = map().replace("2.0", "1.4").replace("sha256", "sha512").replace(DIGEST, &DIGEST.repeat(2));
        let sha512 = sealed(&sha512, Checksum::Sha512);
        assert_eq!(parse(sha512.as_bytes()).unwrap().checksum, Some(Checksum::Sha512));
        check("2.0", "3.0", "line 3: version \"3.0\" is not known");
        check("2.0", "2", "line 3: version \"2\" is not known");
    }

    #[test]
    fn a_changed_map_is_found_by_its_own_digest() {
        let text = sealed(&map(), Checksum::Sha256);
        assert!(message(&text.replace(" 3-4 ", " 4-5 ")).contains("checking the digest of the block map"));
        assert!(message(&text.replace("</bmap>", "</bmap> ")).contains("checking the digest of the block map"));
        assert!(message(&map().replace("OWN", "")).contains("it has no digest of its own"));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        check("3-4", "4-3", "line 12: range \"4-3\" ends before it starts");
        check("3-4", "0", "line 12: range \"0\" does not follow");
        check("257<", "256-258<", "range \"256-258\" is not within its 258 blocks");
        check("257<", "18446744073709551615<", "is not within its 258 blocks");
        check("3-4", "3", "its ranges have 3 blocks, and it says 4");
        check("3-4", "three", "line 12: \"three\" is no number");
        check(DIGEST, &DIGEST[2..], "the digest of range \"0-0\" has the wrong length");
        check(DIGEST, "xy", "line 11: a digest is not made of hexadecimal digits");
        check("> 4096 <", "> 0 <", "a block cannot have 0 bytes");
        check("> 1052673 <", "> 18446744073709551615 <", "are not 258 blocks");
        check("<BlocksCount>258", "<BlocksCount>259", "are not 259 blocks");
        check("<BlocksCount>258</BlocksCount>", "", "it has no BlocksCount");
        check("<BlockMap>", "<BlockSize>1</BlockSize><BlockMap>", "line 10: BlockSize is given twice");
        check("sha256 ", "md5 ", "line 8: \"md5\" is not known");
        check("<!-- <BlockSize>", "<!DOCTYPE a [<!ENTITY b \"c\">]><!-- <BlockSize>", "line 2: entities");
        check("3-4", "&#51;-4", "line 12: entities");
        check("</Range>", "</range>", "line 11");
        check("</bmap>\n", "", "the text ends inside \"bmap\"");
    }

    #[test]
    fn what_is_no_map_is_refused() {
        assert!(message("").contains("it has no element bmap"));
        assert!(message("<html><body>404</body></html>").contains("line 1: this is no block map"));
        assert!(message("not XML").contains("there is text outside the map"));
        assert!(message("<bmap/>").contains("it has no element bmap"));
        assert!(message(&"<bmap version=\"2.0\">".repeat(9)).contains("line 1: there are more than 8 elements"));
        assert!(message(&" ".repeat(MAX_TEXT + 1)).contains("at most 16777216 are read"));
        let text = sealed(&map(), Checksum::Sha256);
        for cut in 0..text.len() - "\n".len() {
            parse(&text.as_bytes()[..cut]).unwrap_err();
        }
        let many: String = (0..=MAX_RANGES).map(|block| format!("<Range>{block}</Range>")).collect();
        check("<BlockMap>\n", &format!("<BlockMap>{many}"), "there are more than 131072 ranges");
    }

    #[test]
    fn maps_of_bmaptool_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let file = File::create_new(&image).unwrap();
        file.set_len((1 << 20) + 1).unwrap();
        file.write_all_at(b"data", 3 * 4096).unwrap();
        file.write_all_at(b"data", 100 * 4096 + 7).unwrap();
        let made = Command::new("bmaptool").arg("create").arg(&image).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            eprintln!("not checked, because bmaptool cannot be run here");
            return;
        };
        let found = parse(&made.stdout).unwrap();
        assert_eq!(found.image_size, (1 << 20) + 1);
        for place in [3 * 4096, 100 * 4096 + 7] {
            let mapped = found.ranges.iter().find(|mapped| mapped.bytes.contains(&place)).unwrap();
            let mut bytes = vec![0; (mapped.bytes.end - mapped.bytes.start) as usize];
            File::open(&image).unwrap().read_exact_at(&mut bytes, mapped.bytes.start).unwrap();
            let mut context = found.checksum.unwrap().context();
            context.update(&bytes);
            assert_eq!(Some(context.finish().as_ref()), mapped.digest.as_deref());
        }
    }
}
