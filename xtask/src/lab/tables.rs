//! Partition tables as firmware finds them: an MBR in the first block, a GPT in the second, its backup in the last
//! (UEFI specification, 5.2 and 5.3). Blocks have 512 bytes.

use std::ops::Range;

/// Size of a block in bytes.
pub const BLOCK: usize = 512;
/// Size in bytes of the boot code in an MBR, before the disk's signature (UEFI specification, table 5.1).
const BOOT_CODE: usize = 440;
const MBR_ENTRIES: usize = 446;
const MBR_ENTRY: usize = 16;
const MBR_SIGNATURE: Range<usize> = 510..512;
const PROTECTIVE: u8 = 0xee;
const GPT_ENTRY: usize = 128;
/// Maximum number of entries of a GPT. No real table has more.
const MAX_ENTRIES: u64 = 1024;

/// Where a table was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// An MBR with boot code or partitions. A BIOS runs its code; UEFI firmware looks into its partitions.
    Mbr,
    /// A GPT after the first block.
    Primary,
    /// A GPT at the end of the disk.
    Backup,
}

/// A table through which firmware finds something on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Where the table is.
    pub place: Place,
    /// The byte ranges that the table refers to: its partitions, and the boot code before them.
    pub reaches: Vec<Range<usize>>,
}

/// Finds all valid tables of a disk. Firmware may use any of them.
pub fn find(disk: &[u8]) -> Vec<Table> {
    let last = (disk.len() / BLOCK).saturating_sub(1);
    let gpt = |place, lba| Some(Table { place, reaches: gpt(disk, lba)? });
    let mbr = mbr(disk).map(|reaches| Table { place: Place::Mbr, reaches });
    [mbr, gpt(Place::Primary, 1), gpt(Place::Backup, last)].into_iter().flatten().collect()
}

/// Whether the first block announces a GPT. Linux and UEFI firmware based on EDK2 look for a GPT only then
/// (MdeModulePkg/Universal/Disk/PartitionDxe/Gpt.c; block/partitions/efi.c).
pub fn is_protected(disk: &[u8]) -> bool {
    mbr_entries(disk).is_some_and(|entries| entries.iter().any(|entry| entry.kind == PROTECTIVE && entry.first == 1))
}

struct MbrEntry {
    kind: u8,
    first: usize,
    blocks: usize,
}

fn mbr_entries(disk: &[u8]) -> Option<Vec<MbrEntry>> {
    let mbr = disk.get(..BLOCK).filter(|mbr| mbr[MBR_SIGNATURE] == [0x55, 0xaa])?;
    let entry = |entry: &[u8]| {
        let (first, blocks) = (number(entry, 8, 4), number(entry, 12, 4));
        MbrEntry { kind: entry[4], first: first as usize, blocks: blocks as usize }
    };
    Some(mbr[MBR_ENTRIES..MBR_SIGNATURE.start].chunks_exact(MBR_ENTRY).map(entry).collect())
}

/// Returns the byte ranges that the MBR uses: its partitions and, if it has boot code, the range from byte 0 to the
/// first partition, because boot code continues there. On a disk with a GPT, that range is only the first block.
fn mbr(disk: &[u8]) -> Option<Vec<Range<usize>>> {
    let entries = mbr_entries(disk)?;
    let has_code = disk[..BOOT_CODE].iter().any(|byte| *byte != 0);
    let is_protective = entries.iter().any(|entry| entry.kind == PROTECTIVE);
    let own = entries.iter().filter(|entry| entry.kind != 0 && entry.kind != PROTECTIVE);
    let partitions = own.map(|entry| entry.first * BLOCK..(entry.first + entry.blocks) * BLOCK);
    let mut reaches: Vec<_> = partitions.filter(|bytes| bytes.start > 0 && bytes.end <= disk.len()).collect();
    if has_code {
        // If there is a GPT, its header follows the MBR, and further boot code is in a partition.
        let first = reaches.iter().map(|bytes| bytes.start).min().unwrap_or(disk.len());
        reaches.push(0..if is_protective { BLOCK } else { first });
    }
    (!reaches.is_empty()).then_some(reaches)
}

/// Returns the partitions of the GPT whose header is in block `lba`, if its header and entries are valid.
fn gpt(disk: &[u8], lba: usize) -> Option<Vec<Range<usize>>> {
    let header = disk.get(lba * BLOCK..(lba + 1) * BLOCK)?;
    let size = number(header, 12, 4) as usize;
    if !header.starts_with(b"EFI PART") || !(92..=BLOCK).contains(&size) || number(header, 24, 8) != lba as u64 {
        return None;
    }
    let mut summed = header[..size].to_vec();
    summed[16..20].fill(0);
    if u64::from(crc32(&summed)) != number(header, 16, 4) {
        return None;
    }
    let (count, entry_size) = (number(header, 80, 4), number(header, 84, 4));
    if entry_size != GPT_ENTRY as u64 || count > MAX_ENTRIES {
        return None;
    }
    let start = usize::try_from(number(header, 72, 8)).ok()?.checked_mul(BLOCK)?;
    let entries = disk.get(start..start.checked_add(count as usize * GPT_ENTRY)?)?;
    if u64::from(crc32(entries)) != number(header, 88, 4) {
        return None;
    }
    let used = entries.chunks_exact(GPT_ENTRY).filter(|entry| entry[..16] != [0; 16]);
    let bytes = |entry: &[u8]| {
        let first = usize::try_from(number(entry, 32, 8)).ok()?.checked_mul(BLOCK)?;
        let end = usize::try_from(number(entry, 40, 8)).ok()?.checked_add(1)?.checked_mul(BLOCK)?;
        (first < end && end <= disk.len()).then_some(first..end)
    };
    Some(used.filter_map(bytes).collect())
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Computes the checksum of GPT headers and entries (UEFI specification, 5.3.2): ISO 3309, reflected, polynomial
/// 0x04c11db7.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Result;

    use super::*;
    use crate::host::command::{command, run_quietly};

    const SIZE: usize = 4 << 20;

    /// A disk with a partition of one mebibyte, made by sgdisk.
    fn disk() -> Result<Vec<u8>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("disk");
        crate::lab::qemu::create_disk(&path, SIZE as u64)?;
        run_quietly(command("sgdisk", ["--new=1:2048:4095"]).arg(&path))?;
        Ok(std::fs::read(&path)?)
    }

    fn check(break_it: impl Fn(&mut [u8]), expect: &[Place], protected: bool) -> Result<()> {
        let mut disk = disk()?;
        break_it(&mut disk);
        let found = find(&disk);
        assert_eq!(found.iter().map(|table| table.place).collect::<Vec<_>>(), expect);
        assert_eq!(is_protected(&disk), protected);
        let mut reached =
            found.iter().filter(|table| table.place != Place::Mbr).flat_map(|table| table.reaches.clone());
        assert!(reached.all(|bytes| bytes == (1 << 20..2 << 20)), "{found:?}");
        Ok(())
    }

    #[test]
    fn a_gpt_counts_when_header_and_entries_are_whole() -> Result<()> {
        use Place::{Backup, Mbr, Primary};
        check(|_| {}, &[Primary, Backup], true)?;
        check(|disk| disk[..BLOCK].fill(0), &[Primary, Backup], false)?;
        check(|disk| disk[BLOCK..2 * BLOCK].fill(0), &[Backup], true)?;
        check(|disk| disk[2 * BLOCK] ^= 1, &[Backup], true)?;
        check(|disk| disk[SIZE - BLOCK + 16] ^= 1, &[Primary], true)?;
        check(|disk| disk[SIZE - 33 * BLOCK] ^= 1, &[Primary], true)?;
        check(|disk| disk[0] = 0xeb, &[Mbr, Primary, Backup], true)
    }

    #[test]
    fn an_mbr_with_code_reaches_what_lies_before_its_first_partition() {
        let mut disk = vec![0; SIZE];
        disk[MBR_SIGNATURE].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(find(&disk), []);
        disk[MBR_ENTRIES..][..MBR_ENTRY].copy_from_slice(&[0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0]);
        let partition = 1 << 20..2 << 20;
        assert_eq!(find(&disk), [Table { place: Place::Mbr, reaches: vec![partition.clone()] }]);
        disk[0] = 0xeb;
        assert_eq!(find(&disk), [Table { place: Place::Mbr, reaches: vec![partition, 0..1 << 20] }]);
    }
}
