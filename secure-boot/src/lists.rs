//! Lists of what firmware trusts or refuses (UEFI 2.10, section 32.4.1, "Signature Database"): the content of the variables
//! PK, KEK, db and dbx.

use std::mem::size_of;

use thiserror::Error;
use uuid::{Uuid, uuid};

use crate::certificate::Certificate;

/// Types of entries: EFI_CERT_X509_GUID, EFI_CERT_SHA256_GUID.
const X509: Uuid = uuid!("a5c059a1-94e4-4aa7-87b5-ab155c2bf072");
const SHA256: Uuid = uuid!("c1c41626-504c-4092-aca9-41f936934328");
/// Bytes of the header of an EFI_SIGNATURE_LIST, and of the owner before each entry.
const HEADER: usize = size_of::<Uuid>() + 3 * size_of::<u32>();
const OWNER: usize = size_of::<Uuid>();

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Who added it, for whoever reads the list. Firmware ignores it.
    pub owner: Uuid,
    /// What it is about.
    pub content: Content,
}

/// What an entry is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// What leads to this certificate.
    Certificate(Certificate),
    /// The program with this Authenticode digest.
    Sha256([u8; 32]),
    /// Something else, such as an unreadable certificate or another kind of digest.
    Other {
        /// Its type.
        kind: Uuid,
        /// Its bytes.
        bytes: Vec<u8>,
    },
}

/// The content of a variable is not a list.
#[derive(Debug, Error)]
#[non_exhaustive]
#[error("reading a list of what firmware trusts: at byte {at}, {what}")]
pub struct ListError {
    /// Where it went wrong, in bytes from the begin.
    pub at: usize,
    /// How.
    pub what: &'static str,
}

impl Entry {
    /// An entry for a certificate.
    pub fn certificate(owner: Uuid, certificate: &Certificate) -> Self {
        Self { owner, content: Content::Certificate(certificate.clone()) }
    }

    /// An entry for the program with this Authenticode digest.
    pub fn sha256(owner: Uuid, digest: [u8; 32]) -> Self {
        Self { owner, content: Content::Sha256(digest) }
    }

    fn kind(&self) -> Uuid {
        match &self.content {
            Content::Certificate(_) => X509,
            Content::Sha256(_) => SHA256,
            Content::Other { kind, .. } => *kind,
        }
    }

    fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Certificate(certificate) => certificate.der(),
            Content::Sha256(digest) => digest,
            Content::Other { bytes, .. } => bytes,
        }
    }
}

/// The lists with these entries, in this order. Each certificate has a list of its own; digests that follow each other share
/// one, because they are as long as each other.
pub fn build(entries: &[Entry]) -> Vec<u8> {
    let share = |a: &Entry, b: &Entry| a.kind() != X509 && a.kind() == b.kind() && a.bytes().len() == b.bytes().len();
    let mut lists = Vec::new();
    for group in entries.chunk_by(share) {
        let Some(first) = group.first() else { continue };
        let size = OWNER + first.bytes().len();
        lists.extend(first.kind().to_bytes_le());
        for field in [HEADER + group.len() * size, 0, size] {
            lists.extend((field as u32).to_le_bytes());
        }
        for entry in group {
            lists.extend(entry.owner.to_bytes_le());
            lists.extend(entry.bytes());
        }
    }
    lists
}

/// The entries of all lists in a variable.
///
/// # Errors
/// If a length in it is wrong.
pub fn parse(bytes: &[u8]) -> Result<Vec<Entry>, ListError> {
    let mut entries = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let wrong = |what| ListError { at: bytes.len() - rest.len(), what };
        let (kind, header) = uuid(rest).ok_or(wrong("a list is cut off"))?;
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
            let (owner, bytes) = uuid(entry)?;
            Some(Entry { owner, content: content_of(kind, bytes) })
        }));
        rest = after;
    }
    Ok(entries)
}

fn content_of(kind: Uuid, bytes: &[u8]) -> Content {
    let other = || Content::Other { kind, bytes: bytes.to_vec() };
    match kind {
        X509 => Certificate::from_der(bytes).map_or_else(|_| other(), Content::Certificate),
        SHA256 => bytes.try_into().map_or_else(|_| other(), Content::Sha256),
        _ => other(),
    }
}

/// The GUID at the begin, and what follows it. Its first three fields are little-endian (UEFI 2.10, appendix A).
fn uuid(bytes: &[u8]) -> Option<(Uuid, &[u8])> {
    let (guid, rest) = bytes.split_first_chunk()?;
    Some((Uuid::from_bytes_le(*guid), rest))
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}
