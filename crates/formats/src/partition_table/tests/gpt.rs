//! Tables of a GPT, alone and with a hybrid MBR.

use super::*;

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
            ("too long", |image| image[526] = 1, "the header of its GPT is damaged: it cannot have 65628 bytes"),
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
    check_sealed(&[
        ("own block", 536, &[2], "the header of its GPT is damaged: it is in block 1, but made for block 2"),
        ("too short", 524, &[80], "the header of its GPT is damaged: it cannot have 80 bytes"),
        ("longer", 524, &[200], ""),
        ("entry size", 596, &[100], "the header of its GPT is damaged: its entries cannot have 100 bytes"),
        ("too many entries", 595, &[1], "the header of its GPT is damaged: it cannot have 16777344 entries"),
        ("no entries", 592, &[0], "the header of its GPT is damaged: it cannot have 0 entries"),
        ("entries over the header", 584, &[1], "the header of its GPT is damaged: its entries cannot be in block 1"),
        ("entries after the image", 591, &[1], "the entries of its GPT lie "),
        ("no room", 559, &[1], "the header of its GPT is damaged: it has no blocks"),
        ("backwards", 1024 + 34, &[0xFF], "partition 1 (a) of its GPT ends before it begins"),
        ("an end beyond 2^64 bytes", 1024 + 47, &[0x7F], "partition 1 (a) of its GPT ends after any disk"),
        (
            "larger entries",
            596,
            &[0, 1],
            "the entries of its GPT have 256 bytes, and Linux reads only those of 128; create the image again",
        ),
        ("a partition over the header", 1024 + 32, &[1, 0], "partition 1 (a) of its GPT lies over the table itself"),
        ("a partition over the entries", 1024 + 32, &[33, 0], "partition 1 (a) of its GPT lies over the table itself"),
    ]);
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

/// Which program mends which damage was tried; `actions/tests/damaged_tables.rs` tries it again.
#[test]
fn the_advice_is_a_program_that_mends_it() {
    let sealed = |at: usize, byte: u8| {
        move |image: &mut Vec<u8>| {
            image[at] = byte;
            seal_header(image, 512);
        }
    };
    let plain = |at: usize, byte: u8| move |image: &mut Vec<u8>| image[at] = byte;
    let (move_backup, restore) = ("`sgdisk --move-second-header IMAGE`", "`r`, `b`, `c` and `w`)");
    for (name, change, expect) in [
        ("checksum", Box::new(plain(528, 0xFF)) as Box<dyn Fn(&mut Vec<u8>)>, move_backup),
        ("an entry", Box::new(plain(1064, 0)), move_backup),
        ("no header", Box::new(|image| image[512..1024].fill(0)), move_backup),
        ("length", Box::new(sealed(524, 80)), move_backup),
        ("no boot signature", Box::new(plain(510, 0)), move_backup),
        ("own block", Box::new(sealed(536, 2)), restore),
        ("no room", Box::new(sealed(559, 1)), restore),
        ("entries over the header", Box::new(sealed(584, 1)), restore),
        ("entries after the image", Box::new(sealed(587, 1)), restore),
        (
            "no record and no header",
            Box::new(|image| {
                image[450] = 0;
                image[528] ^= 1;
            }),
            restore,
        ),
        ("only the backup", Box::new(|image| image[..2048].fill(0)), restore),
        ("no protective record", Box::new(plain(450, 0)), "`gdisk IMAGE` (use the GPT, then `w`)"),
        ("protective record elsewhere", Box::new(plain(454, 2)), "`sfdisk --relocate gpt-bak-std IMAGE`"),
    ] {
        let mut image = gpt(512);
        change(&mut image);
        let fault = whole(&image).unwrap_err().to_string();
        assert!(fault.contains(expect), "{name}: {fault}");
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
            ("no backup", |image| image[LAST..].fill(0), "the backup of its GPT is missing"),
            ("partitions are cut off", |image| image.truncate(5 << 20), ""),
            ("hybrid", |image| record(image, 1, 0x0C, 2048, 6144), ""),
            (
                "a hybrid record beyond the disk",
                |image| record(image, 1, 0x0C, 2048, 614_400),
                "record 2 of its hybrid MBR matches no partition of its GPT",
            ),
            ("a file system where the table was", |image| ext4_over_the_table(image), ""),
            ("no size in the protective record", |image| image[458..462].fill(0), ""),
        ],
    );
    check_sealed(&[
        ("another backup", 1024 + 16, &[0], "the backup of its GPT differs"),
        ("no partitions", 1024, &[0; 1024], "the backup of its GPT differs from the primary GPT; it has no partitions"),
        ("the same GUID twice", 1024 + 128 + 16, &[1; 16], "partitions 1 and 2 have the same GUID"),
        ("backup beyond any disk", 551, &[0xFF], "the backup of its GPT is missing"),
        ("overlap", 1024 + 128 + 33, &[8], "partitions 1 and 2 overlap"),
        ("before the usable blocks", 1024 + 33, &[0], "partition 1 (a) is not within"),
        ("revision", 522, &[2], "its header has revision 2.0"),
        ("usable blocks among the entries", 552, &[33], "its area for partitions begins before its entries end"),
        (
            "a partition over the backup",
            1024 + 128 + 40,
            &[0xFF, 0x3F],
            "partition 2 (b) is not within the area for partitions, so UEFI firmware ignores it; partition 2 (b) \
                 lies over the backup of its GPT; the backup of its GPT differs",
        ),
        ("the header is its own backup", 544, &[1, 0, 0, 0, 0, 0, 0, 0], "the backup of its GPT is missing"),
        (
            "a file system over all of it, as in images for optical discs",
            1024 + 32,
            &[0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 7, 0, 0, 0, 0, 0, 0],
            "partition 1 (a) is not within",
        ),
    ]);
    let mut other_size = gpt(512);
    other_size[460] = 1;
    assert_eq!(whole(&other_size).unwrap().remarks, [""; 0]);
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
