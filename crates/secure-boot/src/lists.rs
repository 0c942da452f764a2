//! Signature lists (UEFI 2.10, section 32.4.1, "Signature Database"): the content of the variables PK, KEK, db and dbx.

use slipway_formats::efi::signature_list::{self, HEADER, OWNER, Signature};
use uuid::{Uuid, uuid};

use crate::certificate::Certificate;

pub use slipway_formats::efi::signature_list::ListError;

/// Types of entries: EFI_CERT_X509_GUID, EFI_CERT_SHA256_GUID.
const X509: Uuid = Uuid::from_bytes_le(signature_list::X509);
const SHA256: Uuid = uuid!("c1c41626-504c-4092-aca9-41f936934328");

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Who added the entry, for information. Firmware ignores it.
    pub owner: Uuid,
    /// Certificate or digest.
    pub content: Content,
}

/// Certificate or digest of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A certificate, which allows or forbids all programs that it verifies.
    Certificate(Certificate),
    /// Authenticode digest of a program.
    Sha256([u8; 32]),
    /// Another type, or an unreadable certificate.
    Other {
        /// Type of the entry.
        kind: Uuid,
        /// Content of the entry.
        bytes: Vec<u8>,
    },
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

    /// Encodes the entry for a list (EFI_SIGNATURE_DATA): its owner, then its bytes.
    pub(crate) fn signature_data(&self) -> Vec<u8> {
        [&self.owner.to_bytes_le()[..], self.bytes()].concat()
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

/// Encodes entries as lists, in this order. Each certificate has its own list. Consecutive digests of the same length
/// share one.
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

/// Reads the entries of all lists in a variable.
///
/// # Errors
/// If a length is wrong.
pub fn parse(bytes: &[u8]) -> Result<Vec<Entry>, ListError> {
    let entry = |found: &Signature<'_>| Entry {
        owner: Uuid::from_bytes_le(found.owner),
        content: content_of(Uuid::from_bytes_le(found.kind), found.data),
    };
    Ok(signature_list::parse(bytes)?.iter().map(entry).collect())
}

fn content_of(kind: Uuid, bytes: &[u8]) -> Content {
    let other = || Content::Other { kind, bytes: bytes.to_vec() };
    match kind {
        X509 => Certificate::from_der(bytes).map_or_else(|_| other(), Content::Certificate),
        SHA256 => bytes.try_into().map_or_else(|_| other(), Content::Sha256),
        _ => other(),
    }
}
