//! What the first bytes of a partition show about its content. Here it is only evidence for where an image has its
//! partitions, so signatures are enough.

use super::{Found, Image};

/// Offsets and bytes of signatures, as libblkid has them (util-linux, libblkid/src/superblocks).
const SIGNATURES: [(u64, &[u8]); 20] = [
    // bcachefs, in a superblock at 4096: libbcachefs/bcachefs_format.h, struct bch_sb.
    (4120, b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA"),
    (0, b"XFSB"),
    (0x1_0040, b"_BHRfS_M"),
    (0, b"LUKS\xBA\xBE"),
    (512, b"LABELONE"),
    (4086, b"SWAPSPACE2"),
    (0, b"hsqs"),
    (1024, b"\xE2\xE1\xF5\xE0"),
    (1024, b"\x10\x20\xF5\xF2"),
    (3, b"NTFS    "),
    (3, b"EXFAT   "),
    (3, b"-FVE-FS-"),
    (54, b"FAT12   "),
    (54, b"FAT16   "),
    (82, b"FAT32   "),
    (0x8001, b"CD001"),
    (0, b"\xFC\x4E\x2B\xA9"),
    (4096, b"\xFC\x4E\x2B\xA9"),
    (0, b"verity\0\0"),
    (0, b"integrt\0"),
];
/// Superblock of ext2, ext3 and ext4 (Linux, Documentation/filesystems/ext4/super.rst): its offset, and the offsets of
/// its block size, a power of two, and of its magic number.
const EXT: u64 = 1024;
const EXT_BLOCK: u64 = EXT + 24;
const EXT_MAGIC: u64 = EXT + 56;
/// Values of that field for block sizes of 1 to 64 KiB.
const EXT_BLOCKS: std::ops::RangeInclusive<u8> = 0..=6;

/// Whether known content begins at this byte of the image. None if too little of the image is known.
pub(super) fn is_at(start: u64, image: &mut Image<'_, '_>) -> Option<bool> {
    let mut is_known = true;
    let mut has = |offset: u64, is_it: &dyn Fn(&[u8]) -> bool, len: usize| match start.checked_add(offset) {
        Some(at) => match image.get(at, len) {
            Found::Bytes(bytes) => is_it(&bytes),
            Found::Absent => false,
            Found::Unknown => {
                is_known = false;
                false
            }
        },
        None => false,
    };
    let is_ext = has(EXT_MAGIC, &|magic| magic == b"\x53\xEF", 2)
        && has(EXT_BLOCK, &|block| matches!(block, [size, 0, 0, 0] if EXT_BLOCKS.contains(size)), 4);
    let found = is_ext || SIGNATURES.iter().any(|(at, magic)| has(*at, &|bytes| bytes == *magic, magic.len()));
    if found { Some(true) } else { is_known.then_some(false) }
}
