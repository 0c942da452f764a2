//! The image itself.

use std::io;
use std::ops::Range;

use slipway_protocol::Digest;

/// Why an image is not written, or is not what it was said to be.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The image's partition table is not where firmware and kernel look for it on this disk.
    #[error(
        "checking the partition table of the image: it is made for blocks of {found} bytes, and {disk} has blocks of \
         {expected} bytes; use an image made for {expected} bytes, or another disk"
    )]
    BlockSize {
        /// Path of the disk.
        disk: String,
        /// Logical block size of the disk in bytes.
        expected: u64,
        /// Block size in bytes the table was made for.
        found: u64,
    },
    /// The source is empty, or decompresses to nothing.
    #[error("reading the image: it is empty")]
    Empty,
    /// The source is something that must not be written to a disk as it is.
    #[error(
        "reading the image: it is {format}; raw images, plain or in zstd, gzip, xz or bzip2, and qcow2 images can be written"
    )]
    Format {
        /// What its first bytes say it is.
        format: &'static str,
    },
    /// What the source decodes to, or an archive, is something no machine starts from.
    #[error(
        "checking the first block of the raw image: it is {format}; give the image itself, raw, in one compression or as qcow2"
    )]
    NotRaw {
        /// What its first bytes say it is.
        format: &'static str,
    },
    /// The partition table of the image is for a larger disk, and no kernel takes it on this one.
    #[error(
        "checking the partition table of the image: it is made for a disk of {needed} bytes or more, and {disk} has {size}; use a \
         larger disk, or another image"
    )]
    TableTooLarge {
        /// Path of the disk.
        disk: String,
        /// Size of the disk in bytes.
        size: u64,
        /// Where what the table has ends, in bytes.
        needed: u64,
    },
    /// A qcow2 image cannot be read.
    #[error("decoding the qcow2 image")]
    Qcow2 {
        /// The cause.
        #[source]
        source: slipway_formats::qcow2::Error,
    },
    /// The blocks of a qcow2 image are not in the order of the raw image, of which the digest was to be taken.
    #[error(
        "checking the digest of the raw image while it is read once: the blocks of a qcow2 image are in another order; \
         leave `digest` out, so that it is read by ranges, or `raw_digest` and `bmap`"
    )]
    Qcow2Order,
    /// The source is damaged or ends too early.
    #[error("decoding the {format} image after {raw_bytes} bytes of raw data")]
    Decode {
        /// Compression found.
        format: &'static str,
        /// Raw bytes decoded until then.
        raw_bytes: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The image does not fit the disk.
    #[error("writing the image to {disk}: the disk has {size} bytes, the image needs {needed}")]
    TooLarge {
        /// Path of the disk.
        disk: String,
        /// Size of the disk in bytes.
        size: u64,
        /// What the image needs: its size where known, else how far it got.
        needed: String,
    },
    /// The raw image is not as long as the workflow or its block map says.
    #[error("checking the size of the raw image: expected {expected} bytes, got {found}")]
    RawSize {
        /// Size in the workflow or the block map, in bytes.
        expected: u64,
        /// Size found, in bytes; when larger than expected, where the writer stopped.
        found: String,
    },
    /// The bytes are not those the workflow names.
    #[error("checking the digest of {what}: expected {expected}, got {}:{found} over {bytes} bytes", expected.algorithm().name())]
    Digest {
        /// The stream as delivered, the raw image, or the manifest that names it.
        what: &'static str,
        /// Digest in the workflow.
        expected: Digest,
        /// Hexadecimal digits found.
        found: String,
        /// Bytes hashed.
        bytes: u64,
    },
    /// A part of the raw image is not what its block map says.
    #[error(
        "checking {blocks} of the raw image (from byte {} to {}) by its block map: expected {algorithm}:{expected}, got \
         {algorithm}:{found}; the image is damaged, or the map was made of another one: fetch or make both again",
        bytes.start, bytes.end
    )]
    MappedDigest {
        /// As the map has them: "blocks 3-4".
        blocks: String,
        /// The part in bytes.
        bytes: Range<u64>,
        /// Name of the hash function.
        algorithm: &'static str,
        /// Hexadecimal digits in the map.
        expected: String,
        /// Hexadecimal digits found.
        found: String,
    },
}
