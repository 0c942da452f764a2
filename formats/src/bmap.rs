//! Block maps of images, as bmaptool makes them: which blocks of an image hold data, with a digest for each run of them.
//!
//! The format is XML and has no document beside its program: bmap-tools, `bmaptools/BmapCreate.py`, versions 1.0 to 1.4 and
//! 2.0. From 1.3 on there are digests, of SHA-1; 1.4 is 2.0 under another number and names the hash function.

mod read;
#[cfg(test)]
mod tests;

use std::iter;
use std::ops::Range;

use ring::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512};

pub use read::parse;

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

impl Bmap {
    /// The parts of a range of bytes that hold data, in their order.
    pub fn mapped(&self, bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.ranges.partition_point(|mapped| mapped.bytes.end <= bytes.start);
        self.ranges.iter().skip(first).map_while(move |mapped| {
            let part = mapped.bytes.start.max(bytes.start)..mapped.bytes.end.min(bytes.end);
            (!part.is_empty()).then_some(part)
        })
    }

    /// The parts of a range of bytes that hold none, in their order.
    pub fn unmapped(&self, bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let starts = iter::once(bytes.start).chain(self.mapped(bytes.clone()).map(|mapped| mapped.end));
        let ends = self.mapped(bytes.clone()).map(|mapped| mapped.start).chain(iter::once(bytes.end));
        starts.zip(ends).map(|(start, end)| start..end).filter(|part| !part.is_empty())
    }

    /// Bytes that hold data.
    pub fn mapped_size(&self) -> u64 {
        self.ranges.iter().map(|mapped| mapped.bytes.end - mapped.bytes.start).sum()
    }

    /// Whether anything that holds data has a digest.
    pub fn has_digests(&self) -> bool {
        self.ranges.iter().any(|mapped| mapped.digest.is_some())
    }

    /// Whether the map proves, to whoever believes it, all that holds data: each run has a digest that cannot be forged.
    pub fn proves(&self) -> bool {
        matches!(self.checksum, Some(Checksum::Sha256 | Checksum::Sha512))
            && self.ranges.iter().all(|mapped| mapped.digest.is_some())
    }

    /// The blocks of a run of bytes, as the text of the map has them.
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

    /// The name that block maps use.
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

/// Why a text is no block map that can be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is longer than 16 MiB.
    #[error("reading the block map: it has {size} bytes, at most {MAX_TEXT} are read; write the image without it")]
    TooLong {
        /// Bytes it has.
        size: usize,
    },
    /// The text is not well-formed XML.
    #[error("reading the block map: line {line} is not well-formed XML; make it again with bmaptool create")]
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

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
