//! Signatures of EFI programs (Microsoft, "Windows Authenticode Portable Executable Signature Format"; UEFI 2.10,
//! section 32.2.4).
//!
//! The same program and the same key give the same bytes, because no time is signed. Firmware would not look at a time.

use std::borrow::Cow;

use thiserror::Error;
use x509_parser::asn1_rs::{Oid, oid};
use x509_parser::oid_registry::OID_NIST_HASH_SHA256;
use yasna::Tag;

use crate::certificate::Certificate;
use crate::keys::SigningKey;
use crate::pe::{ALIGNMENT, ImageError, Layout, checksum};
use crate::pkcs7::{
    Der, Message, OCTET_STRING, SEQUENCE, Signed, algorithm, content_info, oid as write_oid, sequence, signed_data,
};

/// SPC_INDIRECT_DATA_OBJID and SPC_PE_IMAGE_DATAOBJ.
const INDIRECT_DATA: Oid<'static> = oid!(1.3.6.1.4.1.311.2.1.4);
const PE_IMAGE_DATA: Oid<'static> = oid!(1.3.6.1.4.1.311.2.1.15);
/// The constant that signers write instead of a file name.
const NO_FILE: &str = "<<<Obsolete>>>";
/// The header of WIN_CERTIFICATE (PE Format, "The Attribute Certificate Table"): its size in bytes, the revision 2.0,
/// and the type of PKCS #7.
const HEADER: usize = 8;
const REVISION: u16 = 0x0200;
const PKCS_SIGNED_DATA: u16 = 0x0002;
/// Maximum number of certificates between a signer and a trusted certificate.
const MAX_INTERMEDIATES: usize = 8;

/// A signature of a program.
#[derive(Debug)]
#[non_exhaustive]
pub struct Signature {
    /// Certificate of the signer.
    pub signer: Certificate,
    /// The other certificates in the signature.
    pub others: Vec<Certificate>,
    /// Why the signature is not valid, in words that follow "the signature". None if the signer signed this program.
    pub fault: Option<&'static str>,
}

/// Why no signature of a program is trusted.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum VerifyError {
    /// The program cannot be read.
    #[error("verifying an EFI program")]
    Image { source: ImageError },
    /// The program is not signed.
    #[error("verifying an EFI program: it is not signed")]
    Unsigned,
    /// The signatures of the program are not valid, or not trusted.
    #[error("verifying an EFI program: {}", reasons.join("; "))]
    Untrusted { reasons: Vec<String> },
}

/// The Authenticode digest of a program, signed or not, with SHA-256. Lists of digests contain it, and firmware
/// measures it into register 4 of a TPM.
///
/// [`sign`] pads a program to a multiple of 8 bytes, which changes its digest unless its length was one.
///
/// # Errors
/// If it is not PE, or truncated.
pub fn digest(image: &[u8]) -> Result<[u8; 32], ImageError> {
    Layout::read(image).map(|layout| layout.digest(image))
}

/// Signs a program that has no signature.
///
/// # Errors
/// If it is not PE, truncated or already signed, or a signature would not cover all of it.
pub fn sign(mut image: Vec<u8>, key: &SigningKey) -> Result<Vec<u8>, ImageError> {
    if !Layout::read(&image)?.certificates.is_empty() {
        return Err(ImageError::Signed);
    }
    image.resize(image.len().next_multiple_of(ALIGNMENT), 0);
    let layout = Layout::read(&image)?;
    if !layout.is_without_gaps() {
        return Err(ImageError::Gaps);
    }
    let content = indirect_data(&layout.digest(&image));
    let signed = signed_data(key, &Message::Inside(&INDIRECT_DATA, &content));
    let signed = content_info(&signed.map_err(|source| ImageError::Key { source })?);
    let length = HEADER + signed.len();
    let size = length.next_multiple_of(ALIGNMENT);
    let start = u32::try_from(image.len()).ok().filter(|start| start.checked_add(size as u32).is_some());
    let start = start.ok_or(ImageError::TooLarge)?;
    let end = image.len() + size;
    image.reserve_exact(size);
    image.extend((length as u32).to_le_bytes());
    image.extend(REVISION.to_le_bytes());
    image.extend(PKCS_SIGNED_DATA.to_le_bytes());
    image.extend(signed);
    image.resize(end, 0);
    put(&mut image, layout.directory, start);
    put(&mut image, layout.directory + 4, size as u32);
    let sum = checksum(&image, layout.checksum);
    put(&mut image, layout.checksum, sum);
    Ok(image)
}

fn put(image: &mut [u8], at: usize, value: u32) {
    if let Some(field) = image.get_mut(at..at + 4) {
        field.copy_from_slice(&value.to_le_bytes());
    }
}

/// Encodes a SpcIndirectDataContent: the digest of an image.
fn indirect_data(digest: &[u8]) -> Vec<u8> {
    sequence(|writer| {
        writer.next().write_sequence(|writer| {
            write_oid(writer.next(), &PE_IMAGE_DATA);
            writer.next().write_sequence(|writer| {
                writer.next().write_bitvec_bytes(&[], 0);
                // SpcLink, its choice of a file, and SpcString, its choice of Unicode.
                writer.next().write_tagged(Tag::context(0), |writer| {
                    writer.write_tagged(Tag::context(2), |writer| {
                        writer.write_tagged_implicit(Tag::context(0), |writer| writer.write_bmp_string(NO_FILE));
                    });
                });
            });
        });
        writer.next().write_sequence(|writer| {
            algorithm(writer.next(), &OID_NIST_HASH_SHA256);
            writer.next().write_bytes(digest);
        });
    })
}

/// All signatures of a program, in order, each with its fault. Empty if it is not signed.
///
/// # Errors
/// If it is not PE, truncated, or a signature cannot be read.
pub fn signatures(image: &[u8]) -> Result<Vec<Signature>, ImageError> {
    let layout = Layout::read(image)?;
    let mut table = image.get(layout.certificates.clone()).unwrap_or_default();
    let mut signatures = Vec::new();
    if table.is_empty() {
        return Ok(signatures);
    }
    let digest = layout.digest(image);
    while !table.is_empty() {
        let unreadable = |reason| ImageError::Signature { number: signatures.len() + 1, reason };
        let (content, rest) = entry(table).map_err(unreadable)?;
        table = rest;
        let signed = Signed::read(content, &INDIRECT_DATA).map_err(unreadable)?;
        let fault = match signed_digest(signed.content) {
            _ if !signed.is_authentic => Some("was not made with its certificate's key, or is not RSA with SHA-256"),
            None => Some("has no SHA-256 digest of a program"),
            Some(signed) if signed != digest => Some("does not match the program, which was changed after signing"),
            Some(_) => None,
        };
        signatures.push(Signature { signer: signed.signer, others: signed.others, fault });
    }
    Ok(signatures)
}

/// The content of the first entry in a certificate table, and what follows it.
fn entry(table: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    let cut_off = "its length is wrong";
    let (header, _) = table.split_first_chunk::<HEADER>().ok_or(cut_off)?;
    let [a, b, c, d, revision @ .., e, f] = *header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let content = table.get(HEADER..length).ok_or(cut_off)?;
    if (u16::from_le_bytes(revision), u16::from_le_bytes([e, f])) != (REVISION, PKCS_SIGNED_DATA) {
        return Err("it is not of the type PKCS #7");
    }
    Ok((content, table.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default()))
}

/// The SHA-256 digest in the content of a SpcIndirectDataContent.
fn signed_digest(content: &[u8]) -> Option<&[u8]> {
    let mut content = Der(content);
    Der(content.take(SEQUENCE)?).expect_oid(&PE_IMAGE_DATA)?;
    let mut info = Der(content.take(SEQUENCE)?);
    Der(info.take(SEQUENCE)?).expect_oid(&OID_NIST_HASH_SHA256)?;
    info.take(OCTET_STRING)
}

/// Returns the trusted certificate that verifies a program: that of its signer, or of a CA above the signer. As for
/// firmware, one trusted signature is enough.
///
/// # Errors
/// If no signature is trusted.
pub fn verify<'a>(image: &[u8], trusted: &'a [Certificate]) -> Result<&'a Certificate, VerifyError> {
    let signatures = signatures(image).map_err(|source| VerifyError::Image { source })?;
    let mut reasons = Vec::new();
    for signature in &signatures {
        let reason = match (signature.fault, signature.leads_to(trusted)) {
            (None, Some(certificate)) => return Ok(certificate),
            (None, None) => Cow::Borrowed("leads to no trusted certificate"),
            (Some(fault), _) => Cow::Borrowed(fault),
        };
        reasons.push(format!("the signature of {} {reason}", signature.signer.subject()));
    }
    Err(if reasons.is_empty() { VerifyError::Unsigned } else { VerifyError::Untrusted { reasons } })
}

impl Signature {
    fn leads_to<'a>(&self, trusted: &'a [Certificate]) -> Option<&'a Certificate> {
        let mut certificate = &self.signer;
        for _ in 0..=MAX_INTERMEDIATES {
            let is_it = |trusted: &&Certificate| *trusted == certificate || certificate.is_issued_by(trusted);
            if let Some(end) = trusted.iter().find(is_it) {
                return Some(end);
            }
            certificate = self.others.iter().find(|other| certificate.is_issued_by(other))?;
        }
        None
    }
}
