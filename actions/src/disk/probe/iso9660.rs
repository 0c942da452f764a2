//! ISO 9660 with Joliet (ECMA-119, 8; Microsoft, Joliet Specification), and its predecessor High Sierra.

use super::FileSystem;
use super::area::Area;
use super::fields::{array, is_at, text, utf16_be};

const DESCRIPTORS: u64 = 0x8000;
const SECTOR: u64 = 2048;
const MAX_DESCRIPTORS: u64 = 16;
/// Length in bytes of the descriptor up to and including the dates used.
const DESCRIPTOR_LEN: u64 = 847;

/// Detects the file system of an optical disc.
pub(super) fn iso9660(area: &Area) -> Option<FileSystem> {
    if area.has(DESCRIPTORS + 1, b"CD001") {
        return iso(area);
    }
    let is_high_sierra = area.has(DESCRIPTORS + 9, b"CDROM");
    let label = || text(&area.bytes(DESCRIPTORS, 80)?, 48, 32);
    is_high_sierra.then(|| FileSystem { kind: "iso9660", uuid: None, label: label() })
}

fn iso(area: &Area) -> Option<FileSystem> {
    const PRIMARY: u8 = 1;
    const SUPPLEMENTARY: u8 = 2;
    const END: u8 = 0xFF;
    let offsets = (0..MAX_DESCRIPTORS).map(|index| DESCRIPTORS + index * SECTOR);
    let read = offsets.map_while(|offset| area.bytes(offset, DESCRIPTOR_LEN));
    let descriptors: Vec<_> = read.take_while(|descriptor| !is_at(descriptor, 0, &[END])).collect();
    let primary = descriptors.iter().find(|descriptor| is_at(descriptor, 0, &[PRIMARY]))?;
    let is_joliet = |descriptor: &&Vec<u8>| {
        is_at(descriptor, 0, &[SUPPLEMENTARY])
            && [b"%/@", b"%/C", b"%/E"].iter().any(|escape| is_at(descriptor, 88, *escape))
    };
    let label = match descriptors.iter().find(is_joliet) {
        Some(joliet) => label_of_both(joliet.get(40..72)?, primary.get(40..72)?),
        None => text(primary, 40, 32),
    };
    // The UUID comes from the date of the last change, else of creation.
    let uuid = [830, 813].into_iter().find_map(|offset| date(primary, offset)).flatten();
    Some(FileSystem { kind: "iso9660", uuid, label })
}

/// Returns the digits of a date (ECMA-119, 8.4.26.1), from which blkid makes a UUID; none if the date is not set.
fn date(descriptor: &[u8], offset: usize) -> Option<Option<String>> {
    const NOT_SET: [u8; 17] = *b"0000000000000000\0";
    let date: [u8; 17] = array(descriptor, offset)?;
    if date == NOT_SET {
        return None;
    }
    let parts = [&date[..4], &date[4..6], &date[6..8], &date[8..10], &date[10..12], &date[12..14], &date[14..16]];
    let uuid: Vec<u8> = parts.join(&b'-');
    Some((date[..16] != [0; 16]).then(|| text(&uuid, 0, uuid.len())).flatten())
}

/// Chooses or combines both labels. Joliet has the label in Unicode, but only half as long. The primary descriptor has
/// all of it in ASCII, with `_` for other characters. If one is the beginning of the other, they are combined.
fn label_of_both(joliet: &[u8], primary: &[u8]) -> Option<String> {
    match merged(joliet, primary) {
        Some(label) => utf16_be(&label),
        None => utf16_be(joliet),
    }
}

fn merged(joliet: &[u8], primary: &[u8]) -> Option<Vec<u8>> {
    const UNKNOWN: u8 = b'_';
    let mut label = Vec::new();
    let mut ascii = primary.iter();
    let mut units = joliet.chunks_exact(2).peekable();
    while let Some(mut unit) = units.next() {
        let high = unit.first().is_some_and(|byte| (0xD8..=0xDB).contains(byte));
        let is_low = |next: &&[u8]| next.first().is_some_and(|byte| (0xDC..=0xDF).contains(byte));
        if high && let Some(next) = units.next_if(is_low) {
            label.extend_from_slice(unit);
            unit = next;
        }
        let Some(byte) = ascii.next() else { break };
        match *unit {
            _ if *byte == UNKNOWN => label.extend_from_slice(unit),
            [0, UNKNOWN] => label.extend_from_slice(&[0, *byte]),
            [0, low] if low.eq_ignore_ascii_case(byte) => {
                label.extend_from_slice(&[0, if byte.is_ascii_uppercase() { low } else { *byte }]);
            }
            _ => return None,
        }
    }
    label.extend(ascii.flat_map(|byte| [0, *byte]));
    Some(label)
}
