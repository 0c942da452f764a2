//! Writes a GUID partition table with one EFI system partition (UEFI Specification 2.10, section 5.3): only the first
//! and the last sectors, so that the disk is never in memory as a whole.

use slipway_formats::crc32::crc32;

/// Bytes per sector.
pub const SECTOR: u64 = 512;
/// Sectors of the protective MBR, the header and the entries.
pub const HEAD_SECTORS: u64 = 2 + ENTRIES_SECTORS;
/// Sectors of the backup entries and header.
pub const TAIL_SECTORS: u64 = ENTRIES_SECTORS + 1;
/// 128 entries of 128 bytes, the minimum of the specification.
const ENTRIES_SECTORS: u64 = 32;
const ENTRIES: u32 = 128;
const ENTRY_SIZE: u32 = 128;
const HEADER_SIZE: u32 = 92;
/// The partition type "EFI system partition", C12A7328-F81F-11D2-BA4B-00A0C93EC93B, as on disk.
const EFI_SYSTEM: [u8; 16] =
    [0x28, 0x73, 0x2A, 0xC1, 0x1F, 0xF8, 0xD2, 0x11, 0xBA, 0x4B, 0x00, 0xA0, 0xC9, 0x3E, 0xC9, 0x3B];

/// The only partition, and the disk around it.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// Sectors of the disk.
    pub disk: u64,
    /// First sector of the partition.
    pub first: u64,
    /// Sectors of the partition.
    pub len: u64,
    /// Name of the partition, in ASCII, at most 36 characters.
    pub name: &'a str,
    /// GUID of the disk, as on disk.
    pub disk_guid: [u8; 16],
    /// GUID of the partition, as on disk.
    pub partition_guid: [u8; 16],
}

impl Table<'_> {
    /// Returns the first [`HEAD_SECTORS`] sectors.
    pub fn head(&self) -> Vec<u8> {
        let mut head = self.protective_mbr();
        head.extend(self.header(1, self.disk - 1, 2));
        head.extend(self.entries());
        head
    }

    /// Returns the last [`TAIL_SECTORS`] sectors.
    pub fn tail(&self) -> Vec<u8> {
        let mut tail = self.entries();
        tail.extend(self.header(self.disk - 1, 1, self.disk - TAIL_SECTORS));
        tail
    }

    /// Returns the protective MBR (section 5.2.3).
    fn protective_mbr(&self) -> Vec<u8> {
        let mut entry = vec![0, 0, 2, 0, 0xEE, 0xFF, 0xFF, 0xFF];
        entry.extend(1_u32.to_le_bytes());
        entry.extend(u32::try_from(self.disk - 1).unwrap_or(u32::MAX).to_le_bytes());
        let mut mbr = vec![0; 446];
        mbr.extend(entry);
        mbr.resize(510, 0);
        mbr.extend([0x55, 0xAA]);
        mbr
    }

    /// Returns a header (section 5.3.2). `own` and `other` are the sectors of this header and of its copy, and
    /// `entries` is the first sector of this header's entries.
    fn header(&self, own: u64, other: u64, entries: u64) -> Vec<u8> {
        let mut header = b"EFI PART".to_vec();
        header.extend(0x0001_0000_u32.to_le_bytes());
        header.extend(HEADER_SIZE.to_le_bytes());
        header.extend([0; 8]);
        for number in [own, other, HEAD_SECTORS, self.disk - TAIL_SECTORS - 1] {
            header.extend(number.to_le_bytes());
        }
        header.extend(self.disk_guid);
        header.extend(entries.to_le_bytes());
        for number in [ENTRIES, ENTRY_SIZE, crc32(&self.entries())] {
            header.extend(number.to_le_bytes());
        }
        let checksum = crc32(&header);
        header.splice(16..20, checksum.to_le_bytes());
        header.resize(SECTOR as usize, 0);
        header
    }

    /// Returns the partition entries (section 5.3.3).
    fn entries(&self) -> Vec<u8> {
        let mut entries = [EFI_SYSTEM, self.partition_guid].concat();
        for number in [self.first, self.first + self.len - 1, 0] {
            entries.extend(number.to_le_bytes());
        }
        entries.extend(self.name.encode_utf16().flat_map(u16::to_le_bytes));
        entries.resize((ENTRIES * ENTRY_SIZE) as usize, 0);
        entries
    }
}
