//! ZFS (Sun Microsystems, ZFS On-Disk Specification, chapter 1; the list of pairs in XDR, RFC 4506).

use super::FileSystem;
use super::area::Area;
use super::fields::{be32, be64, text};

const LABEL: u64 = 256 << 10;
const UBERBLOCKS: usize = 128 << 10;
const UBERBLOCK: usize = 1024;
/// Number of uberblocks that must be found, counted over all labels, because single ones are easily left behind by a
/// wipe.
const WANTED: usize = 4;
const PAIRS: u64 = 16 << 10;
const PAIRS_LEN: u64 = 4096;

/// Detects a device of a ZFS pool: four labels, two at each end.
pub(super) fn zfs(area: &Area) -> Option<FileSystem> {
    const MIN_SIZE: u64 = 64 << 20;
    if area.size() < MIN_SIZE {
        return None;
    }
    let end = area.size() - area.size() % LABEL;
    let mut found = 0;
    for offset in [0, LABEL, end - 2 * LABEL, end - LABEL] {
        if area.is_in_partition(&(offset..offset + LABEL)) {
            continue;
        }
        found += uberblocks(&area.bytes(offset, LABEL)?);
        if found >= WANTED {
            return Some(named(area, offset).unwrap_or_else(|| FileSystem::of_kind("zfs_member")));
        }
    }
    None
}

fn uberblocks(label: &[u8]) -> usize {
    const MAGIC: u64 = 0x00BA_B10C;
    let is_one = |block: &&[u8]| block.starts_with(&MAGIC.to_le_bytes()) || block.starts_with(&MAGIC.to_be_bytes());
    label.get(UBERBLOCKS..).unwrap_or_default().chunks(UBERBLOCK).filter(is_one).count()
}

/// Reads the pool's GUID and name from the pairs at the top of the list.
fn named(area: &Area, label: u64) -> Option<FileSystem> {
    const HEADER: usize = 12;
    const NAME: usize = 12;
    const STRING: u32 = 9;
    const UINT64: u32 = 8;
    const LIST: u32 = 19;
    /// Size in bytes of the header of a nested list, before the pairs of that list.
    const LIST_HEADER: usize = 16;
    const LIST_END: usize = 8;
    let list = area.bytes(label + PAIRS, PAIRS_LEN)?;
    let mut file_system = FileSystem::of_kind("zfs_member");
    let (mut at, mut depth) = (HEADER, 0_u32);
    while let Some(pair) = list.get(at..).filter(|rest| rest.len() > NAME) {
        let size = be32(pair, 0)? as usize;
        if size == 0 {
            // The end of a list.
            if depth == 0 {
                break;
            }
            depth -= 1;
            at += LIST_END;
            continue;
        }
        let name_len = be32(pair, 8)? as usize;
        let value_at = NAME + name_len.next_multiple_of(4);
        let (Some(name), Some(value)) = (
            pair.get(NAME..NAME + name_len.min(PAIRS_LEN as usize)),
            pair.get(..size).and_then(|pair| pair.get(value_at..)),
        ) else {
            break;
        };
        if value.len() >= LIST_HEADER && be32(value, 0)? == LIST {
            depth += 1;
            at += value_at + LIST_HEADER;
            continue;
        }
        match (name, be32(value, 0)) {
            (b"name", Some(STRING)) if depth == 0 => file_system.label = text(value, 12, be32(value, 8)? as usize),
            (b"pool_guid", Some(UINT64)) if depth == 0 => {
                let guid = be64(value, 8)?;
                file_system.uuid = (guid != 0).then(|| guid.to_string());
            }
            _ => {}
        }
        at += size;
    }
    Some(file_system)
}
