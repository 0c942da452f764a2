//! Disk images of QEMU, read without a second copy (QEMU, docs/interop/qcow2.txt; section names here refer to it).
//!
//! [`Image`] reads a source at offsets and yields the raw image from beginning to end. [`FileOrder`] reads a source
//! once, from beginning to end, and yields the raw image in the order of the file. That needs every table to come
//! before the data it maps. `qemu-img convert` writes such files unless it preallocates data. Most images that were
//! written to but never had a snapshot are in that order too. Both readers yield every byte of the raw image exactly
//! once, or an error.
//!
//! Images with a backing file, an external data file, encryption, or extended L2 entries are refused. So are images
//! that were not closed or are marked as damaged. Snapshots inside an image are ignored.
//!
//! Memory is at most 16 MiB for an [`Image`] and 24 MiB for a [`FileOrder`], whatever the source contains: 1 MiB of the
//! L1 table, 4 MiB of an L2 table and what it maps, 2 MiB of raw data, 4 MiB of compressed data and 4 MiB of decoder
//! history. A [`FileOrder`] also remembers up to 262,144 pending clusters.

mod decompress;
mod file_order;
mod header;
mod image;
mod map;
#[cfg(test)]
mod tests;

use std::io;

pub use file_order::FileOrder;
pub use header::{Compression, HEADER_LEN, Header, HeaderError};
pub use image::{Image, ReadAt};

/// Size in bytes of each buffer in which a machine puts the raw image. A large block takes up several buffers.
pub const BUFFER: usize = 1 << 20;
/// Least number of such buffers on a machine. It holds blocks in all but one of them until the first block of the raw
/// image comes, by which it judges the image before it touches the disk.
pub const BUFFERS: usize = 6;

/// A piece of the raw image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block<'a> {
    /// These bytes, not empty.
    Data(&'a [u8]),
    /// A number of zeros, at least one.
    Zero(u64),
}

/// Why a qcow2 image cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// The header is damaged, or the image uses something slipway does not read.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A table entry is invalid.
    #[error("reading {table} of the qcow2 image: entry {index} {reason}; check it with qemu-img check")]
    Entry {
        /// The L1 table, or an L2 table.
        table: String,
        index: u64,
        reason: &'static str,
    },
    /// The file ends before all of its required content.
    #[error(
        "reading {what} of the qcow2 image: the file ends at byte {end}, before byte {needed}; fetch or make it again"
    )]
    Truncated {
        what: &'static str,
        end: u64,
        /// Size in bytes that the file would need to have.
        needed: u64,
    },
    /// The source could not be read.
    #[error("reading the qcow2 image at byte {offset}")]
    Read { offset: u64, source: io::Error },
    /// A compressed cluster is damaged.
    #[error("decompressing the cluster of the qcow2 image at byte {offset}, for byte {guest} of the raw image")]
    Decompress {
        offset: u64,
        /// Byte offset in the raw image.
        guest: u64,
        source: io::Error,
    },
    /// The pass met a reference to a part of the file that it has already passed.
    #[error(
        "reading the qcow2 image in one pass: byte {offset} is needed after byte {at} has passed; use a server \
         that supports range requests (RFC 9110, section 14), or convert the image again with qemu-img convert -O \
         qcow2"
    )]
    NotInOrder {
        /// Byte offset in the file of what is needed.
        offset: u64,
        /// Byte offset in the file of what comes next.
        at: u64,
    },
    /// More clusters are pending than can be remembered.
    #[error(
        "reading the qcow2 image in one pass: it refers to more than {limit} clusters long before they come in the \
         file; use a server that supports range requests (RFC 9110, section 14), or convert the image again with \
         qemu-img convert -O qcow2"
    )]
    TooManyPending { limit: usize },
}

/// The first `len` bytes of a buffer that is at least as long.
fn first(bytes: &[u8], len: usize) -> &[u8] {
    bytes.split_at(len.min(bytes.len())).0
}

fn first_mut(bytes: &mut [u8], len: usize) -> &mut [u8] {
    bytes.split_at_mut(len.min(bytes.len())).0
}

/// Merges adjacent zeros into one piece, which it writes before the next data.
struct Out<W> {
    write: W,
    zero_start: u64,
    zero_len: u64,
}

impl<W> Out<W> {
    fn new(write: W) -> Self {
        Self { write, zero_start: 0, zero_len: 0 }
    }

    fn zero<E>(&mut self, guest: u64, len: u64) -> Result<(), E>
    where
        W: FnMut(u64, Block<'_>) -> Result<(), E>,
    {
        if self.zero_start + self.zero_len != guest {
            self.flush()?;
            self.zero_start = guest;
        }
        self.zero_len += len;
        Ok(())
    }

    fn data<E>(&mut self, guest: u64, bytes: &[u8]) -> Result<(), E>
    where
        W: FnMut(u64, Block<'_>) -> Result<(), E>,
    {
        self.flush()?;
        (self.write)(guest, Block::Data(bytes))
    }

    fn flush<E>(&mut self) -> Result<(), E>
    where
        W: FnMut(u64, Block<'_>) -> Result<(), E>,
    {
        match std::mem::take(&mut self.zero_len) {
            0 => Ok(()),
            len => (self.write)(self.zero_start, Block::Zero(len)),
        }
    }
}
