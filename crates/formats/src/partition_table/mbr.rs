//! MBR: four records, and a chain of further boot records in an extended partition.

use std::ops::Range;

use super::{
    BLOCK_SIZES, Fault, Found, Image, Kind, Known, MAKE_AGAIN, Partition, Table, content, le32, overlapping, put,
};

/// Offset of the records, their size, and the signature of a boot record (UEFI specification, tables 5-1 and 5-2).
const RECORDS: usize = 446;
const RECORD_SIZE: usize = 16;
const SIGNATURE: [u8; 2] = [0x55, 0xAA];
/// Type of the protective record of a GPT, and where it begins. Linux and firmware accept no other place.
const PROTECTIVE: u8 = 0xEE;
const PROTECTIVE_START: u32 = 1;
/// Cylinder, head and sector of a block for which these fields are too small.
const BEYOND_CHS: [u8; 3] = [0xFE, 0xFF, 0xFF];
/// Number of the first logical partition, as in Linux, whatever the four primary ones are.
const FIRST_LOGICAL: u32 = 5;
/// Most links that are followed in an extended partition. Linux follows 100.
const MAX_LINKS: usize = 128;

/// Whether an MBR partition of this type contains other partitions.
pub fn is_extended(mbr_type: u8) -> bool {
    matches!(mbr_type, 0x05 | 0x0F | 0x85)
}

/// A partition record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// 0x80 if the partition is active, else 0.
    indicator: u8,
    kind: u8,
    pub(super) start: u32,
    blocks: u32,
}

impl Record {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let [indicator, kind] = [0, 4].map(|at| bytes.get(at).copied());
        Some(Self { indicator: indicator?, kind: kind?, start: le32(bytes, 8)?, blocks: le32(bytes, 12)? })
    }

    /// Whether it is the record of a partition. The protective record is not. A record of type 0 with blocks is: Linux,
    /// libblkid and fdisk go by the blocks (block/partitions/msdos.c), and mkisofs writes such records.
    fn is_partition(&self) -> bool {
        (self.kind != 0 || self.blocks > 0) && self.kind != PROTECTIVE
    }

    fn has_valid_indicator(&self) -> bool {
        matches!(self.indicator, 0 | 0x80)
    }

    /// The partition, with its start counted from block `from`.
    fn partition(&self, number: u32, from: u64, block: u64) -> Partition {
        let start = from.saturating_add(self.start.into());
        let end = start.saturating_add(self.blocks.into());
        let bytes = start.saturating_mul(block)..end.saturating_mul(block);
        Partition { number, bytes, mbr_type: self.kind, ..Partition::default() }
    }
}

/// A boot record.
#[derive(Clone, Copy, Debug)]
pub(super) struct BootRecord {
    records: [Record; 4],
    /// Whether the boot record belongs to a file system on a whole disk.
    pub(super) is_file_system: bool,
}

impl BootRecord {
    /// Reads the first 512 bytes of a block. None without the signature of a boot record.
    pub(super) fn parse(block: &[u8]) -> Option<Self> {
        let records = records(block).filter(|_| block.get(510..512) == Some(&SIGNATURE))?;
        // A jump, and the bytes per sector of a FAT, exFAT (none) or NTFS file system.
        let is_jump = matches!(block.first(), Some(0xEB | 0xE9));
        let is_sector = matches!(block.get(11..13), Some([0, 0 | 2 | 4 | 8 | 16]));
        Some(Self { records, is_file_system: is_jump && is_sector })
    }

    /// Names a record of a hybrid MBR that matches no partition of the GPT, such as one that ends after the disk. Only
    /// firmware and systems without GPT support read such a record.
    pub(super) fn beside(&self, partitions: &[Partition], block: u64) -> Option<String> {
        let is_stray = |(number, record): &(u32, &Record)| {
            let bytes = record.partition(*number, 0, block).bytes;
            record.is_partition() && bytes.start > 0 && !partitions.iter().any(|partition| partition.bytes == bytes)
        };
        let (number, _) = (1..).zip(&self.records).find(is_stray).filter(|_| !partitions.is_empty())?;
        Some(format!("record {number} of its hybrid MBR matches no partition of its GPT"))
    }

    /// Whether the boot record announces a GPT.
    pub(super) fn has_protective(&self) -> bool {
        self.protective().is_some()
    }

    fn protective(&self) -> Option<&Record> {
        self.records.iter().find(|record| record.kind == PROTECTIVE)
    }

    /// Where the protective record begins, if that is not where Linux and firmware expect it.
    pub(super) fn misplaced_protective(&self) -> Option<u32> {
        let is_right = |record: &Record| record.kind == PROTECTIVE && record.start == PROTECTIVE_START;
        let start = self.protective()?.start;
        (!self.records.iter().any(is_right)).then_some(start)
    }

    /// Whether it has partitions. The boot sector of a FAT or NTFS file system on a whole disk has code in the place of
    /// records. Linux uses the same test. Records of type 0 alone do not make a table: a damaged table looks like that.
    pub(super) fn has_partitions(&self) -> bool {
        let has_type = |record: &Record| record.is_partition() && record.kind != 0;
        self.records.iter().all(Record::has_valid_indicator) && self.records.iter().any(has_type)
    }

    /// The number of the first record with an invalid indicator, if the records are otherwise sound: each is empty or
    /// has a type and a place on the disk.
    pub(super) fn damaged_indicator(&self, block: u64, known: &Known) -> Option<usize> {
        let all_sound = !self.is_file_system && are_sound(&self.records, block, known);
        let damaged = self.records.iter().position(|record| !record.has_valid_indicator());
        damaged.filter(|_| all_sound).map(|index| index + 1)
    }
}

/// The records of a boot record.
fn records(block: &[u8]) -> Option<[Record; 4]> {
    let mut records = [Record::default(); 4];
    for (record, bytes) in records.iter_mut().zip(block.get(RECORDS..)?.chunks(RECORD_SIZE)) {
        *record = Record::parse(bytes)?;
    }
    Some(records)
}

/// Whether each record is empty, or has a type and a place on the disk.
fn are_sound(records: &[Record], block: u64, known: &Known) -> bool {
    let end = known.disk.or(known.image).unwrap_or(u64::MAX) / block;
    let fits = |record: &Record| {
        record.start > 0 && record.blocks > 0 && u64::from(record.start) + u64::from(record.blocks) <= end
    };
    records.iter().all(|record| *record == Record::default() || record.is_partition() && fits(record))
}

/// Whether a first block can only belong to an MBR with partitions, but lacks its signature.
pub(super) fn lacks_signature(bytes: &[u8], block: u64, known: &Known) -> bool {
    let is_table = |records: [Record; 4]| {
        let are_valid = records.iter().all(Record::has_valid_indicator) && are_sound(&records, block, known);
        are_valid && records.iter().any(Record::is_partition)
    };
    bytes.get(510..512).is_some_and(|signature| signature != SIGNATURE) && records(bytes).is_some_and(is_table)
}

/// Judges an MBR with partitions in an image that also has a GPT. The MBR does not announce the GPT, which may be left
/// over from an earlier use.
pub(super) fn judge_beside_gpt(boot: &BootRecord, block: u64, image: &mut Image<'_, '_>) -> Result<Table, Fault> {
    let starts = |block: u32| move |record: &&Record| record.is_partition() && record.start == block;
    if let Some(record) = boot.records.iter().find(starts(PROTECTIVE_START)) {
        let reason = format!("the protective record of its GPT has the type {:#04x} and not 0xee", record.kind);
        return Err(Fault::damaged(format!("{reason}, so neither Linux nor firmware finds the GPT"), MAKE_AGAIN));
    }
    let mut table = judge(boot, block, image)?;
    // Images that are also for optical discs have both, for firmware that looks for one of them.
    if !boot.records.iter().any(|record| starts(0)(&record)) {
        let remark = "it has an MBR and a GPT without a protective record, so Linux and firmware read only the MBR";
        table.remarks.push(remark.to_owned());
    }
    Ok(table)
}

/// Judges an MBR with partitions. An MBR does not say for which block size it is made. If no partition begins with
/// known content at this block size, but one does at another, the MBR is made for the other.
pub(super) fn judge(boot: &BootRecord, block: u64, image: &mut Image<'_, '_>) -> Result<Table, Fault> {
    let mut table = Table::without_partitions(Kind::Mbr, block);
    let records = (1..).zip(&boot.records).filter(|(_, record)| record.is_partition());
    let (used, empty): (Vec<_>, Vec<_>) = records.partition(|(_, record)| record.blocks > 0);
    table.remarks.extend(empty.iter().map(|(number, _)| format!("partition {number} has no blocks")));
    table.partitions.extend(used.iter().map(|(number, record)| record.partition(*number, 0, block)));
    if let Err(fault) = within_disk(&table.partitions, block, image) {
        // The MBR may be made for smaller blocks, with which it fits.
        let primary: Vec<u64> = used.iter().map(|(_, record)| record.start.into()).collect();
        let found = Some(&primary).filter(|primary| !begins(primary, block, image).contains(&Some(true)));
        let found = found.and_then(|primary| meant(primary, block, image));
        return Err(match (found, image.known.block) {
            (Some(found), Some(expected)) => Fault::BlockSize { expected, found },
            _ => fault,
        });
    }
    table.remarks.extend(overlapping(table.partitions.iter()));
    let mut logical = Vec::new();
    for (number, record) in used.iter().filter(|(_, record)| is_extended(record.kind)) {
        chain(*number, record, block, image, &mut logical, &mut table.remarks)?;
    }
    within_disk(&logical, block, image)?;
    table.remarks.extend(overlapping(logical.iter()));
    table.partitions.extend(logical);
    let starts: Vec<u64> = table.partitions.iter().map(|partition| partition.bytes.start / block).collect();
    let own = begins(&starts, block, image);
    // Where the logical partitions are is only known for this block size.
    let primary = starts.get(..used.len()).unwrap_or_default();
    let mut others = BLOCK_SIZES.into_iter().filter(|size| *size != block);
    if own.iter().any(|found| *found != Some(false)) {
        let is_known = image.known.block.is_some();
        let is_only_here = |size| only_at_first(&own, &begins(primary, size, image));
        table.block_is_certain = !is_known && others.all(is_only_here);
        return Ok(table);
    }
    match (meant(primary, block, image), image.known.block) {
        (Some(found), Some(expected)) => Err(Fault::BlockSize { expected, found }),
        (Some(found), None) => {
            let mut table = judge(boot, found, image)?;
            table.remarks.push(format!("it is made for disks with blocks of {found} bytes"));
            Ok(table)
        }
        (None, _) => Ok(table),
    }
}

/// The other block size with which known content begins at these blocks, the starts of partitions.
fn meant(starts: &[u64], block: u64, image: &mut Image<'_, '_>) -> Option<u64> {
    BLOCK_SIZES.into_iter().filter(|size| *size != block).find(|size| {
        let found = begins(starts, *size, image);
        found.contains(&Some(true)) && !found.contains(&None)
    })
}

/// Whether known content begins at each of these blocks of `size` bytes, except for the first block. None where too
/// little of the image is known.
fn begins(starts: &[u64], size: u64, image: &mut Image<'_, '_>) -> Vec<Option<bool>> {
    let mut is_at = |start: u64| content::is_at(start.saturating_mul(size), image);
    starts.iter().map(|start| if *start > 0 { is_at(*start) } else { Some(false) }).collect()
}

/// Whether known content begins at one of the places in `first`, and at none of those in `others`.
fn only_at_first(first: &[Option<bool>], others: &[Option<bool>]) -> bool {
    let is_first = |pair: (&Option<bool>, &Option<bool>)| pair == (&Some(true), &Some(false));
    !others.contains(&Some(true)) && first.iter().zip(others).any(is_first)
}

fn within_disk(partitions: &[Partition], block: u64, image: &Image<'_, '_>) -> Result<(), Fault> {
    let Some(last) = partitions.iter().max_by_key(|partition| partition.bytes.end) else { return Ok(()) };
    // An MBR does not say for which block size it is made.
    let unit = if block == 512 { String::new() } else { format!(", in blocks of {block} bytes,") };
    image.within_disk(|| format!("{}{unit}", last.describe()), last.bytes.end)
}

/// Adds the partitions inside an extended one: a chain of boot records. Each has one partition, counted from that
/// record, and a link to the next record, counted from the extended partition.
fn chain(
    number: u32,
    extended: &Record,
    block: u64,
    image: &mut Image<'_, '_>,
    logical: &mut Vec<Partition>,
    remarks: &mut Vec<String>,
) -> Result<(), Fault> {
    let first = u64::from(extended.start);
    let end = first + u64::from(extended.blocks);
    let is_within = |link: u64| (first..end).contains(&link);
    let mut seen = vec![first];
    let mut next = Some(first);
    while let Some(link) = next {
        let offset = link.saturating_mul(block);
        let (found, is_damaged) = match image.get(offset, super::BOOT_RECORD) {
            // sfdisk reads a record without the signature. Linux ignores it and what follows it.
            Found::Bytes(bytes) => {
                (BootRecord::parse(&bytes), link != first || lacks_signature(&bytes, block, &image.known))
            }
            // sfdisk names such a link, Linux ignores what follows it, and parted refuses the table.
            Found::Absent if !is_within(link) => {
                let reason = format!("the chain of logical partitions in partition {number} leads to byte {offset}");
                return Err(Fault::damaged(format!("{reason}, after the end of the image"), MAKE_AGAIN));
            }
            // The extended partition itself ends beyond the image, which is a remark of its own.
            Found::Absent | Found::Unknown => return Ok(()),
        };
        let Some(found) = found else {
            if is_damaged {
                let reason =
                    format!("the chain of logical partitions in partition {number} is broken at byte {offset}");
                return Err(Fault::damaged(reason, MAKE_AGAIN));
            }
            remarks.push(format!("partition {number} is for logical partitions, but has none"));
            return Ok(());
        };
        let inner = |record: &&Record| record.is_partition() && !is_extended(record.kind) && record.blocks > 0;
        if let Some(record) = found.records.iter().find(inner) {
            let partition = record.partition(FIRST_LOGICAL + logical.len() as u32, link, block);
            if !is_within(link) || partition.bytes.end > end.saturating_mul(block) {
                remarks.push(format!("partition {} is not within partition {number}", partition.number));
            }
            logical.push(partition);
        }
        let is_link = |record: &&Record| is_extended(record.kind) && record.blocks > 0;
        next = found.records.iter().find(is_link).map(|record| first + u64::from(record.start));
        if next.is_some_and(|next| seen.contains(&next)) || seen.len() > MAX_LINKS {
            let reason = format!("the chain of logical partitions in partition {number} has no end");
            return Err(Fault::damaged(reason, MAKE_AGAIN));
        }
        seen.extend(next);
    }
    Ok(())
}

/// In a hybrid MBR, makes the record of the partition with these blocks end before block `end`. sgdisk and firmware
/// that reads the MBR expect both tables to agree.
pub(super) fn grow_in_hybrid(head: &mut [u8], blocks: Range<u64>, end: u64) {
    let Some(boot) = head.get(..super::BOOT_RECORD).and_then(BootRecord::parse) else { return };
    let is_it = |record: &Record| {
        let start = u64::from(record.start);
        record.is_partition() && (start..start + u64::from(record.blocks)) == blocks
    };
    let len = u32::try_from(end.saturating_sub(blocks.start));
    if let (Some(index), Ok(len)) = (boot.records.iter().position(is_it), len) {
        let at = RECORDS + index * RECORD_SIZE;
        put(head, at + 5, &BEYOND_CHS);
        put(head, at + 12, &len.to_le_bytes());
    }
}

/// Gives the protective record at the start of a disk the size of the disk in blocks, if it is the only record and its
/// size is not 0xFFFFFFFF, which means any size (UEFI specification, table 5-4).
pub(super) fn fit_protective(head: &mut [u8], blocks: u64) {
    let Some(boot) = head.get(..super::BOOT_RECORD).and_then(BootRecord::parse) else { return };
    let index = boot.records.iter().position(|record| record.kind == PROTECTIVE);
    let is_hybrid = boot.records.iter().any(Record::is_partition);
    let Some((index, record)) = index.and_then(|index| Some((index, boot.records.get(index)?))) else { return };
    if is_hybrid || record.start != PROTECTIVE_START || record.blocks == u32::MAX {
        return;
    }
    let size = u32::try_from(blocks.saturating_sub(1)).unwrap_or(u32::MAX);
    let at = RECORDS + index * RECORD_SIZE;
    if size != record.blocks {
        // Cylinder, head and sector of a block for which these fields are too small.
        put(head, at + 5, &[0xFF; 3]);
        put(head, at + 12, &size.to_le_bytes());
    }
}
