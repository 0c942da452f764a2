//! Bounded reads of small kernel files.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// One sentence for each value that could not be read, with the reason.
pub(super) type Notes = Vec<String>;

/// Longest attribute in bytes. sysfs returns at most a page, and the values used here are much shorter.
const ATTRIBUTE_BYTES: u64 = 4096;

/// Returns the text of a sysfs attribute, without white space around it and without control characters, because
/// firmware strings are shown on consoles. `None`, without a note, if the file is absent or has no value now.
pub(super) fn attribute(path: &Path, notes: &mut Notes) -> Option<String> {
    match read(path) {
        Ok(bytes) => {
            let text: String = String::from_utf8_lossy(&bytes).chars().filter(|c| !c.is_control()).collect();
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        }
        // sysfs returns EINVAL for values that do not exist now, such as the speed of a link that is down.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => None,
        Err(error) => {
            note(path, &error, notes);
            None
        }
    }
}

/// Returns all bytes of a file that should exist.
pub(super) fn bytes(path: &Path, notes: &mut Notes) -> Option<Vec<u8>> {
    read(path).map_err(|error| note(path, &error, notes)).ok()
}

/// Returns the first `limit` bytes of a file that should exist.
pub(super) fn head(path: &Path, limit: u64, notes: &mut Notes) -> Option<String> {
    let bytes = start(path, limit).map_err(|error| note(path, &error, notes)).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Notes why the file cannot be used.
pub(super) fn note(path: &Path, why: &dyn std::fmt::Display, notes: &mut Notes) {
    notes.push(format!("reading {}: {why}", path.display()));
}

/// Returns the whole content of a file of at most [`ATTRIBUTE_BYTES`]. A longer file is an error, because half a serial
/// number would be wrong.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = start(path, ATTRIBUTE_BYTES + 1)?;
    if bytes.len() as u64 > ATTRIBUTE_BYTES {
        return Err(io::Error::other(format!("longer than {ATTRIBUTE_BYTES} bytes")));
    }
    Ok(bytes)
}

fn start(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}
