//! Partitions are inside the disk, and a table keeps its partitions when it is fitted to a disk. The first byte says
//! whether the last partition grows. The rest is a disk. Its checksums are corrected, because no fuzzer guesses them.
#![no_main]

use slipway_actions::fuzzing;
use slipway_fuzz::{Disk, SECTOR};

/// Positions in a GPT header: its size and checksum, and the place, number, size and checksum of the entries (UEFI
/// specification, table 5-5).
const HEADER_SIZE: usize = 12;
const HEADER_CRC: usize = 16;
const ENTRIES_LBA: usize = 72;
const ENTRIES: usize = 80;
const ENTRY_SIZE: usize = 84;
const ENTRIES_CRC: usize = 88;
/// Maximum size in bytes of entries whose checksum is corrected.
const MAX_ENTRIES: usize = 1 << 20;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((grow, input)) = input.split_first() else { return };
    let Some(disk) = Disk::new(input) else { return };
    seal(&disk, 1);
    seal(&disk, (disk.size / SECTOR as u64).saturating_sub(1));
    let Ok(before) = fuzzing::partitions(&disk.path()) else { return };
    check(&before, disk.size);
    let grow = grow & 1 == 1;
    if fuzzing::relocate_backup_gpt(&disk.path(), grow).is_err() {
        return;
    }
    let after = fuzzing::partitions(&disk.path()).expect("a table that was read is read again");
    check(&after, disk.size);
    assert_eq!(before.len(), after.len());
    for ((number, old), (same, new)) in before.iter().zip(&after) {
        assert!(number == same && old.start == new.start);
        assert!(old.end == new.end || (grow && old.end < new.end));
    }
});

fn check(partitions: &[(u32, std::ops::Range<u64>)], size: u64) {
    for (number, bytes) in partitions {
        assert!(bytes.start <= bytes.end && bytes.end <= size, "partition {number} is {bytes:?} of {size}");
    }
}

/// Corrects the checksums of a header and its entries.
fn seal(disk: &Disk, lba: u64) -> Option<()> {
    let at = lba * SECTOR as u64;
    let mut header = disk.read(at, SECTOR)?;
    let field = |header: &[u8], at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| header[at + n])) as usize;
    let entries_at = u64::from_le_bytes(header[ENTRIES_LBA..][..8].try_into().ok()?).checked_mul(SECTOR as u64)?;
    let entries_len = field(&header, ENTRIES).checked_mul(field(&header, ENTRY_SIZE))?;
    let entries = (entries_len <= MAX_ENTRIES).then(|| disk.read(entries_at, entries_len)).flatten();
    if let Some(entries) = entries {
        header[ENTRIES_CRC..][..4].copy_from_slice(&crc32(&entries).to_le_bytes());
    }
    header[HEADER_CRC..][..4].fill(0);
    let sum = crc32(header.get(..field(&header, HEADER_SIZE))?);
    header[HEADER_CRC..][..4].copy_from_slice(&sum.to_le_bytes());
    disk.write(at, &header);
    Some(())
}

/// Computes the checksum of a GPT (UEFI specification, table 5-5; ISO 3309).
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 })
    })
}
