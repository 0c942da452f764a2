//! `stream-image` with a block map: the ranges in the map are on the disk and checked, and nothing else is written.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

use slipway_protocol::{Outcome, StreamImage, Verify};

use common::disk_image::{self, LINUX, Part, run};
use common::partitions::verify;
use common::tls::{Acceptor, authority};
use common::written::{
    DISK, IMAGE, check_does_not_boot, check_untouched, check_untouched_or_does_not_boot, fails_for, file,
};
use common::{
    Answer, Bench, MIB, Server, gzip, image, ok, sha256, status, stream, stream_from, xz_blocks, zstd, zstd_sized,
};

/// bmaptool's copy function, used directly because it keeps the content of the target file. The bmaptool command
/// empties the file first.
const COPY: &str = "import sys; from bmaptools import BmapCopy; image, dest, bmap = sys.argv[1:]; \
                    BmapCopy.BmapCopy(open(image, 'rb'), open(dest, 'r+b'), open(bmap, 'rb')).copy()";
/// Ranges of the image with data, with holes between. One crosses the border of the head that is held back, and one
/// ends within a block.
const DATA: [Range<usize>; 5] =
    [0..8192, MIB - 8192..MIB + 8192, 3 * MIB..3 * MIB + 200_000, 10 * MIB..25 * MIB, IMAGE - 3000..IMAGE];
/// Zeros that are stored as data.
const ZEROS: Range<usize> = 5 * MIB..6 * MIB;

/// An image with holes, and the map that bmaptool made from it.
struct Source {
    folder: Bench,
    raw: Vec<u8>,
}

impl Source {
    fn new(size: usize, data: &[Range<usize>], options: &[&str]) -> Self {
        let folder = Bench::without_disks();
        let file = File::create_new(folder.path("raw")).unwrap();
        file.set_len(size as u64).unwrap();
        for range in data {
            file.write_all_at(&image(range.len()), range.start as u64).unwrap();
        }
        file.write_all_at(&vec![0; ZEROS.len()], ZEROS.start as u64).unwrap();
        Self::of(folder, options)
    }

    /// Uses the file `raw` in a folder.
    fn of(folder: Bench, options: &[&str]) -> Self {
        let (map, image) = (folder.path("map"), folder.path("raw"));
        run(Command::new("bmaptool").arg("create").args(options).arg("--output").arg(map).arg(&image));
        Self { raw: fs::read(image).unwrap(), folder }
    }

    fn map(&self) -> String {
        self.folder.place("map")
    }

    /// A step that streams these bytes with the map.
    fn stream(&self, bytes: &[u8]) -> StreamImage {
        StreamImage { bmap: Some(self.map()), ..file(&self.folder, bytes) }
    }

    /// What bmaptool writes to a file full of 0xAA.
    fn by_bmaptool(&self) -> Vec<u8> {
        let copy = self.folder.path("copy");
        fs::write(&copy, vec![0xAA; self.raw.len()]).unwrap();
        // bmaptool is installed for the system's Python.
        let mut python = Command::new("/usr/bin/python3");
        run(python.args(["-c", COPY]).args(["raw", "copy", "map"].map(|name| self.folder.path(name))));
        fs::read(copy).unwrap()
    }

    /// The ends of the disk are those of the image, with zeros for holes. Between them is what bmaptool would have
    /// written.
    #[track_caller]
    fn check_written(&self, bench: &Bench) {
        let (disk, raw, copy) = (bench.disk(), &self.raw, self.by_bmaptool());
        assert!(copy[8 * MIB..9 * MIB].iter().all(|byte| *byte == 0xAA), "there is a hole");
        let tail = DISK - MIB;
        let end = raw.len().min(tail);
        assert!(disk[..MIB] == raw[..MIB], "the head");
        assert!(disk[MIB..end] == copy[MIB..end], "what is between the ends");
        assert!(disk[end..tail].iter().all(|byte| *byte == 0xAA), "what is behind the image");
        assert!(disk[tail..][..raw.len() - end] == raw[end..], "the end of the image at the tail");
        assert!(disk[raw.len().max(tail)..].iter().all(|byte| *byte == 0), "the tail behind the image");
    }
}

#[track_caller]
fn succeeds(bench: &Bench, image: StreamImage) -> (Outcome, Vec<String>) {
    let (done, reports) = bench.streams(image);
    (done.outcome, reports.notes)
}

#[test]
fn what_the_map_lists_is_written_as_bmaptool_does() {
    let source = Source::new(IMAGE, &DATA, &[]);
    let raw = &source.raw;
    for (name, stream, verify) in [
        ("raw", raw.clone(), Verify::Readback),
        ("zstd", zstd(raw), Verify::None),
        ("zstd of many frames", raw.chunks(700_001).flat_map(zstd_sized).collect(), Verify::Readback),
        ("gzip", gzip(raw), Verify::Readback),
        ("xz of many blocks", xz_blocks(raw, 700_001), Verify::None),
    ] {
        let bench = Bench::new(DISK);
        let raw_digest = (name == "gzip").then(|| sha256(raw));
        let (outcome, notes) = succeeds(&bench, StreamImage { verify, raw_digest, ..source.stream(&stream) });
        source.check_written(&bench);
        assert_eq!(outcome.warnings, [""; 0], "{name}: the map proves it");
        let left_out = "; left out 16.8 MiB without data, according to its block map";
        assert!(outcome.summary.ends_with(left_out), "{name}: {}", outcome.summary);
        let told = format!("the image has data in 16.2 MiB of its 33 MiB, according to {}", source.map());
        assert_eq!(notes[0], told, "{name}: before the disk is chosen");
    }
}

#[test]
fn an_image_as_large_as_the_disk_has_its_end_at_the_tail() {
    let source = Source::new(DISK, &[0..4096, MIB..2 * MIB, DISK - 500_000..DISK - 400_000], &[]);
    let bench = Bench::new(DISK);
    succeeds(&bench, StreamImage { verify: Verify::Readback, ..source.stream(&zstd(&source.raw)) });
    source.check_written(&bench);
}

#[test]
fn a_partition_table_with_holes_is_fitted_to_the_disk() {
    let folder = Bench::without_disks();
    let part = Part { mib: 2..14, type_guid: LINUX, name: "root", files: &[] };
    disk_image::make(&folder.path("raw"), 16, &[part]);
    // The unused entries of the table become a hole.
    run(Command::new("fallocate").arg("--dig-holes").arg(folder.path("raw")));
    let source = Source::of(folder, &[]);
    assert!(fs::read_to_string(source.map()).unwrap().contains("> 0 </Range>"), "the first block alone");
    let bench = Bench::new(DISK);
    let (outcome, _) = succeeds(&bench, StreamImage { grow: false, ..source.stream(&source.raw) });
    assert_eq!(outcome.warnings, [""; 0]);
    assert!(bench.disk()[DISK - 512..].starts_with(b"EFI PART"), "the backup of the table is at the end of the disk");
    verify(bench.path("disk"));
}

#[test]
fn what_another_system_had_at_the_ends_of_a_partition_is_gone() {
    for label in ["gpt", "dos"] {
        let folder = Bench::without_disks();
        let raw = File::create_new(folder.path("raw")).unwrap();
        raw.set_len(16 * MIB as u64).unwrap();
        let table = format!("printf 'label: {label}\\nstart=2MiB,size=5MiB\\n' | sfdisk -q \"$0\"");
        run(Command::new("sh").args(["-c", &table]).arg(folder.path("raw")));
        for at in [2 * MIB + 65536, 4 * MIB] {
            raw.write_all_at(&image(4096), at as u64).unwrap();
        }
        let source = Source::of(folder, &[]);
        let bench = Bench::new(DISK);
        succeeds(&bench, source.stream(&source.raw));
        let disk = bench.disk();
        for (bytes, is_kept) in [
            (MIB..2 * MIB, true),
            (2 * MIB..3 * MIB, false),
            (3 * MIB..4 * MIB, true),
            (4 * MIB + 4096..6 * MIB, true),
            (6 * MIB..7 * MIB, false),
            (7 * MIB..8 * MIB, true),
        ] {
            let is_right = match is_kept {
                true => disk[bytes.clone()].iter().all(|byte| *byte == 0xAA),
                false => disk[bytes.clone()] == source.raw[bytes.clone()],
            };
            assert!(is_right, "{label}: {bytes:?}");
        }
        assert!(disk[4 * MIB..][..4096] == source.raw[4 * MIB..][..4096]);
    }
}

#[test]
fn blocks_may_be_of_any_size_and_without_digests() {
    const BLOCK: usize = 512;
    const SIZE: usize = 7 * MIB;
    let ranges = [1..3, 9..10, 2047..2049, 2051..2052, 2052..2300, 4090..4601, 14335..14336];
    let source = Source::new(SIZE, &[0..MIB, MIB..SIZE], &[]);
    let listed: String =
        ranges.iter().map(|range| format!("<Range>{}-{}</Range>", range.start, range.end - 1)).collect();
    let mapped: usize = ranges.iter().map(Range::len).sum();
    let sizes = format!("<ImageSize>{SIZE}</ImageSize><BlockSize>{BLOCK}</BlockSize>");
    let blocks = SIZE / BLOCK;
    let counts = format!("<BlocksCount>{blocks}</BlocksCount><MappedBlocksCount>{mapped}</MappedBlocksCount>");
    let map = format!("<bmap version=\"1.2\">{sizes}{counts}<BlockMap>{listed}</BlockMap></bmap>");
    fs::write(source.map(), map).unwrap();
    let mut expect = [vec![0; MIB], vec![0xAA; DISK - 2 * MIB], vec![0; MIB]].concat();
    for range in ranges {
        let bytes = range.start * BLOCK..range.end * BLOCK;
        expect[bytes.clone()].copy_from_slice(&source.raw[bytes]);
    }
    let frames: Vec<u8> = source.raw.chunks(70_001).flat_map(zstd_sized).collect();
    for (stream, raw_digest) in [(&source.raw, None), (&frames, None), (&frames, Some(sha256(&source.raw)))] {
        let bench = Bench::new(DISK);
        let is_proven = raw_digest.is_some();
        let (outcome, _) =
            succeeds(&bench, StreamImage { raw_digest, verify: Verify::Readback, ..source.stream(stream) });
        assert!(bench.disk() == expect);
        assert_eq!(outcome.warnings.is_empty(), is_proven, "{:?}", outcome.warnings);
    }
}

#[test]
fn a_damaged_byte_is_found_by_the_range_it_is_in() {
    let source = Source::new(IMAGE, &DATA, &[]);
    for (at, range) in [
        (8191, "blocks 0-1 of the raw image (from byte 0 to 8192)"),
        (MIB, "blocks 254-257 of the raw image (from byte 1040384 to 1056768)"),
        (ZEROS.start, "blocks 1280-1535 of the raw image (from byte 5242880 to 6291456)"),
        (24 * MIB, "blocks 2560-6399 of the raw image (from byte 10485760 to 26214400)"),
        (IMAGE - 1, "blocks 8447-8448 of the raw image (from byte 34598912 to 34603525)"),
    ] {
        let mut flipped = source.raw.clone();
        flipped[at] ^= 1;
        let expect = format!("checking {range} against its block map: expected sha256:");
        for (stream, raw_digest) in [(&flipped, None), (&zstd(&flipped), Some(sha256(&flipped)))] {
            let bench = Bench::new(DISK);
            fails_for(&bench, StreamImage { raw_digest, ..source.stream(stream) }, &expect);
            check_untouched_or_does_not_boot(&bench);
        }
    }
}

#[test]
fn what_is_not_in_the_map_is_not_written_whatever_arrives() {
    let source = Source::new(IMAGE, &DATA, &[]);
    let mut flipped = source.raw.clone();
    for at in [8192, MIB / 2, 2 * MIB, 30 * MIB, IMAGE - 5000] {
        flipped[at] ^= 1;
    }
    let bench = Bench::new(DISK);
    succeeds(&bench, StreamImage { verify: Verify::Readback, ..source.stream(&flipped) });
    source.check_written(&bench);
    // The digest of the raw image covers the holes too.
    let raw_digest = Some(sha256(&source.raw));
    fails_for(&bench, StreamImage { raw_digest, ..source.stream(&flipped) }, "checking the digest of the raw image");
    check_does_not_boot(&bench);
}

#[test]
fn an_image_has_the_size_its_map_says() {
    let source = Source::new(IMAGE, &DATA[..3], &[]);
    let longer = [source.raw.as_slice(), &[0]].concat();
    let expect = format!("checking the size of the raw image: expected {IMAGE} bytes");
    // Each of these has every range of the map before it ends.
    for raw in [&longer, &source.raw[..IMAGE - 1], &source.raw[..7 * MIB]] {
        for stream in [raw.to_vec(), zstd(raw), gzip(raw)] {
            let bench = Bench::new(DISK);
            fails_for(&bench, source.stream(&stream), &expect);
            check_untouched_or_does_not_boot(&bench);
        }
    }
    let bench = Bench::new(DISK);
    let raw_size = Some(IMAGE as u64 - 1);
    let less = IMAGE - 1;
    let expect = format!("the step has a raw_size of {less} bytes, but a block map for an image of {IMAGE} bytes");
    fails_for(&bench, StreamImage { raw_size, ..source.stream(&source.raw) }, &expect);
    check_untouched(&bench);
    let raw_size = Some(IMAGE as u64);
    succeeds(&bench, StreamImage { raw_size, ..source.stream(&source.raw) });
    let bench = Bench::new(IMAGE - 5);
    fails_for(&bench, source.stream(&zstd(&source.raw)), &format!("the image needs {IMAGE} bytes"));
    check_untouched(&bench);
}

#[test]
fn a_map_that_cannot_be_used_leaves_the_disk_as_it_was() {
    let source = Source::new(IMAGE, &DATA[..1], &[]);
    let good = fs::read_to_string(source.map()).unwrap();
    let bench = Bench::new(DISK);
    let looking = format!("reading the block map {}: ", source.map());
    for (map, expect) in [
        (good.replacen("0-1", "0-2", 1), looking.clone() + "checking the digest of the block map: expected "),
        ("<html>404</html>".to_owned(), looking.clone() + "reading the block map: line 1: this is not a block map"),
        (good[..good.len() - 9].to_owned(), looking + "reading the block map: "),
        (good + &" ".repeat(16 * MIB), "the file has more than the allowed 16777216 bytes".to_owned()),
    ] {
        fs::write(source.map(), map).unwrap();
        fails_for(&bench, source.stream(&source.raw), &expect);
    }
    fs::remove_file(source.map()).unwrap();
    fails_for(&bench, source.stream(&source.raw), "opening the file");
    let digest = Some(sha256(&source.raw));
    let in_the_clear = StreamImage { bmap: Some("http://127.0.0.1:1/map".to_owned()), digest, ..source.stream(b"") };
    fails_for(&bench, in_the_clear, "it fetches the block map over http://");
    check_untouched(&bench);
}

#[test]
fn a_mirror_is_asked_when_what_came_is_not_what_the_map_says() {
    let source = Source::new(IMAGE, &DATA, &[]);
    let mut damaged = source.raw.clone();
    damaged[12 * MIB] ^= 1;
    let (first, second) = (Server::giving(ok(&damaged)), Server::giving(ok(&source.raw)));
    let (bmap, raw_digest) = (Some(source.map()), Some(sha256(&source.raw)));
    let image = StreamImage { bmap, raw_digest, ..stream_from(&[&first, &second]) };
    let bench = Bench::new(DISK);
    let (_, notes) = succeeds(&bench, image);
    source.check_written(&bench);
    assert!(notes.iter().any(|note| note.contains("did not deliver a valid image: checking blocks ")), "{notes:?}");
}

#[test]
fn a_map_is_fetched_over_tls_with_the_authority_of_the_image() {
    let source = Source::new(IMAGE, &DATA, &[]);
    let (authority, map) = (authority(), fs::read(source.map()).unwrap());
    let server = Server::start_with(Some(Acceptor::new(&authority)), move |_, asked| match asked.path.as_str() {
        "/map?key=hidden" => Answer::Bytes(ok(&map)),
        _ => status("404 Not Found", ""),
    });
    let image = |path: &str| {
        let (bmap, ca) = (Some(server.at(path) + "?key=hidden"), Some(authority.pem()));
        StreamImage { bmap, ca, ..source.stream(&zstd(&source.raw)) }
    };
    let bench = Bench::new(DISK);
    let expect = format!("fetching {}: the server answered 404 Not Found", server.at("/nowhere"));
    fails_for(&bench, image("/nowhere"), &expect);
    check_untouched(&bench);
    succeeds(&bench, image("/map"));
    source.check_written(&bench);
}

#[test]
fn an_image_that_starts_over_is_checked_from_its_beginning_again() {
    let source = Source::new(IMAGE, &DATA, &[]);
    let body = Arc::new(source.raw.clone());
    let server = Server::start(move |n, _| Answer::File {
        body: Arc::clone(&body),
        etag: None,
        until: if n == 0 { 12 * MIB } else { usize::MAX },
    });
    let bench = Bench::new(DISK);
    let image = StreamImage { bmap: Some(source.map()), raw_digest: Some(sha256(&source.raw)), ..stream(&server.url) };
    let (_, notes) = succeeds(&bench, image);
    assert!(notes.iter().any(|note| note.starts_with("starting over: ")), "{notes:?}");
    source.check_written(&bench);
}

#[test]
fn a_qcow2_image_is_written_by_its_map_too() {
    for (options, by_ranges) in [(&[][..], true), (&["--no-checksum"], false)] {
        let source = Source::new(33 * MIB, &DATA[..4], options);
        let (raw, image) = (source.folder.path("raw"), source.folder.path("qcow2"));
        run(Command::new("qemu-img").args(["convert", "-f", "raw", "-O", "qcow2"]).arg(raw).arg(&image));
        let image = fs::read(image).unwrap();
        let bench = Bench::new(DISK);
        let (_, notes) = succeeds(&bench, source.stream(&image));
        source.check_written(&bench);
        let told = notes.iter().any(|note| note.starts_with("reading the qcow2 image out of order: "));
        assert_eq!(told, by_ranges, "{notes:?}");
    }
}
