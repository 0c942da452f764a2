//! The area to be probed: a disk, a partition or an image file, read in bounded pieces.

use std::cell::RefCell;
use std::ops::Range;

use super::fields::is_at;
use crate::error::Error;

/// Maximum size of a read in bytes. No superblock is larger; the root directory of a FAT file system is the largest
/// piece.
const MAX_READ: u64 = 2 << 20;
/// libblkid searches for magic strings in whole pieces of this many bytes, so a match in a shorter last piece does not
/// count.
const MAGIC_PIECE: u64 = 1024;
/// Size of a floppy disk in bytes. It has no RAID and not more than one file system.
const TINY: u64 = 1440 * 1024;

/// Fills a buffer from an offset in bytes.
pub(super) type ReadAt<'a> = &'a dyn Fn(&mut [u8], u64) -> Result<(), Error>;

/// An area that may have a file system. Reads beyond its end return nothing. The first read that fails is kept, and
/// then the result of the probe must not be used.
pub(super) struct Area<'a> {
    size: u64,
    /// Logical block size in bytes.
    block: u32,
    /// The partitions of a whole disk; none for a partition.
    partitions: Option<&'a [Range<u64>]>,
    read: ReadAt<'a>,
    failure: RefCell<Option<Error>>,
}

impl<'a> Area<'a> {
    /// Makes an area of `size` bytes.
    pub(super) fn new(size: u64, block: u32, partitions: Option<&'a [Range<u64>]>, read: ReadAt<'a>) -> Self {
        Self { size, block, partitions, read, failure: RefCell::new(None) }
    }

    /// Returns the error of the read that failed, if one did.
    pub(super) fn into_failure(self) -> Option<Error> {
        self.failure.into_inner()
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn block(&self) -> u64 {
        u64::from(self.block)
    }

    pub(super) fn is_tiny(&self) -> bool {
        self.size <= TINY
    }

    pub(super) fn is_whole_disk(&self) -> bool {
        self.partitions.is_some()
    }

    /// Whether a partition of this disk covers the range, so that its content belongs to the partition.
    pub(super) fn is_in_partition(&self, range: &Range<u64>) -> bool {
        let covers = |partition: &Range<u64>| partition.start <= range.start && range.end <= partition.end;
        self.partitions.is_some_and(|partitions| partitions.iter().any(covers))
    }

    /// Whether this range is inside the area.
    pub(super) fn holds(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.size)
    }

    /// Reads the bytes at an offset, all or none.
    pub(super) fn bytes(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        if !self.holds(offset, len) || len > MAX_READ || self.failure.borrow().is_some() {
            return None;
        }
        let mut bytes = vec![0; len as usize];
        match (self.read)(&mut bytes, offset) {
            Ok(()) => Some(bytes),
            Err(error) => {
                self.failure.replace(Some(error));
                None
            }
        }
    }

    /// Whether there is a magic string at an offset.
    pub(super) fn has(&self, offset: u64, magic: &[u8]) -> bool {
        let start = offset - offset % MAGIC_PIECE;
        self.bytes(start, MAGIC_PIECE).is_some_and(|piece| is_at(&piece, (offset - start) as usize, magic))
    }
}
