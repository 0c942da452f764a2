//! Lists of what firmware trusts or refuses (UEFI 2.10, section 32.4.1, "Signature Database"): the content of the
//! variables PK, KEK, db and dbx.

use std::mem::size_of;

use thiserror::Error;

/// A GUID as the specification stores it: its first three fields are little-endian (UEFI 2.10, appendix A).
pub type Guid = [u8; 16];

/// EFI_CERT_X509_GUID: the data is a certificate in DER.
pub const X509: Guid = [0xA1, 0x59, 0xC0, 0xA5, 0xE4, 0x94, 0xA7, 0x4A, 0x87, 0xB5, 0xAB, 0x15, 0x5C, 0x2B, 0xF0, 0x72];
/// Bytes of the header of an EFI_SIGNATURE_LIST.
pub const HEADER: usize = size_of::<Guid>() + 3 * size_of::<u32>();
/// Bytes of the owner before each entry.
pub const OWNER: usize = size_of::<Guid>();

/// An entry of a list (EFI_SIGNATURE_DATA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature<'a> {
    /// What the data is, such as [`X509`].
    pub kind: Guid,
    /// Who added the entry, for information. Firmware ignores it.
    pub owner: Guid,
    /// The certificate or digest.
    pub data: &'a [u8],
}

/// The content of a variable is not a list.
#[derive(Debug, Error)]
#[non_exhaustive]
#[error("reading a list of what firmware trusts: at byte {at}, {what}")]
pub struct ListError {
    /// Offset in bytes at which the content is wrong.
    pub at: usize,
    /// What is wrong.
    pub what: &'static str,
}

/// Reads the entries of all lists in a variable.
///
/// # Errors
/// If a length is wrong.
pub fn parse(bytes: &[u8]) -> Result<Vec<Signature<'_>>, ListError> {
    let mut entries = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let wrong = |what| ListError { at: bytes.len() - rest.len(), what };
        let (kind, header) = rest.split_first_chunk().ok_or(wrong("a list is cut off"))?;
        let (Some(length), Some(extra), Some(size)) = (long(header, 0), long(header, 4), long(header, 8)) else {
            return Err(wrong("a list is cut off"));
        };
        let (list, after) = rest.split_at_checked(length).ok_or(wrong("a list is longer than what is left"))?;
        let content = HEADER.checked_add(extra).and_then(|start| list.get(start..));
        let content = content.ok_or(wrong("a list is shorter than its header"))?;
        if size <= OWNER || content.len() % size != 0 {
            return Err(wrong("the entries of a list do not fill it"));
        }
        entries.extend(content.chunks_exact(size).filter_map(|entry| {
            let (owner, data) = entry.split_first_chunk()?;
            Some(Signature { kind: *kind, owner: *owner, data })
        }));
        rest = after;
    }
    Ok(entries)
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list with entries of four bytes of data.
    fn list(kind: u8, entries: &[[u8; 4]]) -> Vec<u8> {
        let mut list = vec![kind; 16];
        for field in [HEADER + entries.len() * 20, 0, 20] {
            list.extend((field as u32).to_le_bytes());
        }
        entries.iter().for_each(|entry| list.extend([&[9; 16][..], entry].concat()));
        list
    }

    #[test]
    fn entries_of_all_lists_are_read_in_order() {
        let bytes = [list(1, &[*b"one ", *b"two "]), list(2, &[*b"last"])].concat();
        let found: Vec<(u8, &[u8])> = parse(&bytes).unwrap().iter().map(|found| (found.kind[0], found.data)).collect();
        assert_eq!(found, [(1, &b"one "[..]), (1, b"two "), (2, b"last")]);
        assert!(parse(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_wrong_length_is_told_with_its_place() {
        let check = |at: usize, value: u32, expect: (usize, &str)| {
            let mut bytes = [list(1, &[*b"one "]), list(2, &[*b"two "])].concat();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let error = parse(&bytes).expect_err(expect.1);
            assert_eq!((error.at, error.what), expect);
        };
        check(16, u32::MAX, (0, "a list is longer than what is left"));
        check(16, 0, (0, "a list is shorter than its header"));
        check(20, u32::MAX, (0, "a list is shorter than its header"));
        check(24, 0, (0, "the entries of a list do not fill it"));
        check(48 + 24, 16, (48, "the entries of a list do not fill it"));
        let whole = list(1, &[*b"one "]);
        for end in 1..whole.len() {
            assert!(parse(&whole[..end]).is_err(), "{end}");
        }
    }
}
