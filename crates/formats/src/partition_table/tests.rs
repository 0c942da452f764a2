//! What is written here by hand was compared with sgdisk, sfdisk and Linux; `actions/tests/partition_table.rs` asks
//! these programs.

mod gpt;
mod mbr;

use super::*;
use crate::crc32::crc32;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;

/// Writes a record of an MBR, such as the protective one.
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
        check_image(name, &image, expect);
    }
}

/// Changes bytes of a GPT, corrects the checksums, and checks the judgement.
#[track_caller]
fn check_sealed(changes: &[(&str, usize, &[u8], &str)]) {
    for (name, at, bytes, expect) in changes {
        let mut image = gpt(512);
        image[*at..*at + bytes.len()].copy_from_slice(bytes);
        if *at < 1024 {
            seal_header(&mut image, 512)
        } else {
            seal(&mut image, 512)
        }
        check_image(name, &image, expect);
    }
}

#[track_caller]
fn check_image(name: &str, image: &[u8], expect: &str) {
    let found = match whole(image) {
        Ok(table) => table.remarks.join("; "),
        Err(fault) => fault.to_string(),
    };
    assert!(found.starts_with(expect) && expect.is_empty() == found.is_empty(), "{name}: {found}");
}

/// A file system on the whole disk, which left the backup of a former GPT.
fn ext4_over_the_table(image: &mut [u8]) {
    image[..32768].fill(0);
    image[1080..1082].copy_from_slice(&[0x53, 0xEF]);
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
    let expect = "; if its backup at the end of the image is whole, repair the raw image with `sgdisk \
                  --move-second-header IMAGE`, which takes the table from there; if not, download or create the image \
                  again";
    assert!(error.ends_with(expect), "{error}");
}
