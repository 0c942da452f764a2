//! Which file system a partition holds, by its superblock.
//!
//! Offsets are those of the kernel's own headers (fs/ext4/ext4.h, fs/xfs/libxfs/xfs_format.h, btrfs_tree.h, swap.h) and of
//! the FAT specification; the tests compare with the blkid program.

/// Bytes from the start of a partition that a probe looks at: up to the end of the btrfs superblock.
pub(crate) const HEAD: usize = 0x11000;

/// A file system, or what stands in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileSystem {
    /// Name as the kernel and blkid know it.
    pub(crate) kind: &'static str,
    /// UUID as blkid prints it.
    pub(crate) uuid: Option<String>,
    /// Label, when there is one.
    pub(crate) label: Option<String>,
}

/// The file system at the head of a partition.
pub(crate) fn probe(head: &[u8]) -> Option<FileSystem> {
    let found = luks(head).or_else(|| xfs(head)).or_else(|| btrfs(head)).or_else(|| ext(head)).or_else(|| swap(head));
    found.or_else(|| lvm(head)).or_else(|| vfat(head))
}

fn luks(head: &[u8]) -> Option<FileSystem> {
    at(head, 0, b"LUKS\xBA\xBE").then(|| named("crypto_LUKS"))
}

fn lvm(head: &[u8]) -> Option<FileSystem> {
    // The label is in one of the first four sectors (lvm2, lib/label/label.h).
    let found = (0..4).any(|sector| at(head, sector * 512, b"LABELONE") && at(head, sector * 512 + 24, b"LVM2 001"));
    found.then(|| named("LVM2_member"))
}

fn ext(head: &[u8]) -> Option<FileSystem> {
    const SUPERBLOCK: usize = 1024;
    const COMPAT_HAS_JOURNAL: u32 = 0x4;
    // Features a kernel's ext3 does not have: any but FILETYPE, RECOVER and META_BG; any but the first three read-only ones.
    const INCOMPAT_EXT3: u32 = 0x2 | 0x4 | 0x10;
    const RO_COMPAT_EXT3: u32 = 0x7;
    if !at(head, SUPERBLOCK + 0x38, &[0x53, 0xEF]) {
        return None;
    }
    let (compat, incompat, ro) =
        (le32(head, SUPERBLOCK + 0x5C)?, le32(head, SUPERBLOCK + 0x60)?, le32(head, SUPERBLOCK + 0x64)?);
    let kind = match (incompat & !INCOMPAT_EXT3 != 0 || ro & !RO_COMPAT_EXT3 != 0, compat & COMPAT_HAS_JOURNAL != 0) {
        (true, _) => "ext4",
        (false, true) => "ext3",
        (false, false) => "ext2",
    };
    Some(FileSystem { kind, uuid: uuid(head, SUPERBLOCK + 0x68), label: label(head, SUPERBLOCK + 0x78, 16) })
}

fn xfs(head: &[u8]) -> Option<FileSystem> {
    at(head, 0, b"XFSB").then(|| FileSystem { kind: "xfs", uuid: uuid(head, 32), label: label(head, 108, 12) })
}

fn btrfs(head: &[u8]) -> Option<FileSystem> {
    const SUPERBLOCK: usize = 0x10000;
    let found = at(head, SUPERBLOCK + 0x40, b"_BHRfS_M");
    let label = label(head, SUPERBLOCK + 0x12B, 256);
    found.then(|| FileSystem { kind: "btrfs", uuid: uuid(head, SUPERBLOCK + 0x20), label })
}

fn swap(head: &[u8]) -> Option<FileSystem> {
    // The signature ends the first page, whose size is the machine's.
    let found = [4096, 16384, 65536].iter().any(|page| at(head, page - 10, b"SWAPSPACE2"));
    found.then(|| FileSystem { kind: "swap", uuid: uuid(head, 1036), label: label(head, 1052, 16) })
}

fn vfat(head: &[u8]) -> Option<FileSystem> {
    // FAT12 and FAT16 have these fields at 39, 43, 54; FAT32 at 67, 71, 82. Both end the sector with 55 AA.
    let boot_sector = at(head, 510, &[0x55, 0xAA]) && matches!(head.first(), Some(0xEB | 0xE9));
    let fields = match boot_sector {
        true if at(head, 82, b"FAT32   ") => (67, 71),
        true if at(head, 54, b"FAT12   ") || at(head, 54, b"FAT16   ") || at(head, 54, b"FAT     ") => (39, 43),
        _ => return None,
    };
    let serial = le32(head, fields.0)?;
    let uuid = (serial != 0).then(|| format!("{:04X}-{:04X}", serial >> 16, serial & 0xFFFF));
    let label = label(head, fields.1, 11).filter(|label| label != "NO NAME");
    Some(FileSystem { kind: "vfat", uuid, label })
}

fn named(kind: &'static str) -> FileSystem {
    FileSystem { kind, uuid: None, label: None }
}

fn at(head: &[u8], offset: usize, magic: &[u8]) -> bool {
    head.get(offset..offset + magic.len()) == Some(magic)
}

fn le32(head: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(head.get(offset..offset + 4)?.try_into().ok()?))
}

fn uuid(head: &[u8], offset: usize) -> Option<String> {
    let bytes = head.get(offset..offset + 16)?;
    let mut text = String::new();
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    bytes.iter().any(|byte| *byte != 0).then_some(text)
}

fn label(head: &[u8], offset: usize, len: usize) -> Option<String> {
    let bytes = head.get(offset..offset + len)?;
    let bytes = bytes.split(|byte| *byte == 0).next()?;
    let text = String::from_utf8_lossy(bytes).trim_end().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::process::Command;

    const UUID: &str = "01234567-89ab-4cde-8f01-23456789abcd";

    /// Makes a file system with a program, and compares with what blkid says of it.
    fn check(make: &[&str], size: u64) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fs");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        let made = Command::new(make[0]).args(&make[1..]).arg(&path).output();
        if !made.as_ref().is_ok_and(|made| made.status.success()) {
            eprintln!("not checked, because {} cannot be run here: {made:?}", make[0]);
            return;
        }
        let blkid = Command::new("blkid").args(["-p", "-o", "export"]).arg(&path).output().unwrap();
        let blkid = String::from_utf8(blkid.stdout).unwrap();
        let value = |key: &str| blkid.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
        let mut head = vec![0; HEAD];
        file.read_exact_at(&mut head, 0).unwrap();
        let found = probe(&head).map(|fs| (fs.kind.to_owned(), fs.uuid, fs.label));
        assert_eq!(found, value("TYPE=").map(|kind| (kind, value("UUID="), value("LABEL="))), "{make:?}");
    }

    #[test]
    fn file_systems_are_what_blkid_says_they_are() {
        check(&["mkfs.ext4", "-q", "-U", UUID, "-L", "root-a"], 8 << 20);
        check(&["mkfs.ext3", "-q"], 8 << 20);
        check(&["mkfs.ext2", "-q"], 8 << 20);
        check(&["mkfs.vfat", "-F", "32", "-n", "ESP", "-i", "1234ABCD"], 40 << 20);
        check(&["mkfs.vfat", "-F", "16"], 16 << 20);
        check(&["mkfs.vfat", "-F", "12"], 2 << 20);
        check(&["mkfs.xfs", "-q", "-L", "data"], 320 << 20);
        check(&["mkfs.btrfs", "-q", "-L", "pool", "-U", UUID], 128 << 20);
        check(&["mkswap", "-q", "-L", "swap", "-U", UUID], 4 << 20);
    }

    #[test]
    fn what_is_no_file_system_is_none() {
        assert_eq!(probe(&[]), None);
        assert_eq!(probe(&vec![0; HEAD]), None);
        assert_eq!(probe(&vec![0xFF; HEAD]), None);
    }
}
