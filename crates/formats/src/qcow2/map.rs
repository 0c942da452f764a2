//! Entries of the tables that map the raw image ("Cluster mapping").

use super::Error;
use super::header::Header;

const OFFSET: u64 = 0x00FF_FFFF_FFFF_FE00;
/// Flag: the refcount is exactly one. A reader does not need it.
const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1 << 0;
const SECTOR: u64 = 512;

/// Where the data of a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cluster {
    /// Nowhere: it reads as zeros.
    Zero,
    /// At this byte of the file.
    Plain(u64),
    /// Compressed, at this byte of the file, in at most this many bytes.
    Compressed(u64, usize),
}

/// Byte of the file at which the L2 table begins; 0 if there is none.
pub(super) fn l1_entry(header: &Header, index: usize, entry: u64) -> Result<u64, Error> {
    let offset = entry & OFFSET;
    let reason = match entry {
        _ if entry & !(OFFSET | COPIED) != 0 => "has reserved bits set",
        _ if !offset.is_multiple_of(header.cluster()) => "does not point to the start of a cluster",
        _ => return Ok(offset),
    };
    Err(Error::Entry { table: "the L1 table".to_owned(), index: index as u64, reason })
}

/// Where the cluster of an L2 entry is.
pub(super) fn l2_entry(header: &Header, l1_index: usize, index: usize, entry: u64) -> Result<Cluster, Error> {
    let cluster = if entry & COMPRESSED != 0 { compressed(header, entry) } else { standard(header, entry) };
    cluster.map_err(|reason| in_l2(l1_index, index, reason))
}

/// An error about an entry of an L2 table.
pub(super) fn in_l2(l1_index: usize, index: usize, reason: &'static str) -> Error {
    Error::Entry { table: format!("L2 table {l1_index}"), index: index as u64, reason }
}

fn standard(header: &Header, entry: u64) -> Result<Cluster, &'static str> {
    let offset = entry & OFFSET;
    match entry {
        _ if entry & !(OFFSET | COPIED | ZERO) != 0 => Err("has reserved bits set"),
        _ if !offset.is_multiple_of(header.cluster()) => Err("does not point to the start of a cluster"),
        _ if entry & ZERO != 0 && header.version < 3 => Err("is of a kind that version 2 does not have"),
        _ if entry & ZERO != 0 || entry == 0 => Ok(Cluster::Zero),
        _ if offset == 0 => Err("points into the header"),
        _ => Ok(Cluster::Plain(offset)),
    }
}

/// Reads the entry of a compressed cluster ("Compressed Clusters Descriptor"): the upper bits hold the number of
/// sectors. How many bits depends on the cluster size.
fn compressed(header: &Header, entry: u64) -> Result<Cluster, &'static str> {
    let offset_bits = 62 - (header.cluster_bits - 8);
    let offset = entry & ((1 << offset_bits) - 1);
    let sectors = (entry & !(COPIED | COMPRESSED)) >> offset_bits;
    match entry {
        _ if entry & COPIED != 0 || offset >= 1 << 56 => Err("has reserved bits set"),
        _ if offset < header.cluster() => Err("points into the header"),
        _ => Ok(Cluster::Compressed(offset, ((sectors + 1) * SECTOR - offset % SECTOR) as usize)),
    }
}
