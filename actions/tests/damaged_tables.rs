//! An image whose partition table is damaged, or is not for this disk, is named before the disk is touched where its
//! first bytes show it. What only its end shows leaves no table on the disk. sgdisk and sfdisk judge what is written.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use common::disk_image::{ESP, LINUX, Part, make, run};
use common::partitions::verify;
use common::written::{check_does_not_boot, check_untouched, fails, file};
use common::{Bench, MIB, chain, gzip, sha256, stream, xz, zstd};
use slipway_actions::{Done, Error, ImageError};
use slipway_formats::crc32::crc32;
use slipway_protocol::StreamImage;

const IMAGE: usize = 30;
const LAST: u64 = (IMAGE * MIB) as u64 - 512;

/// A GPT image with an ESP and a root file system, changed by these programs and bytes.
fn gpt(bench: &Bench, arguments: &[&str], bytes: &[(u64, &[u8])]) -> Vec<u8> {
    let image = bench.path("image");
    let parts = [
        Part { mib: 1..9, type_guid: ESP, name: "esp", files: &[] },
        Part { mib: 9..28, type_guid: LINUX, name: "root", files: &[("a", "b")] },
    ];
    make(&image, IMAGE, &parts);
    if !arguments.is_empty() {
        run(Command::new("sgdisk").args(arguments).arg(&image));
    }
    let open = File::options().write(true).open(&image).unwrap();
    bytes.iter().for_each(|(at, bytes)| open.write_all_at(bytes, *at).unwrap());
    fs::read(image).unwrap()
}

/// An image of these MiB with an MBR, made by sfdisk.
fn mbr(bench: &Bench, mib: usize, table: &str) -> Vec<u8> {
    let image = bench.path("image");
    File::create(&image).unwrap().set_len((mib * MIB) as u64).unwrap();
    let script = "printf \"$1\" | sfdisk -q \"$0\"";
    run(Command::new("sh").args(["-c", script, image.to_str().unwrap(), table]));
    fs::read(image).unwrap()
}

fn written(bench: &Bench, raw: &[u8], grow: bool) -> Done {
    bench.streams(StreamImage { digest: Some(sha256(raw)), grow, ..file(bench, raw) }).0
}

#[test]
fn a_damaged_gpt_is_named_before_the_disk_is_touched() {
    for (name, at, bytes, expect) in [
        ("header", 528, &[0xFF; 4][..], "the header of its GPT is damaged: its checksum is wrong"),
        ("no header", 512, &[0; 512], "its first block announces a GPT, but there is no header"),
        ("entry", 1024 + 40, &[0xFE], "the entries of its GPT have a wrong checksum"),
        ("unused entry", 1024 + 128 * 90, &[1], "the entries of its GPT have a wrong checksum"),
        ("MBR", 0, &[0; 512], "its GPT has no protective record in the first block"),
    ] {
        let bench = Bench::new(100 * MIB);
        let raw = gpt(&bench, &[], &[(at, bytes)]);
        for stream in [raw.clone(), zstd(&raw), gzip(&raw), xz(&raw)] {
            let error = fails(&bench, file(&bench, &stream));
            assert_error!(error, Error::Image(ImageError::TableDamaged { .. }), "{name}");
            let text = chain(&error);
            let start = format!("checking the partition table of the image: {expect}");
            assert!(text.starts_with(&start) && text.contains("`sgdisk --move-second-header IMAGE`"), "{text}");
            check_untouched(&bench);
        }
        fs::write(bench.path("image"), &raw).unwrap();
        run(Command::new("sgdisk").arg("--move-second-header").arg(bench.path("image")));
        let repaired = fs::read(bench.path("image")).unwrap();
        assert_eq!(written(&bench, &repaired, false).outcome.warnings, [""; 0], "{name}: what the advice gives");
        verify(bench.path("disk"));
    }
}

#[test]
fn what_sgdisk_does_not_mend_has_other_advice_that_does() {
    let repaired = |bench: &Bench, script: &str| {
        let image = bench.path("image");
        run(Command::new("sh").args(["-c", script]).arg(&image));
        fs::read(image).unwrap()
    };
    let own_block = |bench: &Bench| {
        let mut raw = gpt(bench, &[], &[(536, &[2])]);
        raw[528..532].fill(0);
        let sum = crc32(&raw[512..604]);
        raw[528..532].copy_from_slice(&sum.to_le_bytes());
        fs::write(bench.path("image"), &raw).unwrap();
        raw
    };
    for (make, expect, script) in [
        (
            &own_block as &dyn Fn(&Bench) -> Vec<u8>,
            "`gdisk IMAGE` (use the GPT if it asks, then `r`, `b`, `c` and `w`)",
            "printf 'r\nb\nc\ny\nw\ny\n' | gdisk $0",
        ),
        (
            &|bench| gpt(bench, &[], &[(454, &[2])]),
            "`sfdisk --relocate gpt-bak-std IMAGE`",
            "sfdisk --relocate gpt-bak-std $0",
        ),
        (
            &|bench| gpt(bench, &[], &[(450, &[0])]),
            "`gdisk IMAGE` (use the GPT, then `w`)",
            "printf '2\nw\ny\n' | gdisk $0",
        ),
    ] {
        let bench = Bench::new(100 * MIB);
        let raw = make(&bench);
        let error = fails(&bench, file(&bench, &raw));
        assert!(chain(&error).contains(expect), "{}", chain(&error));
        check_untouched(&bench);
        fs::write(bench.path("image"), &raw).unwrap();
        assert_eq!(written(&bench, &repaired(&bench, script), false).outcome.warnings, [""; 0], "{expect}");
        verify(bench.path("disk"));
    }
}

#[test]
fn a_damaged_gpt_in_a_qcow2_image_or_a_block_map_is_named_too() {
    let bench = Bench::new(100 * MIB);
    gpt(&bench, &[], &[(528, &[0xFF; 4])]);
    let mut convert = Command::new("qemu-img");
    run(convert.args(["convert", "-f", "raw", "-O", "qcow2"]).arg(bench.path("image")).arg(bench.path("qcow2")));
    let map = format!(
        "<bmap version=\"1.2\"><ImageSize>{}</ImageSize><BlockSize>4096</BlockSize><BlocksCount>7680</BlocksCount>\
         <MappedBlocksCount>10</MappedBlocksCount><BlockMap><Range>0-9</Range>\
         </BlockMap></bmap>",
        IMAGE * MIB
    );
    let bmap = Some(bench.put("map", map.as_bytes()));
    for image in [stream(bench.place("qcow2")), StreamImage { bmap, ..stream(bench.place("image")) }] {
        let error = fails(&bench, image);
        assert_error!(error, Error::Image(ImageError::TableDamaged { .. }));
        check_untouched(&bench);
    }
}

/// A qcow2 image of a disk whose first block was written last.
fn late(bench: &Bench, raw: &[u8]) -> StreamImage {
    let (raw, image) = (bench.put("raw", raw), bench.path("late"));
    let script = "qemu-img create -q -f qcow2 $1 30M
        for at in 28 26 24 22 20 18 16 14 12 10 8; do qemu-io -f qcow2 -c \"write -P 7 ${at}M 64k\" $1; done >$1.out
        qemu-io -f qcow2 -c \"write -s $0 0 1M\" $1 >$1.out";
    run(Command::new("sh").args(["-ec", script, &raw]).arg(&image));
    stream(bench.place("late"))
}

#[test]
fn a_first_block_that_comes_late_is_judged_before_the_disk_is_touched() {
    for is_damaged in [true, false] {
        let bench = Bench::new(100 * MIB);
        let damage: &[(u64, &[u8])] = if is_damaged { &[(528, &[0xFF; 4])] } else { &[] };
        let image = late(&bench, &gpt(&bench, &[], damage)[..MIB]);
        let whole = fs::read(bench.path("late")).unwrap();
        let error = fails(&bench, StreamImage { digest: Some(sha256(&whole)), ..image.clone() });
        assert_error!(error, Error::Image(ImageError::FirstBlockLate));
        check_untouched(&bench);
        if is_damaged {
            assert_error!(fails(&bench, image.clone()), Error::Image(ImageError::TableDamaged { .. }));
            check_untouched(&bench);
        } else {
            bench.streams(image).1.tell("reading the qcow2 image out of order: ");
            verify(bench.path("disk"));
        }
    }
}

#[test]
fn a_table_that_only_its_end_has_is_no_success() {
    let bench = Bench::new(100 * MIB);
    let raw = gpt(&bench, &[], &[(0, &[0; 2048])]);
    let error = fails(&bench, file(&bench, &raw));
    assert_error!(error, Error::Image(ImageError::TableDamaged { .. }));
    let expect = "its GPT is only in the backup at its end, and neither Linux nor firmware finds it there; repair \
                  the raw image with `gdisk IMAGE` (use the GPT if it asks, then `r`, `b`, `c` and `w`)";
    assert!(chain(&error).contains(expect), "{}", chain(&error));
    check_does_not_boot(&bench);
    let advice = "printf '1\\nr\\nb\\nc\\ny\\nw\\ny\\n' | gdisk \"$0\"";
    run(Command::new("sh").args(["-c", advice, bench.path("image").to_str().unwrap()]));
    let repaired = fs::read(bench.path("image")).unwrap();
    assert_eq!(written(&bench, &repaired, false).outcome.warnings, [""; 0], "what the advice gives");
    verify(bench.path("disk"));
}

#[test]
fn what_sgdisk_finds_odd_in_a_gpt_is_told() {
    for (arguments, expect) in [
        (&["--hybrid=2"][..], ""),
        (
            &[
                "--partition-guid=2:C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
                "--partition-guid=1:C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
            ],
            "partitions 1 and 2 have the same GUID, so PARTUUID= may find either",
        ),
        (&["--delete=1", "--delete=2"], "it has no partitions"),
    ] {
        let bench = Bench::new(100 * MIB);
        let raw = gpt(&bench, arguments, &[]);
        let warnings = written(&bench, &raw, true).outcome.warnings;
        let of_table: Vec<_> =
            warnings.iter().filter_map(|one| one.strip_prefix("the partition table of the image: ")).collect();
        assert_eq!(of_table.join("; "), expect, "{arguments:?}");
        // Also that a record of a hybrid MBR has grown with its partition.
        let output = Command::new("sgdisk").arg("--verify").arg(bench.path("disk")).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("No problems found") && !text.contains("Mismatched"), "{arguments:?}: {text}");
    }
}

#[test]
fn a_gpt_that_no_record_announces_is_refused_or_told() {
    let bench = Bench::new(100 * MIB);
    let raw = gpt(&bench, &[], &[(450, &[0x83])]);
    let error = fails(&bench, file(&bench, &raw));
    assert!(
        chain(&error).contains("the protective record of its GPT has the type 0x83 and not 0xee"),
        "{}",
        chain(&error)
    );
    check_untouched(&bench);
    let raw = gpt(&bench, &[], &[(450, &[0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0])]);
    let warnings = written(&bench, &raw, false).outcome.warnings;
    let expect = "the partition table of the image: it has an MBR and a GPT without a protective record, so Linux and \
                  firmware read only the MBR";
    assert_eq!(warnings, [expect]);
}

#[test]
fn another_place_may_have_the_image_whole() {
    let bench = Bench::new(100 * MIB);
    let right = gpt(&bench, &[], &[]);
    let mut wrong = right.clone();
    wrong[528] ^= 1;
    let mirrors = vec![bench.put("right", &right)];
    let (done, _) = bench.streams(StreamImage { mirrors, grow: false, ..file(&bench, &wrong) });
    assert!(done.outcome.summary.starts_with("wrote 30 MiB"), "{}", done.outcome.summary);
    verify(bench.path("disk"));
}

#[test]
fn a_damaged_backup_is_written_anew_from_the_primary_table() {
    for (bytes, expect) in [
        (&[(LAST + 16, &[0xFF; 4][..])][..], "the backup of its GPT is damaged"),
        (&[(LAST - 512 * 32 + 40, &[0xFE])], "the backup of its GPT is damaged"),
        (&[(LAST, &[0; 512])], "the backup of its GPT is missing"),
    ] {
        for disk in [IMAGE, 100] {
            let bench = Bench::new(disk * MIB);
            let raw = gpt(&bench, &[], bytes);
            let done = written(&bench, &raw, false);
            assert_eq!(done.outcome.warnings, [format!("the partition table of the image: {expect}")]);
            verify(bench.path("disk"));
        }
    }
}

/// What sfdisk says of the table of a disk, with its complaints.
fn sfdisk(bench: &Bench) -> String {
    let output = Command::new("sfdisk").arg("--verify").arg(bench.path("disk")).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn tables_of_few_entries_and_in_another_place_grow_like_others() {
    for arguments in [
        &["--resize-table=56"][..],
        &["--resize-table=4"],
        &["--resize-table=256"],
        &["--move-main-table=64"],
        &["--move-main-table=1000"],
        &["--sort", "--transpose=1:2"],
    ] {
        let bench = Bench::new(100 * MIB);
        let raw = gpt(&bench, arguments, &[]);
        let done = written(&bench, &raw, true);
        assert!(done.outcome.summary.contains("; grew partition "), "{arguments:?}: {}", done.outcome.summary);
        verify(bench.path("disk"));
        let verdict = sfdisk(&bench);
        assert!(verdict.contains("No errors detected") && !verdict.contains("mismatch"), "{arguments:?}: {verdict}");
    }
}

#[test]
fn a_table_whose_entries_are_far_from_the_start_is_left_with_the_reason() {
    let bench = Bench::new(100 * MIB);
    let image = bench.path("image");
    make(&image, IMAGE, &[Part { mib: 9..28, type_guid: LINUX, name: "root", files: &[("a", "b")] }]);
    run(Command::new("sgdisk").arg("--move-main-table=4096").arg(&image));
    let done = written(&bench, &fs::read(&image).unwrap(), true);
    let reason = "its entries are not at the beginning of the disk";
    assert!(done.outcome.warnings[0].ends_with(&format!("at the end of the disk: {reason}")), "{:?}", done.outcome);
    let summary = &done.outcome.summary;
    assert!(summary.contains("; did not grow partition 1 (root) of ") && summary.ends_with(reason), "{summary}");
}

#[test]
fn the_protective_record_has_the_size_of_the_disk() {
    for grow in [false, true] {
        let bench = Bench::new(100 * MIB);
        let raw = gpt(&bench, &[], &[]);
        written(&bench, &raw, grow);
        assert!(!sfdisk(&bench).contains("mismatch"), "{}", sfdisk(&bench));
        let size: [u8; 4] = bench.disk()[458..462].try_into().unwrap();
        assert_eq!(u32::from_le_bytes(size) as usize, 100 * MIB / 512 - 1);
    }
}

const TWO: &str = "label: dos\\nstart=2048, size=32768, type=c\\nstart=34816, size=2013184, type=83\\n";

#[test]
fn an_mbr_for_a_larger_disk_is_refused_before_the_disk_is_touched() {
    let bench = Bench::new(200 * MIB);
    let mut raw = mbr(&bench, 1000, TWO);
    raw.truncate(20 * MIB);
    let error = fails(&bench, file(&bench, &raw));
    assert_error!(error, Error::Image(ImageError::TableTooLarge { .. }));
    assert!(chain(&error).contains("because partition 2 ends there"), "{}", chain(&error));
    check_untouched(&bench);
}

#[test]
fn an_mbr_without_its_signature_is_named_before_the_disk_is_touched() {
    let bench = Bench::new(200 * MIB);
    let mut raw = mbr(&bench, 40, "label: dos\\nstart=2048, size=32768, type=c\\nstart=34816, type=83\\n");
    raw[511] = 0;
    let error = fails(&bench, file(&bench, &raw));
    assert!(
        chain(&error).contains("the records of an MBR, but not the bytes 0x55 0xAA at its end"),
        "{}",
        chain(&error)
    );
    check_untouched(&bench);
}

#[test]
fn an_mbr_that_ends_after_its_image_is_a_warning() {
    let bench = Bench::new(200 * MIB);
    let mut raw = mbr(&bench, 150, "label: dos\\nstart=2048, size=32768, type=c\\nstart=34816, type=83\\n");
    raw.truncate(100 * MIB);
    let done = written(&bench, &raw, true);
    let warning = "ends after the end of the image, which may be truncated";
    assert_eq!(done.outcome.warnings, [format!("partition 2 of {} {warning}", bench.place("disk"))]);
}

const LOGICAL: &str = "label: dos\\nstart=1MiB, size=2MiB, type=83\\nstart=4MiB, size=24MiB, type=5\\n\
    start=5MiB, size=4MiB, type=83\\nstart=12MiB, size=6MiB, type=83\\n";

#[test]
fn the_chain_of_logical_partitions_is_checked_before_the_table_is_written() {
    let bench = Bench::new(40 * MIB);
    let raw = mbr(&bench, 30, LOGICAL);
    assert_eq!(written(&bench, &raw, true).outcome.warnings, [""; 0]);
    let second = (0..raw.len() / 512).rfind(|block| raw[block * 512 + 510..][..2] == [0x55, 0xAA]).unwrap() * 512;
    for (at, byte, expect) in [
        (second + 510, 0, "the chain of logical partitions in partition 2 is broken at byte "),
        (second + 446 + 15, 1, "it is made for a disk of "),
    ] {
        let mut raw = raw.clone();
        raw[at] = byte;
        let bench = Bench::new(40 * MIB);
        let error = fails(&bench, file(&bench, &raw));
        assert!(chain(&error).contains(expect), "{}", chain(&error));
        check_does_not_boot(&bench);
    }
}

#[test]
fn an_mbr_for_blocks_of_another_size_is_not_written() {
    let bench = Bench::new(60 * MIB);
    let raw = mbr(&bench, 30, "label: dos\\nstart=256, size=2048, type=83\\nstart=2304, size=4096, type=83\\n");
    let mut mkfs = Command::new("mkfs.ext4");
    run(mkfs.args(["-q", "-F", "-E", "offset=1048576"]).arg(bench.path("image")).arg("8192k"));
    assert_ne!(fs::read(bench.path("image")).unwrap(), raw);
    let error = fails(&bench, stream(bench.place("image")));
    assert_error!(error, Error::Image(ImageError::BlockSize { expected: 512, found: 4096, .. }));
    check_does_not_boot(&bench);
}

#[test]
fn images_of_file_systems_and_of_optical_discs_are_written_as_they_are() {
    let bench = Bench::new(60 * MIB);
    let image = bench.path("image");
    for program in [&["mkfs.vfat", "-F", "16"][..], &["mkfs.ext4", "-q", "-F"]] {
        File::create(&image).unwrap().set_len(20 << 20).unwrap();
        run(Command::new(program[0]).args(&program[1..]).arg(&image));
        let raw = fs::read(&image).unwrap();
        assert_eq!(written(&bench, &raw, true).outcome.warnings, [""; 0], "{program:?}");
        assert!(bench.disk().starts_with(&raw), "{program:?}");
    }
    // As isohybrid makes it: the first partition is the whole image, and the second lies inside it.
    let mut raw = mbr(&bench, 20, "label: dos\\nstart=4096, size=8192, type=ef\\n");
    raw.copy_within(446..462, 462);
    raw[446..462].copy_from_slice(&[0x80, 0, 0, 0, 0x17, 0, 0, 0, 0, 0, 0, 0, 0, 0xA0, 0, 0]);
    raw[32769..32774].copy_from_slice(b"CD001");
    assert_eq!(written(&bench, &raw, true).outcome.warnings, [""; 0]);
    assert!(bench.disk().starts_with(&raw));
}
