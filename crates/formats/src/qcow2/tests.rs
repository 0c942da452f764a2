//! Images made by qemu-img, and a small one made here that is then damaged in every way.

use std::error::Error as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use super::{Block, Error, FileOrder, Image};

/// The bytes of a raw image that were received. Bytes that were not received are not zero.
struct Raw {
    bytes: Vec<u8>,
    given: u64,
}

impl Raw {
    fn new(size: u64) -> Self {
        Self { bytes: vec![0xEE; size as usize], given: 0 }
    }

    fn take(&mut self, guest: u64, block: Block<'_>) -> Result<(), Error> {
        let at = guest as usize;
        match block {
            Block::Data(bytes) => {
                assert!(!bytes.is_empty());
                self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
                self.given += bytes.len() as u64;
            }
            Block::Zero(len) => {
                assert!(len > 0);
                self.bytes[at..at + len as usize].fill(0);
                self.given += len;
            }
        }
        Ok(())
    }

    /// The raw image, after a check that every byte was received exactly once.
    fn whole(self) -> Vec<u8> {
        assert_eq!(self.given, self.bytes.len() as u64, "some bytes were given twice or never");
        self.bytes
    }
}

fn by_offsets(file: &[u8]) -> Result<Vec<u8>, Error> {
    let mut read_at = |offset: u64, bytes: &mut [u8]| {
        let start = usize::try_from(offset).unwrap();
        // Never reads beyond the end: a server would refuse such a request.
        bytes.copy_from_slice(&file[start..start + bytes.len()]);
        Ok(())
    };
    let image = Image::open(file.len() as u64, &mut read_at)?;
    let mut raw = Raw::new(image.size());
    let mut end = 0;
    image.read(&mut read_at, |guest, block| {
        assert_eq!(guest, end, "the raw image is not given in its order");
        raw.take(guest, block)?;
        end = raw.given;
        Ok::<_, Error>(())
    })?;
    Ok(raw.whole())
}

fn in_file_order(file: &[u8]) -> Result<Vec<u8>, Error> {
    let image = FileOrder::open(file)?;
    let mut raw = Raw::new(image.size());
    image.run(|guest, block| raw.take(guest, block))?;
    Ok(raw.whole())
}

/// Runs `qemu-img` and `qemu-io` commands in a folder; false if the programs are not installed.
fn run(dir: &Path, commands: &[&str]) -> bool {
    for command in commands {
        let done = Command::new("sh").args(["-ec", command]).current_dir(dir).output().unwrap();
        if done.status.code() == Some(127) {
            eprintln!("not checked: {command:?} cannot be run here");
            return false;
        }
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }
    true
}

/// Makes `image` and compares what is read with the output of qemu-img.
fn check(commands: &[&str], one_pass: bool) {
    let dir = tempfile::tempdir().unwrap();
    let mut source = vec![0; (4 << 20) + 1536];
    let mut state = 1_u32;
    let noise = source[300_000..1_500_000].iter_mut().chain(&mut [0; 0]);
    noise.for_each(|byte| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    });
    source[2_000_000..2_700_000].fill(b'a');
    for at in (2_700_000..2_900_000).step_by(5000) {
        source[at..at + 900].fill(at as u8);
    }
    source[4 << 20..].fill(b'z');
    fs::write(dir.path().join("source"), &source).unwrap();
    if !run(dir.path(), commands) || !run(dir.path(), &["qemu-img convert -O raw image raw"]) {
        return;
    }
    let (file, raw) = (fs::read(dir.path().join("image")).unwrap(), fs::read(dir.path().join("raw")).unwrap());
    assert!(by_offsets(&file).unwrap() == raw, "{commands:?} by offsets");
    match in_file_order(&file) {
        Ok(found) => assert!(one_pass && found == raw, "{commands:?} in one pass"),
        Err(error) => assert!(!one_pass && matches!(error, Error::NotInOrder { .. }), "{commands:?}: {error}"),
    }
}

#[test]
fn what_qemu_img_converts_is_read_both_ways() {
    for options in [
        "",
        "-c",
        "-c -o compression_type=zstd",
        "-o compat=0.10",
        "-c -o compat=0.10",
        "-o cluster_size=512",
        "-c -o cluster_size=512",
        "-o cluster_size=4k",
        "-c -o cluster_size=4k,compression_type=zstd",
        "-o cluster_size=2M",
        "-c -o cluster_size=2M",
        "-c -o cluster_size=2M,compression_type=zstd",
        "-o preallocation=metadata",
        "-o lazy_refcounts=on",
        "-S 0",
        "-W -m 16",
    ] {
        check(&[&format!("qemu-img convert -f raw -O qcow2 {options} source image")], true);
    }
    // The first refcount table became too small. An L2 table takes its place, and so comes before the L1 table.
    check(&["qemu-img convert -f raw -O qcow2 -o preallocation=full source image"], false);
}

#[test]
fn what_was_written_to_is_read() {
    let write = |commands: &str| format!("qemu-io -f qcow2 -c {commands} image");
    let create = "qemu-img create -q -f qcow2 -o cluster_size=4k image 33M";
    let far_first = write("'write -P 7 30M 64k' -c 'write -P 8 1M 1M' -c 'write -z 3M 1M' -c 'write -P 9 20M 512'");
    check(&[create, &far_first], true);
    let zeros = write("'write -P 7 0 1M' -c 'write -z 64k 128k' -c 'write -zu 512k 64k' -c 'discard 256k 64k'");
    check(&[create, &zeros], true);
    let convert = "qemu-img convert -f raw -O qcow2 source image";
    let snapshot = "qemu-img snapshot -c before image";
    let change = write("'write -P 5 300k 1k'");
    // The unchanged data comes before the table that was made for the changed data.
    check(&[convert, snapshot, &change], false);
    check(&[convert, "qemu-img resize -q image 40M"], true);
}

const CLUSTER: usize = 512;
const REFCOUNTS: usize = 512;
const L1: usize = 1024;
const L2: [usize; 2] = [1536, 3584];
const DATA: [usize; 3] = [2048, 2560, 4096];
const DEFLATED: usize = 3072;
const SIZE: usize = 64 * CLUSTER + 700;
const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;

/// A file in clusters of 512 bytes with every kind of cluster, and the raw image in it.
fn small() -> (Vec<u8>, Vec<u8>) {
    let mut file = vec![0; DATA[2] + 188];
    file[..4].copy_from_slice(b"QFI\xFB");
    put32(&mut file, 4, 3);
    put32(&mut file, 20, 9);
    put64(&mut file, 24, SIZE as u64);
    put32(&mut file, 36, 2);
    put64(&mut file, 40, L1 as u64);
    put64(&mut file, 48, REFCOUNTS as u64);
    put32(&mut file, 56, 1);
    put32(&mut file, 96, 4);
    put32(&mut file, 100, 104);
    put64(&mut file, L1, L2[0] as u64 | COPIED);
    put64(&mut file, L1 + 8, L2[1] as u64 | COPIED);
    put64(&mut file, L2[0], DATA[0] as u64 | COPIED);
    put64(&mut file, L2[0] + 8, 1);
    put64(&mut file, L2[0] + 16, DATA[1] as u64);
    put64(&mut file, L2[0] + 24, DEFLATED as u64 | COMPRESSED);
    put64(&mut file, L2[1] + 8, DATA[2] as u64 | COPIED);
    file[DATA[0]..DATA[0] + CLUSTER].fill(b'a');
    file[DATA[1]..DATA[1] + CLUSTER].fill(b'b');
    file[DATA[2]..].fill(b'd');
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&[b'c'; CLUSTER]).unwrap();
    let deflated = encoder.finish().unwrap();
    file[DEFLATED..DEFLATED + deflated.len()].copy_from_slice(&deflated);
    let mut raw = vec![0; SIZE];
    raw[..CLUSTER].fill(b'a');
    raw[2 * CLUSTER..3 * CLUSTER].fill(b'b');
    raw[3 * CLUSTER..4 * CLUSTER].fill(b'c');
    raw[65 * CLUSTER..].fill(b'd');
    (file, raw)
}

fn put32(file: &mut [u8], at: usize, value: u32) {
    file[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn put64(file: &mut [u8], at: usize, value: u64) {
    file[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

/// Changes the small image and expects each way of reading to fail with a message that contains the given part.
fn refused(change: impl Fn(&mut Vec<u8>), by_offset: &str, one_pass: &str) {
    let (mut file, _) = small();
    change(&mut file);
    for (found, part) in [(by_offsets(&file), by_offset), (in_file_order(&file), one_pass)] {
        let error = found.unwrap_err();
        let message = format!("{error}: {:?}", error.source().map(ToString::to_string));
        assert!(message.contains(part), "{message} has no {part:?}");
    }
}

fn refused_field(at: usize, value: u32, part: &str) {
    refused(|file| put32(file, at, value), part, part);
}

#[test]
fn the_small_image_is_read() {
    let (file, raw) = small();
    assert!(by_offsets(&file).unwrap() == raw);
    assert!(in_file_order(&file).unwrap() == raw);
}

#[test]
fn any_range_of_the_raw_image_is_read_alone() {
    let (file, raw) = small();
    let mut read_at = |offset: u64, bytes: &mut [u8]| {
        let start = usize::try_from(offset).unwrap();
        bytes.copy_from_slice(&file[start..start + bytes.len()]);
        Ok(())
    };
    let image = Image::open(file.len() as u64, &mut read_at).unwrap();
    for range in [0..0, 0..1, 0..SIZE, 100..200, 511..513, 1000..1600, 1900..2100, SIZE - 800..SIZE - 1] {
        let bytes = image.bytes(range.start as u64..range.end as u64, &mut read_at).unwrap();
        assert!(bytes == raw[range.clone()], "{range:?}");
    }
    let behind = image.bytes(SIZE as u64 - 2..SIZE as u64 + 2, &mut read_at).unwrap();
    assert_eq!(behind, [b'd', b'd', 0, 0]);
}

#[test]
fn headers_that_cannot_be_relied_on_are_refused() {
    refused_field(0, 0, "does not begin like a qcow2 image");
    refused_field(4, 1, "it has version 1");
    refused_field(12, 400, "it has a backing file; use qemu-img convert");
    refused_field(20, 8, "cannot have 2^8 bytes");
    refused_field(20, 22, "cannot have 2^22 bytes");
    refused_field(20, u32::MAX, "cannot have 2^4294967295 bytes");
    refused_field(32, 1, "it is encrypted");
    refused_field(36, 1, "its L1 table is too short");
    refused_field(40, u32::MAX, "the L1 table");
    refused_field(44, 0, "its L1 table cannot be at byte 0");
    refused_field(44, 1025, "its L1 table cannot be at byte 1025");
    refused_field(52, 513, "its refcount table cannot be at byte 513");
    refused_field(76, 1 << 0, "it was not closed; repair it with qemu-img check");
    refused_field(76, 1 << 1, "it is marked as damaged");
    refused_field(76, 1 << 2, "its data is in another file");
    refused_field(76, 1 << 3, "its compression flag contradicts its compression type 0; check it with qemu-img check");
    refused_field(76, 1 << 4, "it has extended L2 entries");
    refused_field(72, 1 << 31, "an unknown feature");
    refused_field(100, 105, "the header cannot have 105 bytes");
    refused_field(24, 1 << 31, "the raw image cannot have 9223372036854809276 bytes");
    refused_field(24, 1 << 30, "its L1 table is too short");
    refused(|file| put64(file, 24, 0), "cannot have 0 bytes", "cannot have 0 bytes");
    let many = |file: &mut Vec<u8>| {
        put64(file, 24, 1 << 40);
        put32(file, 36, u32::MAX);
    };
    let expect = "are too many; use qemu-img convert -O qcow2 -o cluster_size=2M to make one with larger clusters";
    refused(many, expect, "are too many");
    let overflow = |file: &mut Vec<u8>| put64(file, 48, !0 << 9);
    refused(overflow, "its refcount table cannot be at byte", "its refcount table cannot be at byte");
}

#[test]
fn tables_that_point_where_they_must_not_are_refused() {
    let set = |at: usize, value: u64| move |file: &mut Vec<u8>| put64(file, at, value);
    // An L2 table used twice, the L1 table as an L2 table, an L2 table in the header and one in the refcount table.
    refused(set(L1 + 8, L2[0] as u64), "two tables are at byte 1536", "byte 1536 is needed after byte 2048 has passed");
    refused(set(L1, L1 as u64), "two tables are at byte 1024", "byte 1024 is needed after byte 1040 has passed");
    refused(set(L1, REFCOUNTS as u64), "two tables are at byte 512", "byte 512 is needed after");
    refused(set(40, REFCOUNTS as u64), "two tables are at byte 512", "byte 512 is needed after");
    let expect = "an L2 table of the qcow2 image: the file ends at byte 4284";
    refused(set(L1, 1 << 20), expect, "the file ends at byte 4284");
    let expect = "the L1 table of the qcow2 image: entry 0 has reserved bits set";
    refused(set(L1, 1537), expect, "entry 0 has reserved bits set");
    refused(set(40, 1 << 40), "the L1 table of the qcow2 image: the file ends", "the L1 table of the qcow2 image");
    let in_table = "L2 table 0 of the qcow2 image: entry 0 points into a table";
    for table in [REFCOUNTS, L1, L2[0]] {
        refused(set(L2[0], table as u64), in_table, "is needed after");
    }
    refused(set(L2[0], L2[1] as u64), in_table, "is needed after byte 4096 has passed");
    refused(set(L2[0], COMPRESSED | 1030), in_table, "byte 1030 is needed after");
    refused(set(L2[0], COPIED), "entry 0 points into the header", "entry 0 points into the header");
    refused(set(L2[0], COMPRESSED | 511), "entry 0 points into the header", "entry 0 points into the header");
    refused(set(L2[0], 1 << 40), "a cluster of the qcow2 image: the file ends", "a cluster of the qcow2 image");
    refused(set(L2[0], COMPRESSED | 1 << 40), "a compressed cluster of", "a compressed cluster of");
    refused(set(L2[0], 1 << 60 | 2048), "entry 0 has reserved bits set", "entry 0 has reserved bits set");
    refused(set(L2[0], COPIED | COMPRESSED | 3072), "entry 0 has reserved bits set", "entry 0 has reserved bits set");
    let zero_in_v2 = |file: &mut Vec<u8>| put32(file, 4, 2);
    refused(zero_in_v2, "entry 1 is of a kind that version 2 does not have", "entry 1 is of a kind");
    let misaligned = |file: &mut Vec<u8>| {
        put32(file, 20, 10);
        put64(file, L1, 1536);
    };
    refused(misaligned, "cannot be at byte 512", "cannot be at byte 512");
}

#[test]
fn compressed_clusters_that_are_damaged_are_refused() {
    let garbage = |file: &mut Vec<u8>| file[DEFLATED..DEFLATED + CLUSTER].fill(0xFF);
    let place = "the cluster of the qcow2 image at byte 3072, for byte 1536 of the raw image";
    refused(garbage, place, place);
    let short = |file: &mut Vec<u8>| file[DEFLATED..DEFLATED + 5].copy_from_slice(&[1, 0, 0, 0xFF, 0xFF]);
    refused(short, "it ends after 0 of 512 bytes", "it ends after 0 of 512 bytes");
    // A frame that asks the decoder for a window of 128 MiB.
    let large_window = |file: &mut Vec<u8>| {
        put32(file, 76, 1 << 3);
        put32(file, 100, 112);
        file[104] = 1;
        let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
        encoder.set_parameter(zstd::zstd_safe::CParameter::WindowLog(27)).unwrap();
        encoder.write_all(&[b'c'; CLUSTER]).unwrap();
        let frame = encoder.finish().unwrap();
        file[DEFLATED..DEFLATED + frame.len()].copy_from_slice(&frame);
    };
    refused(large_window, "memory", "memory");
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let (file, _) = small();
    for len in 0..file.len() {
        by_offsets(&file[..len]).unwrap_err();
        in_file_order(&file[..len]).unwrap_err();
    }
}

#[test]
fn a_flipped_bit_leaves_every_byte_given_once_or_is_refused() {
    let (file, raw) = small();
    for bit in 0..file.len() * 8 {
        let mut flipped = file.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        for found in [by_offsets(&flipped), in_file_order(&flipped)].into_iter().flatten() {
            // At most what two entries of the L1 table can map.
            assert!(found.len() <= 2 * raw.len(), "bit {bit}");
        }
    }
}

#[test]
fn what_is_known_and_still_to_come_is_bounded() {
    const LARGE: usize = 2 << 20;
    let mut file = vec![0; 5 * LARGE];
    file[..CLUSTER].copy_from_slice(&small().0[..CLUSTER]);
    put32(&mut file, 20, 21);
    put64(&mut file, 24, 1 << 40);
    put64(&mut file, 40, LARGE as u64);
    put64(&mut file, 48, 2 * LARGE as u64);
    for table in 0..2 {
        put64(&mut file, LARGE + 8 * table, ((3 + table) * LARGE) as u64);
        for entry in 0..LARGE / 8 {
            put64(&mut file, (3 + table) * LARGE + 8 * entry, (5 + table * LARGE / 8 + entry) as u64 * LARGE as u64);
        }
    }
    let image = FileOrder::open(file.as_slice()).unwrap();
    let error = image.run(|_, _| Ok::<_, Error>(())).unwrap_err();
    assert!(matches!(error, Error::TooManyPending { limit: 262_144 }), "{error}");
}
