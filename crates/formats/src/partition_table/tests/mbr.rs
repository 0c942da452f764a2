//! Tables of an MBR.

use super::*;

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
    let mut usual = image.clone();
    usual[768 * 512 + 1080..768 * 512 + 1082].copy_from_slice(&[0x53, 0xEF]);
    let small = Known { block: Some(4096), disk: Some(SIZE / 2), image: Some(SIZE / 2) };
    let found = judge(&small, &mut |at, len| usual.get(at as usize..at as usize + len).map(<[u8]>::to_vec));
    assert_eq!(found, Err(Fault::BlockSize { expected: 4096, found: 512 }), "it does not fit with larger blocks");
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
            ("logical overlap", |image| image[6144 * 512 + 459] = 20, "partitions 5 and 6 overlap"),
            (
                "a logical partition that ends after the extended one",
                |image| image[10240 * 512 + 459] = 13,
                "partition 6 is not within partition 3",
            ),
            (
                "a link out of the extended partition",
                |image| {
                    record(&mut image[6144 * 512..], 1, 0x05, 8192, 1024);
                    record(&mut image[14336 * 512..], 0, 0x83, 100, 900);
                },
                "partition 6 is not within partition 3",
            ),
            (
                "a link to something else",
                |image| record(&mut image[6144 * 512..], 1, 0x05, 8192, 1024),
                "the chain of logical partitions in partition 3 is broken at byte 7340032",
            ),
            (
                "a link out of the disk",
                |image| record(&mut image[6144 * 512..], 1, 0x05, 400_000, 4096),
                "the chain of logical partitions in partition 3 leads to byte 207945728, after the end of the image",
            ),
            (
                "the first link without its signature",
                |image| image[6144 * 512 + 510] = 0,
                "the chain of logical partitions in partition 3 is broken at byte 3145728",
            ),
            (
                "an ISO image contains the others",
                |image| image[454..462].copy_from_slice(&[0, 0, 0, 0, 0, 60, 0, 0]),
                "",
            ),
            (
                "an empty extended partition",
                |image| image[6144 * 512..][..512].fill(0),
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
