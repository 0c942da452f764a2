//! What is written here by hand was compared with sgdisk, sfdisk and Linux; `actions/tests/partition_table.rs` asks
//! these programs.

use super::*;
use crate::crc32::crc32;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;

/// A protective record, or another one.
fn record(image: &mut [u8], index: usize, kind: u8, start: u32, blocks: u32) {
    let at = 446 + 16 * index;
    image[at + 4] = kind;
    image[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
    image[at + 12..at + 16].copy_from_slice(&blocks.to_le_bytes());
    image[510..512].copy_from_slice(&[0x55, 0xAA]);
}

fn seal(image: &mut [u8], header: usize) {
    let [entries, count] = [72, 80].map(|at| le32(image, header + at).unwrap() as usize);
    let block = if header == 4096 { 4096 } else { 512 };
    let sum = crc32(&image[entries * block..entries * block + count * 128]);
    image[header + 88..header + 92].copy_from_slice(&sum.to_le_bytes());
    seal_header(image, header);
}

fn seal_header(image: &mut [u8], header: usize) {
    image[header + 16..header + 20].fill(0);
    let len = le32(image, header + 12).unwrap() as usize;
    let sum = crc32(&image[header..header + len]);
    image[header + 16..header + 20].copy_from_slice(&sum.to_le_bytes());
}

/// A GPT of two partitions, from MiB 1 to 4 and from 4 to 7.
fn gpt(block: usize) -> Vec<u8> {
    let mut image = vec![0; SIZE as usize];
    let last = image.len() / block - 1;
    record(&mut image, 0, 0xEE, 1, last as u32);
    let blocks = 128 * 128 / block;
    for (own, other, entries) in [(1, last, 2), (last, 1, last - blocks)] {
        let at = entries * block;
        for (index, range) in [(1, 4), (4, 7)].iter().enumerate() {
            let entry = &mut image[at + 128 * index..][..128];
            entry[..32].fill(index as u8 + 1);
            entry[32..40].copy_from_slice(&(range.0 * MIB / block as u64).to_le_bytes());
            entry[40..48].copy_from_slice(&(range.1 * MIB / block as u64 - 1).to_le_bytes());
            entry[56] = b'a' + index as u8;
        }
        let at = own * block;
        image[at..at + 16].copy_from_slice(b"EFI PART\0\0\x01\0\x5C\0\0\0");
        for (field, value) in [(24, own), (32, other), (40, 2 + blocks), (48, last - blocks - 1), (72, entries)] {
            image[at + field..at + field + 8].copy_from_slice(&(value as u64).to_le_bytes());
        }
        image[at + 80..at + 88].copy_from_slice(&[128, 0, 0, 0, 128, 0, 0, 0]);
        let sum = crc32(&image[entries * block..][..128 * 128]);
        image[at + 88..at + 92].copy_from_slice(&sum.to_le_bytes());
        seal_header(&mut image, at);
    }
    image
}

/// Judges a whole image for a disk of 512-byte blocks.
fn judge_for(disk: Option<u64>, image: &[u8]) -> Result<Table, Fault> {
    let known = Known { block: disk.map(|_| 512), disk, image: Some(image.len() as u64) };
    judge(&known, &mut |offset, len| image.get(offset as usize..offset as usize + len).map(<[u8]>::to_vec))
}

fn whole(image: &[u8]) -> Result<Table, Fault> {
    judge_for(Some(SIZE), image)
}

type Change = (&'static str, fn(&mut Vec<u8>), &'static str);

#[track_caller]
fn check(make: fn() -> Vec<u8>, changes: &[Change]) {
    for (name, change, expect) in changes {
        let mut image = make();
        change(&mut image);
        let found = match whole(&image) {
            Ok(table) => table.remarks.join("; "),
            Err(fault) => fault.to_string(),
        };
        assert!(found.starts_with(expect) && expect.is_empty() == found.is_empty(), "{name}: {found}");
    }
}

#[test]
fn a_sound_gpt_has_its_partitions_for_either_block_size() {
    for block in [512, 4096] {
        let image = gpt(block);
        let table = judge_for(None, &image).unwrap();
        assert!(matches!(&table.kind, Kind::Gpt(gpt) if gpt.backup() == Backup::Whole));
        let found: Vec<_> = table.partitions.iter().map(|one| (one.describe(), one.bytes.clone())).collect();
        let expect = [("partition 1 (a)", MIB..4 * MIB), ("partition 2 (b)", 4 * MIB..7 * MIB)];
        assert_eq!(found, expect.map(|(name, bytes)| (name.to_owned(), bytes)));
        assert_eq!((table.block, table.remarks), (block as u64, Vec::new()));
    }
    assert_eq!(whole(&gpt(4096)), Err(Fault::BlockSize { expected: 512, found: 4096 }));
}

#[test]
fn a_gpt_that_linux_would_ignore_is_damaged() {
    const LAST: usize = SIZE as usize - 512;
    let repair = "the header of its GPT is damaged: its checksum is wrong; its backup at the end of the image is whole";
    check(
        || gpt(512),
        &[
            ("sound", |_| {}, ""),
            ("checksum of the header", |image| image[528] ^= 1, repair),
            ("a field of the header", |image| image[560] ^= 1, repair),
            (
                "no header",
                |image| image[512..1024].fill(0),
                "its first block announces a GPT, but there is no header; its backup at the end of the image is whole",
            ),
            (
                "an entry",
                |image| image[1024 + 40] ^= 1,
                "the entries of its GPT have a wrong checksum; its backup at the end of the image is whole",
            ),
            ("an unused entry", |image| image[1024 + 128 * 100] ^= 1, "the entries of its GPT have a wrong checksum"),
            (
                "both headers",
                |image| {
                    image[528] ^= 1;
                    image[LAST + 16] ^= 1;
                },
                "the header of its GPT is damaged: its checksum is wrong; its backup at the end of the image is not",
            ),
            (
                "both arrays",
                |image| {
                    image[1064] ^= 1;
                    image[LAST - 32 * 512] ^= 1;
                },
                "the entries of its GPT have a wrong checksum; its backup at the end of the image is not whole",
            ),
            (
                "cut off",
                |image| {
                    image[528] ^= 1;
                    image.truncate(SIZE as usize / 2);
                },
                "the header of its GPT is damaged: its checksum is wrong; its backup at the end of the image is not",
            ),
            (
                "own block",
                |image| {
                    image[536] = 2;
                    seal_header(image, 512);
                },
                "the header of its GPT is damaged: it is in block 1, but made for block 2",
            ),
            (
                "too short",
                |image| {
                    image[524] = 80;
                    seal_header(image, 512);
                },
                "the header of its GPT is damaged: it cannot have 80 bytes",
            ),
            ("too long", |image| image[526] = 1, "the header of its GPT is damaged: it cannot have 65628 bytes"),
            (
                "longer",
                |image| {
                    image[524] = 200;
                    seal_header(image, 512);
                },
                "",
            ),
            (
                "entry size",
                |image| {
                    image[596] = 100;
                    seal_header(image, 512);
                },
                "the header of its GPT is damaged: its entries cannot have 100 bytes",
            ),
            (
                "too many entries",
                |image| {
                    image[595] = 1;
                    seal_header(image, 512);
                },
                "the header of its GPT is damaged: it cannot have 16777344 entries",
            ),
            (
                "no entries",
                |image| {
                    image[592] = 0;
                    seal_header(image, 512);
                },
                "the header of its GPT is damaged: it cannot have 0 entries",
            ),
            (
                "entries over the header",
                |image| {
                    image[584] = 1;
                    seal_header(image, 512);
                },
                "the header of its GPT is damaged: its entries cannot be in block 1",
            ),
            (
                "entries after the image",
                |image| {
                    image[591] = 1;
                    seal_header(image, 512);
                },
                "the entries of its GPT lie ",
            ),
            (
                "no room",
                |image| {
                    image[559] = 1;
                    seal_header(image, 512);
                },
                "the header of its GPT is damaged: it has no blocks",
            ),
            (
                "backwards",
                |image| {
                    image[1024 + 34] = 0xFF;
                    seal(image, 512);
                },
                "partition 1 (a) of its GPT ends before it begins",
            ),
            (
                "an end beyond 2^64 bytes",
                |image| {
                    image[1024 + 47] = 0x7F;
                    seal(image, 512);
                },
                "partition 1 (a) of its GPT ends after any disk",
            ),
            (
                "larger entries",
                |image| {
                    image[596..598].copy_from_slice(&[0, 1]);
                    seal_header(image, 512);
                },
                "the entries of its GPT have 256 bytes, and Linux reads only those of 128; create the image again",
            ),
            (
                "a partition over the header",
                |image| {
                    image[1024 + 32..][..8].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
                    seal(image, 512);
                },
                "partition 1 (a) of its GPT lies over the table itself",
            ),
            (
                "a partition over the entries",
                |image| {
                    image[1024 + 32..][..8].copy_from_slice(&[33, 0, 0, 0, 0, 0, 0, 0]);
                    seal(image, 512);
                },
                "partition 1 (a) of its GPT lies over the table itself",
            ),
            (
                "another type in the protective record",
                |image| image[450] = 0x83,
                "the protective record of its GPT has",
            ),
            ("only the backup", |image| image[..2048].fill(0), "its GPT is only in the backup at its end"),
            (
                "only the backup and a boot sector",
                |image| {
                    image[446..510].fill(0);
                    image[512..1024].fill(0);
                },
                "its GPT is only in the backup at its end",
            ),
            ("no boot signature", |image| image[510] = 0, "its GPT has no protective record"),
            ("no protective record", |image| image[450] = 0, "its GPT has no protective record"),
            (
                "protective record elsewhere",
                |image| image[454] = 2,
                "the protective record of its GPT begins at block 2",
            ),
            (
                "no record and no header",
                |image| {
                    image[450] = 0;
                    image[528] ^= 1;
                },
                "the header of its GPT is damaged",
            ),
        ],
    );
}

#[test]
fn the_advice_for_a_damaged_table_of_larger_blocks_has_their_size() {
    let advice = |change: fn(&mut Vec<u8>)| {
        let mut image = gpt(4096);
        change(&mut image);
        judge_for(None, &image).unwrap_err().to_string()
    };
    for found in [advice(|image| image[4096 + 16] ^= 1), advice(|image| image[510] = 0)] {
        assert!(found.contains("`losetup --find --show --sector-size 4096 IMAGE`"), "{found}");
    }
}

#[test]
fn a_gpt_that_linux_reads_is_used_and_what_is_odd_is_told() {
    const LAST: usize = SIZE as usize - 512;
    check(
        || gpt(512),
        &[
            ("backup header", |image| image[LAST + 16] ^= 1, "the backup of its GPT is damaged"),
            ("backup entries", |image| image[LAST - 512] ^= 1, "the backup of its GPT is damaged"),
            (
                "another backup",
                |image| {
                    image[1024 + 16] ^= 1;
                    seal(image, 512);
                },
                "the backup of its GPT differs",
            ),
            ("no backup", |image| image[LAST..].fill(0), "the backup of its GPT is missing"),
            (
                "backup beyond any disk",
                |image| {
                    image[551] = 0xFF;
                    seal_header(image, 512);
                },
                "the backup of its GPT is missing",
            ),
            ("partitions are cut off", |image| image.truncate(5 << 20), ""),
            (
                "overlap",
                |image| {
                    image[1024 + 128 + 33] = 8;
                    seal(image, 512);
                },
                "partitions 1 and 2 overlap",
            ),
            (
                "before the usable blocks",
                |image| {
                    image[1024 + 33] = 0;
                    seal(image, 512);
                },
                "partition 1 (a) is not within",
            ),
            (
                "revision",
                |image| {
                    image[522] = 2;
                    seal_header(image, 512);
                },
                "its header has revision 2.0",
            ),
            ("hybrid", |image| record(image, 1, 0x0C, 2048, 6144), ""),
            (
                "a hybrid record beyond the disk",
                |image| record(image, 1, 0x0C, 2048, 614_400),
                "record 2 of its hybrid MBR is none of the partitions of its GPT",
            ),
            (
                "no partitions",
                |image| {
                    image[1024..2048].fill(0);
                    seal(image, 512);
                },
                "the backup of its GPT differs from it; it has no partitions",
            ),
            (
                "the same GUID twice",
                |image| {
                    image[1024 + 128 + 16..][..16].fill(1);
                    seal(image, 512);
                },
                "partitions 1 and 2 have the same GUID",
            ),
            (
                "usable blocks among the entries",
                |image| {
                    image[552] = 33;
                    seal_header(image, 512);
                },
                "its area for partitions begins before its entries end",
            ),
            (
                "a partition over the backup",
                |image| {
                    image[1024 + 128 + 40..][..2].copy_from_slice(&[0xFF, 0x3F]);
                    seal(image, 512);
                },
                "partition 2 (b) is not within the area for partitions, so UEFI firmware ignores it; partition 2 (b) \
                 lies over the backup of its GPT; the backup of its GPT differs",
            ),
            (
                "the header is its own backup",
                |image| {
                    image[544..552].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
                    seal_header(image, 512);
                },
                "the backup of its GPT is missing",
            ),
            (
                "a file system over all of it, as in images for optical discs",
                |image| {
                    image[1024 + 32..][..16].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 7, 0, 0, 0, 0, 0, 0]);
                    seal(image, 512);
                },
                "partition 1 (a) is not within",
            ),
            ("a file system where the table was", |image| ext4_over_the_table(image), ""),
            ("no size in the protective record", |image| image[458..462].fill(0), ""),
        ],
    );
    let mut other_size = gpt(512);
    other_size[460] = 1;
    assert_eq!(whole(&other_size).unwrap().remarks, [""; 0]);
}

#[test]
fn a_table_for_a_larger_disk_does_not_fit() {
    let too_large = |image: &[u8], disk| match judge_for(Some(disk), image) {
        Err(Fault::TooLarge { what, needed }) => (what, needed),
        other => panic!("{other:?}"),
    };
    assert_eq!(too_large(&gpt(512), 5 * MIB), ("the area for partitions".to_owned(), SIZE - 33 * 512));
    let mut image = gpt(512);
    image[1024 + 128 + 42] = 1;
    seal(&mut image, 512);
    assert_eq!(too_large(&image, SIZE).0, "partition 2 (b)");
    let mut image = vec![0; SIZE as usize];
    record(&mut image, 0, 0x0C, 2048, 2048);
    record(&mut image, 1, 0x83, 4096, 20480);
    assert_eq!(too_large(&image, SIZE), ("partition 2".to_owned(), 24576 * 512));
    let table = judge_for(Some(2 * SIZE), &image).unwrap();
    assert_eq!(table.beyond(SIZE).unwrap().number, 2);
    let known = Known { block: Some(4096), disk: Some(2 * SIZE), image: None };
    let error = judge(&known, &mut |_, _| Some(image[..512].to_vec())).unwrap_err().to_string();
    assert!(error.contains("partition 2, in blocks of 4096 bytes, ends there"), "{error}");
}

/// A file system on the whole disk, which left the backup of a former GPT.
fn ext4_over_the_table(image: &mut [u8]) {
    image[..32768].fill(0);
    image[1080..1082].copy_from_slice(&[0x53, 0xEF]);
}

#[test]
fn an_mbr_is_for_the_block_size_by_which_its_partitions_begin_with_something() {
    let judge_for = |block: Option<u64>, image: &[u8]| {
        let known = Known { block, disk: block.map(|_| 4 * SIZE), image: Some(image.len() as u64) };
        judge(&known, &mut |offset, len| image.get(offset as usize..offset as usize + len).map(<[u8]>::to_vec))
    };
    let mut image = vec![0; SIZE as usize];
    record(&mut image, 0, 0x0C, 256, 512);
    record(&mut image, 1, 0x83, 768, 1024);
    assert_eq!(judge_for(Some(512), &image).map(|table| table.block), Ok(512), "nothing is known");
    let at = 768 * 4096;
    image[at + 1080..at + 1082].copy_from_slice(&[0x53, 0xEF]);
    assert_eq!(judge_for(Some(512), &image), Err(Fault::BlockSize { expected: 512, found: 4096 }));
    let table = judge_for(None, &image).unwrap();
    assert_eq!(table.remarks, ["it is made for disks with blocks of 4096 bytes"]);
    assert_eq!((table.block, table.partitions[1].bytes.clone()), (4096, at as u64..at as u64 + 1024 * 4096));
    assert_eq!(judge_for(Some(4096), &image).map(|table| table.block), Ok(4096));
    let part = Known { block: Some(512), ..Known::default() };
    let table =
        judge(&part, &mut |offset, len| image[..4096].get(offset as usize..offset as usize + len).map(Vec::from));
    assert_eq!(table.map(|table| table.block), Ok(512), "too little is known");
    image[256 * 512..][..4].copy_from_slice(b"XFSB");
    assert_eq!(judge_for(Some(512), &image).map(|table| table.block), Ok(512));
    assert_eq!(judge_for(None, &image).map(|table| table.block), Ok(512));
}

#[test]
fn a_hybrid_record_grows_with_its_partition() {
    let mut image = gpt(512);
    record(&mut image, 1, 0x83, 8192, 6144);
    record(&mut image, 2, 0x0C, 2048, 6144);
    let table = whole(&image).unwrap();
    assert_eq!(table.remarks, [""; 0]);
    let Kind::Gpt(gpt) = &table.kind else { panic!("{table:?}") };
    let fitted = gpt.fit(4 * SIZE / 512, &table.partitions, &image).unwrap();
    fitted.write(&mut image, Some((2, 31 * MIB)));
    let table = judge_for(Some(4 * SIZE), &image).unwrap();
    assert_eq!(table.partitions[1].bytes, 4 * MIB..31 * MIB);
    assert!(!table.remarks.iter().any(|remark| remark.contains("hybrid")), "{:?}", table.remarks);
    assert_eq!(le32(&image, 446 + 32 + 12), Some(6144), "the other record");
}

/// An MBR with two primary partitions and an extended one that has two logical ones.
fn mbr() -> Vec<u8> {
    let mut image = vec![0; SIZE as usize];
    record(&mut image, 0, 0x0C, 2048, 2048);
    record(&mut image, 1, 0x83, 4096, 2048);
    record(&mut image, 2, 0x05, 6144, 8192);
    record(&mut image[6144 * 512..], 0, 0x83, 1024, 2048);
    record(&mut image[6144 * 512..], 1, 0x05, 4096, 4096);
    record(&mut image[10240 * 512..], 0, 0x83, 1024, 3072);
    image
}

#[test]
fn an_mbr_has_primary_and_logical_partitions() {
    let table = whole(&mbr()).unwrap();
    let found: Vec<_> = table.partitions.iter().map(|one| (one.number, one.bytes.start / 512)).collect();
    assert_eq!(found, [(1, 2048), (2, 4096), (3, 6144), (5, 7168), (6, 11264)]);
    let mut of_type_0 = mbr();
    for at in [466, 6144 * 512 + 450] {
        of_type_0[at] = 0;
    }
    assert_eq!(whole(&of_type_0).unwrap().partitions.len(), 5, "as in Linux, a record with blocks counts");
    let kind_of = |image: &[u8]| whole(image).map(|table| table.kind);
    assert_eq!(kind_of(&mbr()), Ok(Kind::Mbr));
    let mut boot_sector = vec![0; SIZE as usize];
    assert_eq!(kind_of(&boot_sector), Ok(Kind::None));
    boot_sector[510..512].copy_from_slice(&[0x55, 0xAA]);
    assert_eq!(kind_of(&boot_sector), Ok(Kind::BootSector));
    boot_sector[300..510].fill(b'm');
    assert_eq!(kind_of(&boot_sector), Ok(Kind::BootSector), "boot code has any bytes");
    assert_eq!(whole(&[]).unwrap().kind, Kind::None);
}

#[test]
fn an_mbr_is_judged_as_linux_reads_it() {
    check(
        mbr,
        &[
            ("sound", |_| {}, ""),
            ("no blocks", |image| image[474..478].fill(0), "partition 2 has no blocks"),
            ("overlap", |image| image[459] = 16, "partitions 1 and 2 overlap"),
            (
                "overlap with a partition of type 0",
                |image| (image[459], image[466]) = (16, 0),
                "partitions 1 and 2 overlap",
            ),
            ("logical overlap", |image| image[6144 * 512 + 459] = 32, "partitions 5 and 6 overlap"),
            (
                "an ISO image contains the others",
                |image| image[454..462].copy_from_slice(&[0, 0, 0, 0, 0, 60, 0, 0]),
                "",
            ),
            (
                "an empty extended partition",
                |image| image[6144 * 512 + 510] = 0,
                "partition 3 is for logical partitions",
            ),
            (
                "a broken chain",
                |image| image[10240 * 512 + 510] = 0,
                "the chain of logical partitions in partition 3 is broken",
            ),
            (
                "a loop",
                |image| image[6144 * 512 + 470..][..4].fill(0),
                "the chain of logical partitions in partition 3 has no end",
            ),
            ("a logical partition beyond the disk", |image| image[10240 * 512 + 461] = 1, "it is made for a disk of "),
            ("indicator", |image| image[446] = 0x12, "record 1 of its MBR begins with neither"),
            ("active", |image| image[446] = 0x80, ""),
            (
                "a FAT boot sector",
                |image| {
                    image[446] = 0x12;
                    image[..13].copy_from_slice(b"\xEB\x3C\x90mkfs.fat\0\x02");
                },
                "",
            ),
            (
                "a leftover GPT",
                |image| image[512..1024].copy_from_slice(&gpt(512)[512..1024]),
                "it has an MBR and a GPT without a protective record",
            ),
            (
                "a GPT in an image that is also for optical discs",
                |image| {
                    image[512..1024].copy_from_slice(&gpt(512)[512..1024]);
                    image[454..462].copy_from_slice(&[0, 0, 0, 0, 0, 60, 0, 0]);
                },
                "",
            ),
            ("no signature", |image| image[510] = 0, "its first block has the records of an MBR, but not the bytes"),
            (
                "no signature and no table",
                |image| {
                    image[510] = 0;
                    image[446] = 1;
                },
                "",
            ),
            ("a damaged leftover GPT", |image| image[512..520].copy_from_slice(b"EFI PART"), ""),
        ],
    );
}

#[test]
fn what_is_not_known_is_not_judged() {
    let check = |image: &[u8], known_bytes: usize| {
        let known = Known { block: Some(512), disk: Some(SIZE), image: None };
        let head = &image[..known_bytes];
        judge(&known, &mut |offset, len| head.get(offset as usize..offset as usize + len).map(<[u8]>::to_vec))
    };
    let image = gpt(512);
    for bytes in [0, 511, 512, 1023] {
        assert_eq!(check(&image, bytes).unwrap().kind, Kind::Unknown, "{bytes}");
    }
    for bytes in [1024, 4096] {
        let table = check(&image, bytes).unwrap();
        assert!(matches!(table.kind, Kind::Gpt(_)) && table.partitions.is_empty());
    }
    assert_eq!(check(&image, MIB as usize).unwrap().partitions.len(), 2);
    assert_eq!(check(&mbr(), 512).unwrap().partitions.len(), 3);
    let mut damaged = image;
    damaged[528] ^= 1;
    let error = check(&damaged, 1024).unwrap_err().to_string();
    assert!(error.contains("repair the raw image with `sgdisk --move-second-header IMAGE`, which"), "{error}");
}
