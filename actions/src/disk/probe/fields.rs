//! Fields of superblocks. A field beyond the given bytes is `None`.

use crate::random::uuid_text;

/// Whether the bytes are at an offset.
pub(super) fn is_at(bytes: &[u8], offset: usize, magic: &[u8]) -> bool {
    bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic))
}

pub(super) fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

pub(super) fn le16(bytes: &[u8], offset: usize) -> Option<u16> {
    array(bytes, offset).map(u16::from_le_bytes)
}

pub(crate) fn le32(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_le_bytes)
}

pub(crate) fn le64(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_le_bytes)
}

pub(crate) fn be16(bytes: &[u8], offset: usize) -> Option<u16> {
    array(bytes, offset).map(u16::from_be_bytes)
}

pub(crate) fn be32(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_be_bytes)
}

pub(crate) fn be64(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_be_bytes)
}

/// Reads a UUID of 16 bytes in printed order (RFC 9562, 4); none if all are zero.
pub(super) fn uuid(bytes: &[u8], offset: usize) -> Option<String> {
    let bytes: [u8; 16] = array(bytes, offset)?;
    (bytes != [0; 16]).then(|| uuid_text(&bytes))
}

/// Formats the serial number of FAT and exFAT as Windows prints it; none if it is zero.
pub(super) fn serial(bytes: &[u8], offset: usize) -> Option<String> {
    let serial = le32(bytes, offset)?;
    (serial != 0).then(|| format!("{:04X}-{:04X}", serial >> 16, serial & 0xFFFF))
}

/// Reads text up to the first zero byte, without trailing white space; none if it is empty.
pub(super) fn text(bytes: &[u8], offset: usize, len: usize) -> Option<String> {
    let bytes = bytes.get(offset..)?.get(..len)?;
    let bytes = bytes.split(|byte| *byte == 0).next()?;
    trimmed(String::from_utf8_lossy(bytes).into_owned())
}

/// Like [`text`], for UTF-16, little-endian.
pub(super) fn utf16_le(bytes: &[u8]) -> Option<String> {
    utf16(bytes, u16::from_le_bytes)
}

/// Like [`text`], for UTF-16, big-endian.
pub(super) fn utf16_be(bytes: &[u8]) -> Option<String> {
    utf16(bytes, u16::from_be_bytes)
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Option<String> {
    let units = bytes.as_chunks().0.iter().map(|bytes| unit(*bytes)).take_while(|unit| *unit != 0);
    trimmed(char::decode_utf16(units).map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
}

fn trimmed(mut text: String) -> Option<String> {
    // Trims only the white space of C's isspace(3).
    let len = text.trim_end_matches([' ', '\t', '\n', '\x0B', '\x0C', '\r']).len();
    text.truncate(len);
    (!text.is_empty()).then_some(text)
}
