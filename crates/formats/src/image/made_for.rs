//! What an image shows about the disk and the machine that it is made for, so that it can be judged before either is
//! there.

use serde::{Deserialize, Serialize};
use slipway_protocol::shared::printable::two_sizes;

use crate::architecture::{self, Evidence};
use crate::partition_table::{self, Fault, Kind, Known, ReadAt, Table, is_extended};

/// Bytes at the beginning of a raw image that show most: the table, and the boot loaders on its first partitions.
pub const HEAD: usize = 8 << 20;
/// The block size that an MBR is counted in as long as nothing says otherwise.
const USUAL_BLOCK: u64 = 512;

/// What an image is made for, as far as it shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeFor {
    /// Size of the raw image in bytes, if it is known.
    pub size: Option<u64>,
    /// Block size in bytes in which the table counts, if known: a GPT says so, an MBR shows it by its file systems.
    pub block: Option<u64>,
    /// The numbers of all its partitions, if they are known.
    #[serde(default)]
    pub numbers: Option<Vec<u32>>,
    /// Byte at which its partitions end, with blocks of 512 bytes if the block size is not known.
    pub end: u64,
    /// What ends at `end`, in words, such as "partition 1".
    pub what: String,
    /// Whether machines can read the image only with range requests: a qcow2 image that one pass cannot read.
    #[serde(default)]
    pub needs_ranges: bool,
    /// Which architectures it is for. Empty if nothing shows it.
    pub machines: Vec<Evidence>,
}

impl MadeFor {
    /// Judges the table of an image for any disk, as [`partition_table::judge`], and what else it shows. `size` is that
    /// of the raw image in bytes, if it is known.
    pub fn of(size: Option<u64>, read: &mut ReadAt<'_>) -> Result<(Self, Table), Fault> {
        let table = partition_table::judge(&Known { image: size, ..Known::default() }, read)?;
        let block = table.block_is_certain.then_some(table.block);
        let (end, what) = table.end().unwrap_or_default();
        let machines = architecture::evidence(&table, read);
        Ok((Self { size, block, numbers: numbers(&table), end, what, needs_ranges: false, machines }, table))
    }

    /// Why the image cannot be used on a disk of this size and with these logical blocks, in bytes. A block size of 0
    /// is not known.
    pub fn mismatch(&self, path: &str, size: u64, block: u64) -> Option<String> {
        if let Some(needed) = self.size.filter(|needed| *needed > size) {
            let (has, needs) = two_sizes(size, needed);
            return Some(format!(
                "the disk {path} has {has}, but the image needs {needs}; use a larger disk, or another image"
            ));
        }
        if let Some(found) = self.block.filter(|found| block > 0 && *found != block) {
            return Some(format!(
                "the partition table of the image is made for blocks of {found} bytes, but the disk {path} has blocks \
                 of {block} bytes; use an image made for {block} bytes, or another disk"
            ));
        }
        let needed = if self.block.is_none() && block > 0 { in_blocks(self.end, block) } else { self.end };
        if needed <= size {
            return None;
        }
        let (has, needs) = two_sizes(size, needed);
        let what = &self.what;
        Some(format!(
            "the partition table of the image is made for a disk of {needs} or more, because {what} ends there, but \
             the disk {path} has {has}; use a larger disk, or another image"
        ))
    }
}

/// The numbers of all partitions. None without a table, or if logical ones may be in a part that is not known.
fn numbers(table: &Table) -> Option<Vec<u32>> {
    let is_whole = match table.kind {
        Kind::None => false,
        _ => !table.partitions.iter().any(|partition| is_extended(partition.mbr_type)),
    };
    is_whole.then(|| table.partitions.iter().map(|partition| partition.number).collect())
}

/// Converts a byte offset of an MBR from blocks of 512 bytes to blocks of `block` bytes.
fn in_blocks(end: u64, block: u64) -> u64 {
    (end / USUAL_BLOCK).saturating_mul(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 10 << 20;

    /// An MBR image with one partition from block 2048 on, of so many blocks, and ext4 at these places in bytes.
    fn mbr(blocks: u32, file_systems: &[usize]) -> Vec<u8> {
        let mut image = vec![0; LEN];
        image[450] = 0x83;
        image[454..458].copy_from_slice(&2048_u32.to_le_bytes());
        image[458..462].copy_from_slice(&blocks.to_le_bytes());
        image[510..512].copy_from_slice(&[0x55, 0xAA]);
        file_systems.iter().for_each(|at| image[at + 0x438..at + 0x43A].copy_from_slice(&[0x53, 0xEF]));
        image
    }

    fn made_for(image: &[u8], size: Option<u64>) -> MadeFor {
        let mut read = |at: u64, len: usize| image.get(at as usize..)?.get(..len).map(<[u8]>::to_vec);
        MadeFor::of(size, &mut read).unwrap().0
    }

    #[test]
    fn an_mbr_shows_its_blocks_by_its_file_systems() {
        let (usual, large) = (2048 * 512, 2048 * 4096);
        for (file_systems, expect) in
            [(&[usual][..], Some(512)), (&[large], Some(4096)), (&[usual, large], None), (&[], None)]
        {
            assert_eq!(made_for(&mbr(4096, file_systems), None).block, expect, "{file_systems:?}");
        }
        // Not known: the content where the partition would begin with the other block size.
        assert_eq!(made_for(&mbr(4096, &[usual])[..4 << 20], None).block, None);
    }

    #[test]
    fn an_image_for_large_blocks_ends_where_they_end() {
        // 1 GiB in blocks of 4096 bytes. All but the table and the file system is zeros.
        let head = mbr(1 << 18, &[]);
        let (start, blocks) = (2048 * 4096, 2048 + (1 << 18));
        let size = blocks * 4096;
        let mut read = |at: u64, len: usize| {
            at.checked_add(len as u64).filter(|end| *end <= size)?;
            let byte = |at: u64| match at.checked_sub(start) {
                Some(0x438) => 0x53,
                Some(0x439) => 0xEF,
                _ => head.get(at as usize).copied().unwrap_or_default(),
            };
            Some((at..at + len as u64).map(byte).collect())
        };
        let (found, table) = MadeFor::of(Some(size), &mut read).unwrap();
        assert_eq!((found.block, found.end, table.block), (Some(4096), size, 4096));
        assert_eq!(table.remarks, ["it is made for disks with blocks of 4096 bytes"]);
        assert_eq!(found.mismatch("/d", size, 4096), None);
        let refusal = found.mismatch("/d", size, 512).unwrap();
        assert!(
            refusal.contains("made for blocks of 4096 bytes, but the disk /d has blocks of 512 bytes"),
            "{refusal}"
        );
    }

    #[test]
    fn a_disk_is_told_why_an_image_is_not_for_it() {
        let check = |image: &MadeFor, size: u64, block: u64, expect: &str| match image.mismatch("/d", size, block) {
            Some(found) => assert!(!expect.is_empty() && found.contains(expect), "{found}"),
            None => assert_eq!(expect, ""),
        };
        const MIB: u64 = 1 << 20;
        let known = made_for(&mbr(4096, &[2048 * 512]), Some(LEN as u64));
        check(&known, 10 * MIB, 512, "");
        check(&known, 9 * MIB, 512, "the disk /d has 9 MiB, but the image needs 10 MiB");
        check(&known, 64 * MIB, 4096, "made for blocks of 512 bytes, but the disk /d has blocks of 4096 bytes");
        check(&known, 64 * MIB, 0, "");
        // The partition has 4096 blocks, of 512 or of 4096 bytes.
        let unknown = made_for(&mbr(4096, &[]), None);
        check(&unknown, 3 * MIB, 512, "");
        check(&unknown, 3 * MIB - 512, 512, "a disk of 3145728 bytes or more, because partition 1 ends there");
        check(&unknown, 24 * MIB, 4096, "");
        check(
            &unknown,
            23 * MIB,
            4096,
            "a disk of 24 MiB or more, because partition 1 ends there, but the disk /d has",
        );
        assert_eq!(made_for(&[0; 4096], Some(4096)), MadeFor { size: Some(4096), ..MadeFor::default() });
    }
}
