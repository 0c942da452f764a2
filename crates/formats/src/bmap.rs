//! Block maps of images, made by bmaptool: which blocks of an image hold data, with a digest for each run of blocks.
//!
//! The format is XML. Its only documentation is the program: bmap-tools, `bmaptools/BmapCreate.py`, versions 1.0 to 1.4
//! and 2.0. Digests exist from 1.3 on, first SHA-1. Version 1.4 names the hash function; it is the same as 2.0.

mod read;
#[cfg(test)]
mod tests;

use std::iter;
use std::ops::Range;

use ring::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512};

pub use read::parse;

/// Most bytes of a block map that are read; a longer one is refused.
pub const MAX_TEXT: usize = 16 << 20;
/// Most ranges of a block map; each takes at most 120 bytes of memory.
pub const MAX_RANGES: usize = 1 << 17;
/// Deepest nesting of elements; the format uses three levels.
const MAX_DEPTH: usize = 8;
const BLOCK_SIZES: Range<u64> = 512..(1 << 30) + 1;

/// A block map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bmap {
    /// Size of a block in bytes.
    pub block_size: u64,
    /// Size of the raw image in bytes.
    pub image_size: u64,
    /// Hash function of the digests; none if the map has no digests.
    pub checksum: Option<Checksum>,
    /// Ranges that hold data, in the order of the image. The rest of the disk need not be written.
    pub ranges: Vec<Mapped>,
}

impl Bmap {
    /// The parts of a byte range that hold data, in order.
    pub fn mapped(&self, bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.ranges.partition_point(|mapped| mapped.bytes.end <= bytes.start);
        self.ranges.iter().skip(first).map_while(move |mapped| {
            let part = mapped.bytes.start.max(bytes.start)..mapped.bytes.end.min(bytes.end);
            (!part.is_empty()).then_some(part)
        })
    }

    /// The parts of a byte range that hold no data, in order.
    pub fn unmapped(&self, bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let starts = iter::once(bytes.start).chain(self.mapped(bytes.clone()).map(|mapped| mapped.end));
        let ends = self.mapped(bytes.clone()).map(|mapped| mapped.start).chain(iter::once(bytes.end));
        starts.zip(ends).map(|(start, end)| start..end).filter(|part| !part.is_empty())
    }

    /// Number of bytes that hold data.
    pub fn mapped_size(&self) -> u64 {
        self.ranges.iter().map(|mapped| mapped.bytes.end - mapped.bytes.start).sum()
    }

    /// Whether any range has a digest.
    pub fn has_digests(&self) -> bool {
        self.ranges.iter().any(|mapped| mapped.digest.is_some())
    }

    /// Whether a trusted map proves all the data: every range has a digest that cannot be forged.
    pub fn proves(&self) -> bool {
        matches!(self.checksum, Some(Checksum::Sha256 | Checksum::Sha512))
            && self.ranges.iter().all(|mapped| mapped.digest.is_some())
    }

    /// Names the blocks of a byte range by their numbers, such as "blocks 3-4".
    pub fn blocks(&self, bytes: &Range<u64>) -> String {
        match (bytes.start / self.block_size, (bytes.end - 1) / self.block_size) {
            (first, last) if first == last => format!("block {first}"),
            (first, last) => format!("blocks {first}-{last}"),
        }
    }
}

/// A run of blocks that hold data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Byte range in the image, not empty: whole blocks, except that the last range may end with the image.
    pub bytes: Range<u64>,
    /// Digest of those bytes, if the map has one.
    pub digest: Option<Box<[u8]>>,
}

/// A hash function of a block map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// SHA-1: finds damage, but proves nothing.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Checksum {
    /// Starts a digest.
    pub fn context(self) -> digest::Context {
        digest::Context::new(match self {
            Checksum::Sha1 => &SHA1_FOR_LEGACY_USE_ONLY,
            Checksum::Sha256 => &SHA256,
            Checksum::Sha512 => &SHA512,
        })
    }

    /// Name of the function in block maps.
    pub fn name(self) -> &'static str {
        match self {
            Checksum::Sha1 => "sha1",
            Checksum::Sha256 => "sha256",
            Checksum::Sha512 => "sha512",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Checksum::Sha1, Checksum::Sha256, Checksum::Sha512].into_iter().find(|known| known.name() == name)
    }

    fn len(self) -> usize {
        match self {
            Checksum::Sha1 => 20,
            Checksum::Sha256 => 32,
            Checksum::Sha512 => 64,
        }
    }
}

/// Why a text is not a usable block map.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// The text is longer than 16 MiB.
    #[error(
        "reading the block map: it has {size} bytes, but at most {MAX_TEXT} are supported; write the image without it"
    )]
    TooLong { size: usize },
    /// The map has more than [`MAX_RANGES`] ranges.
    #[error("reading the block map: it has more than {MAX_RANGES} ranges; write the image without it")]
    TooManyRanges,
    /// The text is not well-formed XML.
    #[error("reading the block map: line {line} is not well-formed XML; make it again with bmaptool create")]
    Xml { line: usize, source: quick_xml::Error },
    /// A line does not follow the format.
    #[error("reading the block map: line {line}: {reason}; make it again with bmaptool create")]
    Line {
        line: usize,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// Parts of the map contradict each other, or one is missing.
    #[error("reading the block map: {reason}; make it again with bmaptool create")]
    Whole { reason: String },
    /// The text does not match its own digest.
    #[error("checking the digest of the block map: expected {expected}, got {found}; fetch it again")]
    Checksum {
        /// Digest in the map, as hexadecimal digits.
        expected: String,
        /// Digest of the text, with the digits of its own digest counted as zeros, as hexadecimal digits.
        found: String,
    },
}
