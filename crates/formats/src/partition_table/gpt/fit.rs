//! Fits a GPT to a larger disk: the backup moves to its end.

use super::super::mbr::{fit_protective, grow_in_hybrid};
use super::super::{Partition, le64, put};
use super::{
    ENTRIES_LBA, ENTRIES_SUM, ENTRY_FIRST, ENTRY_LAST, Gpt, HEADER_SIZE, HEADER_SUM, LAST_USABLE, OTHER_LBA, OWN_LBA,
    PRIMARY, USUAL_ENTRY,
};
use crate::crc32::crc32;

/// A GPT fitted to a disk.
#[derive(Clone, Debug)]
pub struct Fitted<'a> {
    gpt: &'a Gpt,
    /// Last block of the disk, for the backup header.
    last: u64,
    /// First block of the backup of the entries.
    backup_entries: u64,
    /// Range of the primary entries in the head.
    entries: std::ops::Range<usize>,
}

impl Gpt {
    /// Plans the table for a disk of `blocks` blocks. `head` is the beginning of the image. Fails with the reason, as a
    /// clause, if the table cannot be fitted to the disk.
    pub fn fit(&self, blocks: u64, partitions: &[Partition], head: &[u8]) -> Result<Fitted<'_>, String> {
        let (block, len) = (self.block(), self.entries_len());
        let start = self.entries_lba.saturating_mul(block);
        let end = start.saturating_add(len);
        if end > head.len() as u64 {
            return Err("its entries are not at the beginning of the disk".to_owned());
        }
        let (Some(last), Some(backup_entries)) = (blocks.checked_sub(1), blocks.checked_sub(1 + len.div_ceil(block)))
        else {
            return Err("the disk is too small for a backup".to_owned());
        };
        let ends = partitions.iter().map(|partition| partition.bytes.end.div_ceil(block));
        if ends.max().unwrap_or(0).max(end.div_ceil(block)).max(self.first_usable + 1) > backup_entries {
            return Err("the blocks for it at the end of the disk are in use".to_owned());
        }
        Ok(Fitted { gpt: self, last, backup_entries, entries: start as usize..end as usize })
    }
}

impl Fitted<'_> {
    /// Byte at which the area for partitions ends.
    pub fn usable_end(&self) -> u64 {
        self.backup_entries * self.gpt.block()
    }

    /// Byte offsets of the backup: of its entries and of its header.
    pub fn backup_at(&self) -> (u64, u64) {
        (self.backup_entries * self.gpt.block(), self.last * self.gpt.block())
    }

    /// Changes the primary copy in the head of the image. With `grown`, a partition number and a byte, makes this
    /// partition end at this byte. Returns the entries and the header of the backup, each in whole blocks. The
    /// checksums in the head were right before, so nothing damaged gets a right one.
    pub fn write(&self, head: &mut [u8], grown: Option<(u32, u64)>) -> (Vec<u8>, Vec<u8>) {
        let block = self.gpt.block();
        if let Some((number, end)) = grown {
            let at = self.entries.start + number.saturating_sub(1) as usize * USUAL_ENTRY as usize;
            let [first, last] = [ENTRY_FIRST, ENTRY_LAST].map(|field| le64(head, at + field).unwrap_or_default());
            grow_in_hybrid(head, first..last.saturating_add(1), end / block);
            put(head, at + ENTRY_LAST, &(end / block - 1).to_le_bytes());
        }
        let mut entries = head.get(self.entries.clone()).unwrap_or_default().to_vec();
        let sum = crc32(&entries);
        entries.resize(entries.len().next_multiple_of(block as usize), 0);
        let mut primary = self.gpt.header.clone();
        put(&mut primary, OTHER_LBA, &self.last.to_le_bytes());
        put(&mut primary, LAST_USABLE, &(self.backup_entries - 1).to_le_bytes());
        put(&mut primary, ENTRIES_SUM, &sum.to_le_bytes());
        let mut backup = primary.clone();
        put(&mut backup, OWN_LBA, &self.last.to_le_bytes());
        put(&mut backup, OTHER_LBA, &PRIMARY.to_le_bytes());
        put(&mut backup, ENTRIES_LBA, &self.backup_entries.to_le_bytes());
        seal(&mut primary);
        seal(&mut backup);
        put(head, (PRIMARY * block) as usize, &primary);
        fit_protective(head, self.last + 1);
        (entries, backup)
    }
}

/// Sets the checksum of a header.
fn seal(header: &mut [u8]) {
    put(header, HEADER_SUM, &[0; 4]);
    let len = super::le32(header, HEADER_SIZE).unwrap_or_default() as usize;
    let sum = crc32(header.get(..len).unwrap_or_default());
    put(header, HEADER_SUM, &sum.to_le_bytes());
}
