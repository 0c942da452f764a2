//! Errors of the image itself.

use std::io;
use std::ops::Range;

use slipway_protocol::Digest;

/// Why an image was not written, or is not as described.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ImageError {
    /// The image's partition table is not where firmware and kernel look for it on this disk.
    #[error(
        "checking the partition table of the image: it is made for blocks of {found} bytes, but {disk} has blocks of \
         {expected} bytes; use an image made for {expected} bytes, or another disk"
    )]
    BlockSize {
        disk: String,
        /// Logical block size of the disk in bytes.
        expected: u64,
        /// Block size in bytes the table was made for.
        found: u64,
    },
    /// The source is empty, or decompresses to no data.
    #[error("reading the image: it is empty")]
    Empty,
    /// The source has a format that must not be written to a disk as it is.
    #[error(
        "reading the image: it is {format}; raw images (uncompressed, or compressed with zstd, gzip, xz or bzip2) and \
         qcow2 images are supported"
    )]
    Format {
        /// The format that the first bytes indicate.
        format: &'static str,
    },
    /// The source is an archive or decodes to something that no machine can start from.
    #[error(
        "checking the first block of the raw image: it is {format}; give the image itself: raw, compressed once, or \
         qcow2"
    )]
    NotRaw {
        /// The format that the first bytes indicate.
        format: &'static str,
    },
    /// The image's partition table, or the protective MBR that leads to it, is damaged. No kernel accepts the table.
    #[error("checking the partition table of the image: {reason}; {remedy}")]
    TableDamaged { reason: String, remedy: String },
    /// The image's partition table is made for a larger disk. No kernel accepts the table on this disk.
    #[error(
        "checking the partition table of the image: it is made for a disk of {needed} or more, because {what} \
         ends there, but {disk} has {size}; use a larger disk, or another image"
    )]
    TableTooLarge {
        disk: String,
        /// Size of the disk, in words.
        size: String,
        /// Size of the smallest disk that the table fits, in words.
        needed: String,
        /// What ends at `needed`, such as a partition.
        what: String,
    },
    /// The image is made for another machine or disk.
    #[error("checking what the image is made for: {reason}")]
    MadeForOther { reason: String },
    /// A qcow2 image cannot be read.
    #[error("decoding the qcow2 image")]
    Qcow2 { source: slipway_formats::qcow2::Error },
    /// A qcow2 image has its blocks in another order than the raw image, so the digest of the raw image cannot be
    /// computed in one pass.
    #[error(
        "checking the raw image in one pass: the blocks of a qcow2 image are in another order; leave out `digest`, so \
         that slipway can read the file in any order, or leave out `raw_digest` and `bmap`"
    )]
    Qcow2Order,
    /// An image is judged by its first block before anything is erased, but in this qcow2 file too many other blocks
    /// come before that block.
    #[error(
        "checking the first block of the raw image: it comes after other blocks in the qcow2 file; leave out `digest`, \
         `sums` and `signature`, so that slipway can read the file in any order, or write the image again with \
         `qemu-img convert`"
    )]
    FirstBlockLate,
    /// The source is damaged or ends too early.
    #[error("decoding the {format} image after {raw_bytes} bytes of raw data")]
    Decode { format: &'static str, raw_bytes: u64, source: io::Error },
    /// The image does not fit the disk.
    #[error("writing the image to {disk}: the disk has {size}, but the image needs {needed}")]
    TooLarge {
        disk: String,
        /// Size of the disk, in words.
        size: String,
        /// What the image needs: its size if known, else how far the writer got. In words.
        needed: String,
    },
    /// The size of the raw image differs from the one in the workflow or the block map.
    #[error("checking the size of the raw image: expected {expected} bytes, got {found}")]
    RawSize {
        /// Size in the workflow or the block map, in bytes.
        expected: u64,
        /// Size found, in bytes: "at least N" if decoding stopped at N, because that is more than expected.
        found: String,
    },
    /// The digest of the bytes differs from the one in the workflow.
    #[error(
        "checking the digest of {what}: expected {expected}, got {}:{found} over {bytes} bytes; what the URL has is \
         not what the digest was made of: correct the one that is wrong",
        expected.algorithm().name()
    )]
    Digest {
        /// What was hashed: the stream as delivered, the raw image, or the manifest that names it.
        what: &'static str,
        expected: Digest,
        found: String,
        bytes: u64,
    },
    /// A part of the raw image does not match its block map.
    #[error(
        "checking {blocks} of the raw image (from byte {} to {}) against its block map: expected \
         {algorithm}:{expected}, got {algorithm}:{found}; the image is damaged, or the map belongs to another image: \
         fetch or make both again",
        bytes.start, bytes.end
    )]
    MappedDigest {
        /// The blocks as numbered in the map: "blocks 3-4".
        blocks: String,
        /// The range of these blocks in the raw image, in bytes.
        bytes: Range<u64>,
        algorithm: &'static str,
        expected: String,
        found: String,
    },
}

impl ImageError {
    /// Returns the error of a decoder that failed after `raw_bytes` bytes of raw data. Replaces the words that each
    /// library has for data that ends too early or begins with something else.
    pub(crate) fn decode(format: &'static str, raw_bytes: u64, source: io::Error) -> Self {
        let kind = source.kind();
        let source = match kind {
            io::ErrorKind::UnexpectedEof => {
                io::Error::new(kind, "the data ends too early; download or create the image again")
            }
            io::ErrorKind::InvalidInput => {
                let advice = "it is damaged, or has other data after its end; download or create the image again";
                io::Error::new(kind, format!("{advice} ({source})"))
            }
            _ => source,
        };
        Self::Decode { format, raw_bytes, source }
    }
}
