//! Swap space (Linux, include/linux/swap.h, union swap_header).

use slipway_protocol::MakeFileSystem;

use super::clear;
use crate::disk::open::OpenDisk;
use crate::disk::partitions::Partition;
use crate::error::Error;
use crate::random;

/// Page size in bytes. A kernel with larger pages does not accept this swap space.
const PAGE: u64 = 4096;
/// The kernel needs at least this many pages, including the header.
const MIN_PAGES: u64 = 10;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";
/// Offsets of header fields in bytes: version, number of the last page, UUID and label.
const VERSION: usize = 1024;
const LAST_PAGE: usize = 1028;
const UUID: usize = 1036;
const LABEL: usize = 1052;

/// Returns the number of pages in `len` bytes, or why they are too few.
pub(super) fn pages(len: u64) -> Result<u64, String> {
    let enough = Some(len / PAGE).filter(|pages| *pages >= MIN_PAGES);
    enough.ok_or_else(|| format!("swap space needs at least {} bytes; make the partition larger", MIN_PAGES * PAGE))
}

/// Makes swap space.
pub(super) fn make(disk: &OpenDisk, partition: &Partition, pages: u64, inputs: &MakeFileSystem) -> Result<(), Error> {
    let uuid = match inputs.uuid.as_deref().and_then(random::parse_uuid) {
        Some(uuid) => uuid,
        None => random::uuid()?,
    };
    let header = header(pages, &uuid, inputs.label.as_deref().unwrap_or_default());
    clear(disk, partition)?;
    disk.write_at(&header, partition.bytes.start)?;
    disk.flush()
}

fn header(pages: u64, uuid: &[u8; 16], label: &str) -> Vec<u8> {
    let mut page = vec![0; PAGE as usize];
    let last_page = u32::try_from(pages - 1).unwrap_or(u32::MAX);
    page[VERSION..][..4].copy_from_slice(&1_u32.to_le_bytes());
    page[LAST_PAGE..][..4].copy_from_slice(&last_page.to_le_bytes());
    page[UUID..][..16].copy_from_slice(uuid);
    page[LABEL..][..label.len()].copy_from_slice(label.as_bytes());
    let magic = page.len() - MAGIC.len();
    page[magic..].copy_from_slice(MAGIC);
    page
}
