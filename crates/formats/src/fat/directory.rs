//! Entries of directories (Microsoft, FAT: General Overview of On-Disk Format, sections 6 and 7).

use std::iter;

use super::ENTRY;

/// The earliest date, 1980-01-01.
const DATE: [u8; 2] = [1 << 5 | 1, 0];
const VOLUME_ID: u8 = 0x08;
const DIRECTORY: u8 = 0x10;
const ARCHIVE: u8 = 0x20;
const LONG_NAME: u8 = 0x0F;
/// Characters of a long name per entry.
const LONG_PIECE: usize = 13;
const LAST_PIECE: u8 = 0x40;

/// A file or folder of a directory.
pub(super) struct Child<'a> {
    pub(super) name: &'a str,
    /// First cluster of the content; 0 if there is none.
    pub(super) first: u64,
    /// Size of a file in bytes; none for a folder.
    pub(super) len: Option<u64>,
}

/// Bytes of the entries of a directory with these names.
pub(super) fn len<'a>(names: impl IntoIterator<Item = &'a &'a str>, is_root: bool) -> usize {
    // The entry of the label, or those of the folder itself and of its parent.
    let fixed = if is_root { 1 } else { 2 };
    let of_names = names.into_iter().map(|name| match short_name(name) {
        Some(_) => 1,
        None => 1 + name.len().div_ceil(LONG_PIECE),
    });
    (fixed + of_names.sum::<usize>()) * ENTRY
}

/// The root directory with the volume's label.
pub(super) fn root(label: &str, children: &[Child]) -> Vec<u8> {
    let mut bytes = short_entry(padded(label), VOLUME_ID, 0, 0);
    add(&mut bytes, children);
    bytes
}

/// Makes the content of a folder, given its first cluster and that of its parent, which is 0 for the root.
pub(super) fn folder(first: u64, parent: u64, children: &[Child]) -> Vec<u8> {
    let mut bytes = short_entry(padded("."), DIRECTORY, first, 0);
    bytes.extend(short_entry(padded(".."), DIRECTORY, parent, 0));
    add(&mut bytes, children);
    bytes
}

fn add(bytes: &mut Vec<u8>, children: &[Child]) {
    let mut aliases = 0;
    for child in children {
        let (attributes, len) = match child.len {
            Some(len) => (ARCHIVE, len),
            None => (DIRECTORY, 0),
        };
        let name = short_name(child.name).unwrap_or_else(|| {
            aliases += 1;
            let alias = alias(child.name, aliases);
            bytes.extend(long_entries(child.name, &alias));
            alias
        });
        bytes.extend(short_entry(name, attributes, child.first, len));
    }
}

/// The short form of a name that needs no long one: at most eight capitals or digits, a dot and three more. Else none.
fn short_name(name: &str) -> Option<[u8; 11]> {
    let (base, extension) = name.split_once('.').unwrap_or((name, ""));
    let is_plain = |text: &str| text.bytes().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    let fits = (1..=8).contains(&base.len()) && extension.len() <= 3 && is_plain(base) && is_plain(extension);
    fits.then(|| joined(base, extension))
}

/// A short name for a long one. The number makes it unique in its directory.
fn alias(name: &str, number: usize) -> [u8; 11] {
    let name: String = name.to_ascii_uppercase();
    let (base, extension) = name.rsplit_once('.').unwrap_or((&name, ""));
    let plain = |text: &str| text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect::<String>();
    let (base, mark) = (plain(base), format!("~{number}"));
    joined(&format!("{:.*}{mark}", 8 - mark.len().min(8), base), &plain(extension))
}

fn joined(base: &str, extension: &str) -> [u8; 11] {
    let mut name = [b' '; 11];
    name.iter_mut().zip(base.bytes().take(8)).for_each(|(to, from)| *to = from);
    name[8..].iter_mut().zip(extension.bytes()).for_each(|(to, from)| *to = from);
    name
}

/// A label, padded with blanks.
pub(super) fn padded(label: &str) -> [u8; 11] {
    let mut padded = [b' '; 11];
    padded.iter_mut().zip(label.bytes()).for_each(|(to, from)| *to = from);
    padded
}

/// The pieces of a long name, last piece first.
fn long_entries(name: &str, alias: &[u8; 11]) -> Vec<u8> {
    let sum = alias.iter().fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    let letters: Vec<u16> = name.bytes().map(u16::from).collect();
    let pieces: Vec<&[u16]> = letters.chunks(LONG_PIECE).collect();
    let mut entries = Vec::new();
    for (index, piece) in pieces.iter().enumerate().rev() {
        let mark = if index + 1 == pieces.len() { LAST_PIECE } else { 0 };
        entries.extend(long_entry(piece, mark | (index as u8 + 1), sum));
    }
    entries
}

fn long_entry(piece: &[u16], order: u8, sum: u8) -> Vec<u8> {
    // A zero ends the name; the rest is filled with 0xFFFF.
    let letters = piece.iter().copied().chain([0]).chain(iter::repeat(0xFFFF)).flat_map(u16::to_le_bytes);
    let mut letters = letters.take(2 * LONG_PIECE);
    let mut entry = vec![order];
    entry.extend(letters.by_ref().take(10));
    entry.extend([LONG_NAME, 0, sum]);
    entry.extend(letters.by_ref().take(12));
    entry.extend([0, 0]);
    entry.extend(letters);
    entry
}

fn short_entry(name: [u8; 11], attributes: u8, first_cluster: u64, len: u64) -> Vec<u8> {
    let (cluster, len) = ((first_cluster as u16).to_le_bytes(), (len as u32).to_le_bytes());
    [&name[..], &[attributes], &[0; 4], &DATE, &DATE, &[0; 4], &DATE, &cluster, &len].concat()
}
