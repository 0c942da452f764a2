//! Superblocks written by hand, following the headers that the probe names. blkid checks that they are right.

use crate::images::{Image, Recipe};

/// Parts of an image, each with its offset.
pub type Pieces = Vec<(u64, Vec<u8>)>;

pub const KIB: i64 = 1024;
pub const MIB: u64 = 1 << 20;

const UUID: [u8; 16] = *b"\x01\x23\x45\x67\x89\xAB\x4C\xDE\x8F\x01\x23\x45\x67\x89\xAB\xCD";

/// A block of zeros with some fields set.
fn block(len: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut block = vec![0; len];
    for (offset, bytes) in fields {
        block[*offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    block
}

fn at(offset: u64, bytes: &[u8]) -> Pieces {
    vec![(offset, bytes.to_vec())]
}

fn fields_at(offset: u64, len: usize, fields: &[(usize, &[u8])]) -> Pieces {
    vec![(offset, block(len, fields))]
}

/// A header of swap space, and the mark of its kind.
fn swap(version: [u8; 4], offset: u64, mark: &[u8]) -> Pieces {
    let header = fields_at(1024, 64, &[(0, &version), (4, &[0, 1, 1, 0]), (12, &UUID), (28, b"crafted")]);
    [header, at(offset, mark)].concat()
}

fn md_0(size: u64, word: fn(u32) -> [u8; 4]) -> Pieces {
    let offset = size / 65_536 * 65_536 - 65_536;
    let kib = word((offset / 1024) as u32);
    let uuid = [1, 2, 3, 4].map(|n| word(0x0102_0304 * n));
    let fields: &[(usize, &[u8])] = &[
        (0, &word(0xA92B_4EFC)),
        (8, &word(90)),
        (20, &uuid[0]),
        (32, &kib),
        (52, &uuid[1]),
        (56, &uuid[2]),
        (60, &uuid[3]),
    ];
    fields_at(offset, 64, fields)
}

fn md_1(offset: u64) -> Pieces {
    let fields: &[(usize, &[u8])] = &[
        (0, &0xA92B_4EFC_u32.to_le_bytes()),
        (4, &1_u32.to_le_bytes()),
        (16, &UUID),
        (32, b"host:array"),
        (144, &(offset / 512).to_le_bytes()),
    ];
    fields_at(offset, 256, fields)
}

fn ddf(size: u64) -> Pieces {
    let primary = size / 512 - 32;
    let magic = 0xDE11_DE11_u32.to_be_bytes();
    let anchor = block(512, &[(0, &magic), (8, b"Linux-MD12345678ABCDEFGH"), (96, &primary.to_be_bytes())]);
    vec![(size - 512, anchor), (primary * 512, magic.to_vec())]
}

fn drbd(size: u64, magic: u32, identity: usize) -> Pieces {
    fields_at(size - 4096, 64, &[(identity, &UUID[..8]), (60, &magic.to_be_bytes())])
}

fn lvm2(sector: u64) -> Pieces {
    let id = b"abcdefghijklmnopqrstuvwxyz012345";
    let fields: &[(usize, &[u8])] =
        &[(0, b"LABELONE"), (8, &sector.to_le_bytes()), (20, &[32, 0, 0, 0]), (24, b"LVM2 001"), (32, id)];
    let mut label = block(512, fields);
    let shift = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    let add = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shift(crc));
    let crc = label[20..].iter().fold(0xF597_A6CF, add);
    label[16..20].copy_from_slice(&crc.to_le_bytes());
    vec![(sector * 512, label)]
}

fn luks2(offset: u64, magic: &[u8]) -> Pieces {
    let uuid = b"01234567-89ab-4cde-8f01-23456789abcd";
    fields_at(offset, 512, &[(0, magic), (6, &[0, 2]), (24, b"second"), (168, uuid)])
}

fn bitlocker_7(_: u64) -> Pieces {
    let at = (2_u64 << 20).to_le_bytes();
    let header = block(512, &[(0, b"\xEB\x58\x90-FVE-FS-"), (67, &[0xD2, 4, 0, 0]), (176, &at), (510, &[0x55, 0xAA])]);
    vec![(0, header), (2 << 20, b"-FVE-FS-".to_vec())]
}

fn bitlocker_to_go(_: u64) -> Pieces {
    let at = (2_u64 << 20).to_le_bytes();
    // The boot sector is also a FAT32 one, for systems that do not know BitLocker.
    let fat = b"\x00\x02\x08\x20\x00\x02\x00\x00\x00\x00\xF8";
    let header = block(512, &[(0, b"\xEB\x58\x90MSWIN4.1"), (11, fat), (440, &at), (510, &[0x55, 0xAA])]);
    vec![(0, header), (2 << 20, b"-FVE-FS-".to_vec())]
}

fn pair(name: &str, value: &[u8]) -> Vec<u8> {
    let padded = name.len().next_multiple_of(4);
    let size = 12 + padded + value.len();
    let mut pair = block(size, &[(0, &(size as u32).to_be_bytes()), (8, &(name.len() as u32).to_be_bytes())]);
    pair[12..12 + name.len()].copy_from_slice(name.as_bytes());
    pair[12 + padded..].copy_from_slice(value);
    pair
}

fn pairs() -> Vec<u8> {
    let number = |n: u64| [&8_u32.to_be_bytes()[..], &1_u32.to_be_bytes(), &n.to_be_bytes()].concat();
    let string = |s: &str| {
        [&9_u32.to_be_bytes()[..], &1_u32.to_be_bytes(), &(s.len() as u32).to_be_bytes(), s.as_bytes()].concat()
    };
    let tree =
        [&19_u32.to_be_bytes()[..], &[0; 12], &pair("guid", &number(3)), &pair("name", &string("disk")), &[0; 8]]
            .concat();
    let list = [
        pair("version", &number(5000)),
        pair("vdev_tree", &tree),
        pair("name", &string("tank")),
        pair("pool_guid", &number(1_234_567_890_123)),
    ];
    [vec![0; 12], list.concat()].concat()
}

fn zfs(_: u64) -> Pieces {
    let magic = 0x00BA_B10C_u64.to_le_bytes().to_vec();
    let uberblocks = [128, 129, 130, 131].map(|kib| (kib * 1024, magic.clone()));
    [vec![(16 * 1024, pairs())], uberblocks.to_vec()].concat()
}

fn zfs_big_endian(size: u64) -> Pieces {
    let magic = 0x00BA_B10C_u64.to_be_bytes().to_vec();
    let label = 256 * 1024;
    let labels = [0, label, size / label * label - 2 * label, size / label * label - label];
    let uberblocks = labels.map(|label| (label + 140 * 1024, magic.clone()));
    [vec![(labels[3] + 16 * 1024, pairs())], uberblocks.to_vec()].concat()
}

pub fn images() -> Vec<Image> {
    use Recipe::Bytes;
    const LE: [u8; 4] = 1_u32.to_le_bytes();
    const MARK: &[u8] = b"SWAPSPACE2";
    const MD: &str = "linux_raid_member";
    const MD1: u64 = 168;
    const TUX: &[u8] = b"\xED\xC3\x02\xE9\x98\x56\xE5\x0C";
    const DDF: [u8; 4] = 0xDE11_DE11_u32.to_le_bytes();
    const BCACHE: &[u8] = b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA\x82\x65\xF5\x7F\x48\xBA\x6D\x81";
    const XFS_LOG: &[(usize, &[u8])] =
        &[(0, b"\xFE\xED\xBA\xBE"), (8, &[0, 0, 0, 2]), (12, &[0, 0, 2, 0]), (300, &[0, 0, 0, 1]), (304, &UUID)];
    const EXT4DEV: &[(usize, &[u8])] =
        &[(0x38, &[0x53, 0xEF]), (0x5C, &[4]), (0x60, &[0x42]), (0x68, &UUID), (0x78, b"dev"), (0x160, &[4])];
    const F2FS: &[(usize, &[u8])] = &[(0, &0xF2F5_2010_u32.to_le_bytes()), (4, &[1, 0, 0, 0]), (108, &UUID)];
    const HIGH_SIERRA: &[(usize, &[u8])] = &[(8, b"\x01CDROM\x01"), (48, b"OLD DISC                        ")];
    vec![
        Image("swap-crafted", "swap", 4 * MIB, Bytes(|_| swap(LE, 65_526, MARK)), &[(KIB, 64)]),
        Image("swap-old", "swap", 4 * MIB, Bytes(|_| at(4086, b"SWAP-SPACE")), &[(4086, 10)]),
        Image("swap-big-endian", "swap", 4 * MIB, Bytes(|_| swap([0, 0, 0, 1], 8182, MARK)), &[(KIB, 16)]),
        Image("suspended", "swsuspend", 4 * MIB, Bytes(|_| swap(LE, 4086, b"S1SUSPEND\0")), &[(KIB, 44), (4086, 10)]),
        Image(
            "tux-on-ice",
            "swsuspend",
            4 * MIB,
            Bytes(|_| [at(0, TUX), swap(LE, 4086, MARK)].concat()),
            &[(0, 8), (4086, 10)],
        ),
        Image("md-0.90", MD, 8 * MIB, Bytes(|size| md_0(size, u32::to_le_bytes)), &[(-64 * KIB, 64)]),
        Image("md-0.90-big-endian", MD, 8 * MIB, Bytes(|size| md_0(size, u32::to_be_bytes)), &[(-64 * KIB, 64)]),
        Image("md-1.0", MD, 8 * MIB, Bytes(|size| md_1(size / 4096 * 4096 - 8192)), &[(-8 * KIB, MD1)]),
        Image("md-1.1", MD, 8 * MIB, Bytes(|_| md_1(0)), &[(0, MD1)]),
        Image("md-1.2", MD, 8 * MIB, Bytes(|_| md_1(4096)), &[(4096, MD1)]),
        Image("ddf", "ddf_raid_member", 8 * MIB, Bytes(ddf), &[(-512, 128), (-32 * 512, 8)]),
        Image(
            "ddf-257",
            "ddf_raid_member",
            8 * MIB,
            Bytes(|size| fields_at(size - 257 * 512, 512, &[(0, &DDF), (8, b"Firmware RAID")])),
            &[(-257 * 512, 128)],
        ),
        Image(
            "isw",
            "isw_raid_member",
            8 * MIB,
            Bytes(|size| at(size - 1024, b"Intel Raid ISM Cfg Sig. 1.3.00\0\0")),
            &[(-1024, 40)],
        ),
        Image("lvm2", "LVM2_member", 8 * MIB, Bytes(|_| lvm2(1)), &[(512, 72), (1000, 24)]),
        Image("lvm2-sector-3", "LVM2_member", 8 * MIB, Bytes(|_| lvm2(3)), &[(1536, 72)]),
        Image(
            "bcache",
            "bcache",
            8 * MIB,
            Bytes(|_| fields_at(4096, 56, &[(8, &[8]), (24, BCACHE), (40, &UUID)])),
            &[(4096, 64)],
        ),
        Image("bluestore", "ceph_bluestore", 8 * MIB, Bytes(|_| at(0, b"bluestore block device\n")), &[(0, 22)]),
        Image("drbd-8", "drbd", 8 * MIB, Bytes(|size| drbd(size, 0x8374_026B, 40)), &[(-4096, 64)]),
        Image("drbd-8.4", "drbd", 8 * MIB, Bytes(|size| drbd(size, 0x8374_026C, 40)), &[(-4096, 64)]),
        Image("drbd-9", "drbd", 8 * MIB, Bytes(|size| drbd(size, 0x8374_026D, 48)), &[(-4096, 64)]),
        Image("vdo", "vdo", 8 * MIB, Bytes(|_| fields_at(0, 56, &[(0, b"dmvdo001"), (40, &UUID)])), &[(0, 64)]),
        Image("integrity", "DM_integrity", 8 * MIB, Bytes(|_| at(0, b"integrt\0\x05")), &[(0, 16)]),
        Image("luks2-crafted", "crypto_LUKS", 8 * MIB, Bytes(|_| luks2(0, b"LUKS\xBA\xBE")), &[(0, 8)]),
        Image("luks2-backup", "crypto_LUKS", 8 * MIB, Bytes(|_| luks2(0x8000, b"SKUL\xBA\xBE")), &[(0x8000, 216)]),
        Image("bitlocker-vista", "BitLocker", 8 * MIB, Bytes(|_| at(0, b"\xEB\x52\x90-FVE-FS-")), &[(0, 16)]),
        Image("bitlocker-7", "BitLocker", 8 * MIB, Bytes(bitlocker_7), &[(0, 72), (176, 8), (2 << 20, 12)]),
        Image("bitlocker-to-go", "BitLocker", 8 * MIB, Bytes(bitlocker_to_go), &[(0, 16), (440, 8), (2 << 20, 12)]),
        Image("zfs", "zfs_member", 64 * MIB, Bytes(zfs), &[(16 * KIB, 120), (128 * KIB, 8), (131 * KIB, 8)]),
        Image("zfs-big-endian", "zfs_member", 64 * MIB, Bytes(zfs_big_endian), &[(-240 * KIB, 120)]),
        Image("xfs-log", "xfs_external_log", 16 * MIB, Bytes(|_| fields_at(4096, 320, XFS_LOG)), &[(4096, 320)]),
        Image("ext4dev", "ext4dev", 8 * MIB, Bytes(|_| fields_at(1024, 512, EXT4DEV)), &[(KIB + 0x38, 0x38)]),
        Image("f2fs-1.0", "f2fs", 8 * MIB, Bytes(|_| fields_at(1024, 160, F2FS)), &[(KIB, 8)]),
        Image(
            "squashfs3",
            "squashfs3",
            8 * MIB,
            Bytes(|_| fields_at(0, 32, &[(0, b"hsqs"), (28, &[3, 0, 1, 0])])),
            &[(0, 32)],
        ),
        Image(
            "squashfs3-big-endian",
            "squashfs3",
            8 * MIB,
            Bytes(|_| fields_at(0, 32, &[(0, b"sqsh"), (28, &[0, 3, 0, 1])])),
            &[(0, 32)],
        ),
        Image("high-sierra", "iso9660", 8 * MIB, Bytes(|_| fields_at(0x8000, 90, HIGH_SIERRA)), &[(0x8000, 90)]),
    ]
}
