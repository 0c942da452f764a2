//! Superblocks written by hand, following the headers that the probe names. blkid checks that they are right.

type Pieces = Vec<(u64, Vec<u8>)>;

const UUID: [u8; 16] = *b"\x01\x23\x45\x67\x89\xAB\x4C\xDE\x8F\x01\x23\x45\x67\x89\xAB\xCD";

/// A block of zeros with some fields set.
fn block(len: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut block = vec![0; len];
    for (offset, bytes) in fields {
        block[*offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    block
}

fn swap_header(version: [u8; 4]) -> (u64, Vec<u8>) {
    (1024, block(64, &[(0, &version), (4, &[0, 1, 1, 0]), (12, &UUID), (28, b"crafted")]))
}

pub fn swap(_: u64) -> Pieces {
    vec![swap_header(1_u32.to_le_bytes()), (65_526, b"SWAPSPACE2".to_vec())]
}

pub fn swap_old(_: u64) -> Pieces {
    vec![(4086, b"SWAP-SPACE".to_vec())]
}

pub fn swap_big_endian(_: u64) -> Pieces {
    vec![swap_header(1_u32.to_be_bytes()), (8182, b"SWAPSPACE2".to_vec())]
}

pub fn suspended(_: u64) -> Pieces {
    vec![swap_header(1_u32.to_le_bytes()), (4086, b"S1SUSPEND\0".to_vec())]
}

pub fn tux_on_ice(_: u64) -> Pieces {
    let mark = b"\xED\xC3\x02\xE9\x98\x56\xE5\x0C".to_vec();
    vec![(0, mark), swap_header(1_u32.to_le_bytes()), (4086, b"SWAPSPACE2".to_vec())]
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
    vec![(offset, block(64, fields))]
}

pub fn md_0_90(size: u64) -> Pieces {
    md_0(size, u32::to_le_bytes)
}

pub fn md_0_90_big_endian(size: u64) -> Pieces {
    md_0(size, u32::to_be_bytes)
}

fn md_1(offset: u64) -> Pieces {
    let fields: &[(usize, &[u8])] = &[
        (0, &0xA92B_4EFC_u32.to_le_bytes()),
        (4, &1_u32.to_le_bytes()),
        (16, &UUID),
        (32, b"host:array"),
        (144, &(offset / 512).to_le_bytes()),
    ];
    vec![(offset, block(256, fields))]
}

pub fn md_1_0(size: u64) -> Pieces {
    md_1(size / 4096 * 4096 - 8192)
}

pub fn md_1_1(_: u64) -> Pieces {
    md_1(0)
}

pub fn md_1_2(_: u64) -> Pieces {
    md_1(4096)
}

pub fn ddf(size: u64) -> Pieces {
    let primary = size / 512 - 32;
    let magic = 0xDE11_DE11_u32.to_be_bytes();
    let anchor = block(512, &[(0, &magic), (8, b"Linux-MD12345678ABCDEFGH"), (96, &primary.to_be_bytes())]);
    vec![(size - 512, anchor), (primary * 512, magic.to_vec())]
}

pub fn ddf_257(size: u64) -> Pieces {
    let magic = 0xDE11_DE11_u32.to_le_bytes();
    vec![(size - 257 * 512, block(512, &[(0, &magic), (8, b"Firmware RAID")]))]
}

pub fn isw(size: u64) -> Pieces {
    vec![(size - 1024, b"Intel Raid ISM Cfg Sig. 1.3.00\0\0".to_vec())]
}

fn lvm2_in(sector: u64) -> Pieces {
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

pub fn lvm2(_: u64) -> Pieces {
    lvm2_in(1)
}

pub fn lvm2_sector_3(_: u64) -> Pieces {
    lvm2_in(3)
}

pub fn bcache(_: u64) -> Pieces {
    let magic = b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA\x82\x65\xF5\x7F\x48\xBA\x6D\x81";
    vec![(4096, block(56, &[(8, &8_u64.to_le_bytes()), (24, magic), (40, &UUID)]))]
}

pub fn vdo(_: u64) -> Pieces {
    vec![(0, block(56, &[(0, b"dmvdo001"), (40, &UUID)]))]
}

pub fn integrity(_: u64) -> Pieces {
    vec![(0, b"integrt\0\x05".to_vec())]
}

fn luks2_header(magic: &[u8]) -> Vec<u8> {
    block(512, &[(0, magic), (6, &[0, 2]), (24, b"second"), (168, b"01234567-89ab-4cde-8f01-23456789abcd")])
}

pub fn luks2(_: u64) -> Pieces {
    vec![(0, luks2_header(b"LUKS\xBA\xBE"))]
}

pub fn luks2_backup(_: u64) -> Pieces {
    vec![(0x8000, luks2_header(b"SKUL\xBA\xBE"))]
}

pub fn bitlocker_vista(_: u64) -> Pieces {
    vec![(0, b"\xEB\x52\x90-FVE-FS-".to_vec())]
}

pub fn bitlocker_7(_: u64) -> Pieces {
    let at = (2_u64 << 20).to_le_bytes();
    let header = block(512, &[(0, b"\xEB\x58\x90-FVE-FS-"), (67, &[0xD2, 4, 0, 0]), (176, &at), (510, &[0x55, 0xAA])]);
    vec![(0, header), (2 << 20, b"-FVE-FS-".to_vec())]
}

pub fn bitlocker_to_go(_: u64) -> Pieces {
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

pub fn zfs(_: u64) -> Pieces {
    let magic = 0x00BA_B10C_u64.to_le_bytes().to_vec();
    let uberblocks = [128, 129, 130, 131].map(|kib| (kib * 1024, magic.clone()));
    [vec![(16 * 1024, pairs())], uberblocks.to_vec()].concat()
}

pub fn zfs_big_endian(size: u64) -> Pieces {
    let magic = 0x00BA_B10C_u64.to_be_bytes().to_vec();
    let label = 256 * 1024;
    let labels = [0, label, size / label * label - 2 * label, size / label * label - label];
    let uberblocks = labels.map(|label| (label + 140 * 1024, magic.clone()));
    [vec![(labels[3] + 16 * 1024, pairs())], uberblocks.to_vec()].concat()
}

pub fn xfs_log(_: u64) -> Pieces {
    let fields: &[(usize, &[u8])] =
        &[(0, b"\xFE\xED\xBA\xBE"), (8, &[0, 0, 0, 2]), (12, &[0, 0, 2, 0]), (300, &[0, 0, 0, 1]), (304, &UUID)];
    vec![(4096, block(320, fields))]
}

pub fn ext4dev(_: u64) -> Pieces {
    let fields: &[(usize, &[u8])] =
        &[(0x38, &[0x53, 0xEF]), (0x5C, &[4]), (0x60, &[0x42]), (0x68, &UUID), (0x78, b"dev"), (0x160, &[4])];
    vec![(1024, block(512, fields))]
}

pub fn f2fs_1_0(_: u64) -> Pieces {
    vec![(1024, block(160, &[(0, &0xF2F5_2010_u32.to_le_bytes()), (4, &[1, 0, 0, 0]), (108, &UUID)]))]
}

pub fn squashfs3(_: u64) -> Pieces {
    vec![(0, block(32, &[(0, b"hsqs"), (28, &[3, 0, 1, 0])]))]
}

pub fn squashfs3_big_endian(_: u64) -> Pieces {
    vec![(0, block(32, &[(0, b"sqsh"), (28, &[0, 3, 0, 1])]))]
}

pub fn high_sierra(_: u64) -> Pieces {
    vec![(0x8000, block(90, &[(8, b"\x01CDROM\x01"), (48, b"OLD DISC                        ")]))]
}
