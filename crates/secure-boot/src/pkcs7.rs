//! Signed messages (RFC 2315, PKCS #7) as firmware reads them: RSA with SHA-256, one signer and its certificate.

use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use x509_parser::asn1_rs::{Any, FromDer, Oid};
use x509_parser::oid_registry::{
    OID_NIST_HASH_SHA256, OID_PKCS1_RSAENCRYPTION, OID_PKCS1_SHA256WITHRSA, OID_PKCS7_ID_DATA,
    OID_PKCS7_ID_SIGNED_DATA, OID_PKCS9_CONTENT_TYPE, OID_PKCS9_ID_MESSAGE_DIGEST,
};
use yasna::{DERWriter, DERWriterSeq, Tag};

use crate::certificate::{Certificate, sha256};
use crate::key_error::KeyError;
use crate::keys::SigningKey;

/// Identifier octets of DER (X.690, section 8.1.2): universal types, and the context's own 0 and 1.
pub const INTEGER: u8 = 0x02;
pub const OCTET_STRING: u8 = 0x04;
pub const OBJECT_IDENTIFIER: u8 = 0x06;
pub const SEQUENCE: u8 = 0x30;
pub const SET: u8 = 0x31;
pub const CONTEXT_0: u8 = 0xA0;
/// Maximum number of certificates in a message. Microsoft's have three.
const MAX_CERTIFICATES: usize = 32;

/// The signed content.
pub enum Message<'a> {
    /// A DER value of this type inside the message. The signature covers attributes with its digest.
    Inside(&'a Oid<'static>, &'a [u8]),
    /// Bytes outside the message, which the signature covers directly.
    Elsewhere(&'a [u8]),
}

/// Signs a message. Returns a SignedData (section 9.1).
pub fn signed_data(key: &SigningKey, message: &Message<'_>) -> Result<Vec<u8>, KeyError> {
    let attributes = match message {
        Message::Inside(kind, value) => Some(attributes(kind, value)),
        Message::Elsewhere(_) => None,
    };
    let signature = key.sign(match (message, &attributes) {
        (Message::Elsewhere(bytes), _) => bytes,
        (Message::Inside(..), set) => set.as_deref().unwrap_or_default(),
    })?;
    Ok(sequence(|writer| {
        writer.next().write_u8(1);
        writer.next().write_set(|writer| algorithm(writer.next(), &OID_NIST_HASH_SHA256));
        writer.next().write_sequence(|writer| match message {
            Message::Inside(kind, value) => {
                oid(writer.next(), kind);
                writer.next().write_tagged(Tag::context(0), |writer| writer.write_der(value));
            }
            Message::Elsewhere(_) => oid(writer.next(), &OID_PKCS7_ID_DATA),
        });
        writer.next().write_tagged_implicit(Tag::context(0), |writer| {
            writer.write_set(|writer| writer.next().write_der(key.certificate().der()));
        });
        writer.next().write_set(|writer| signer(writer.next(), key, attributes.as_deref(), &signature));
    }))
}

/// Wraps a SignedData into a ContentInfo (section 7).
pub fn content_info(signed_data: &[u8]) -> Vec<u8> {
    sequence(|writer| {
        oid(writer.next(), &OID_PKCS7_ID_SIGNED_DATA);
        writer.next().write_tagged(Tag::context(0), |writer| writer.write_der(signed_data));
    })
}

/// Encodes a SEQUENCE of these elements.
pub fn sequence(elements: impl FnOnce(&mut DERWriterSeq<'_>)) -> Vec<u8> {
    yasna::construct_der(|writer| writer.write_sequence(elements))
}

/// Writes an AlgorithmIdentifier whose parameters are NULL.
pub fn algorithm(writer: DERWriter<'_>, name: &Oid<'_>) {
    writer.write_sequence(|writer| {
        oid(writer.next(), name);
        writer.next().write_null();
    });
}

pub fn oid(writer: DERWriter<'_>, oid: &Oid<'_>) {
    let content = oid.as_bytes();
    writer.write_tagged_implicit(yasna::tags::TAG_OID, |writer| writer.write_bytes(content));
}

/// Encodes the signed attributes of a value as a SET: its type and its digest (section 9.2).
fn attributes(kind: &Oid<'_>, value: &[u8]) -> Vec<u8> {
    let digest = sha256(content(value).unwrap_or_default());
    yasna::construct_der(|writer| {
        writer.write_set_of(|writer| {
            writer.next().write_sequence(|writer| {
                oid(writer.next(), &OID_PKCS9_CONTENT_TYPE);
                writer.next().write_set(|writer| oid(writer.next(), kind));
            });
            writer.next().write_sequence(|writer| {
                oid(writer.next(), &OID_PKCS9_ID_MESSAGE_DIGEST);
                writer.next().write_set(|writer| writer.next().write_bytes(&digest));
            });
        });
    })
}

/// Writes a SignerInfo (section 9.2).
fn signer(writer: DERWriter<'_>, key: &SigningKey, attributes: Option<&[u8]>, signature: &[u8]) {
    writer.write_sequence(|writer| {
        writer.next().write_u8(1);
        writer.next().write_sequence(|writer| {
            if let Some(certificate) = key.certificate().parsed() {
                writer.next().write_der(certificate.issuer().as_raw());
                let serial = certificate.raw_serial();
                writer.next().write_tagged_implicit(yasna::tags::TAG_INTEGER, |writer| writer.write_bytes(serial));
            }
        });
        algorithm(writer.next(), &OID_NIST_HASH_SHA256);
        if let Some((_, rest)) = attributes.and_then(<[u8]>::split_first) {
            writer.next().write_der(&[&[CONTEXT_0], rest].concat());
        }
        algorithm(writer.next(), &OID_PKCS1_RSAENCRYPTION);
        writer.next().write_bytes(signature);
    });
}

/// A parsed signed message.
pub struct Signed<'a> {
    /// The content of the value inside, without its identifier and length.
    pub content: &'a [u8],
    /// The certificate of the signer.
    pub signer: Certificate,
    /// The other certificates of the message. Those that cannot be read are left out.
    pub others: Vec<Certificate>,
    /// Whether the signer signed the value inside.
    pub is_authentic: bool,
}

impl<'a> Signed<'a> {
    /// Reads a ContentInfo with a SignedData that contains a value of this type. Bytes after it are ignored. An error
    /// is the reason.
    pub fn read(bytes: &'a [u8], kind: &Oid<'_>) -> Result<Self, &'static str> {
        let mut signed_data = signed_data_of(bytes).ok_or("it is not signed data of PKCS #7")?;
        let incomplete = "its signed data is damaged or in an unknown form";
        let (content, mut rest) = content_of(&mut signed_data, kind).ok_or("it does not sign an EFI program")?;
        let mut certificates = Vec::new();
        if let Some(mut list) = rest.take(CONTEXT_0).map(Der) {
            while let Some(certificate) = list.whole(SEQUENCE) {
                if certificates.len() == MAX_CERTIFICATES {
                    return Err("it has more than 32 certificates");
                }
                certificates.extend(Certificate::from_der(certificate));
            }
        }
        // Skips certificate revocation lists, which firmware ignores.
        rest.take(CONTEXT_0 | 1);
        let mut signers = rest.take(SET).map(Der).ok_or(incomplete)?;
        let info = SignerInfo::read(signers.take(SEQUENCE).ok_or(incomplete)?).ok_or(incomplete)?;
        if !signers.0.is_empty() {
            return Err("it has more than one signer");
        }
        let place = certificates.iter().position(|certificate| info.is_of(certificate));
        let signer = certificates.swap_remove(place.ok_or("the certificate of its signer is missing")?);
        let is_authentic = info.verify(&signer, kind, content);
        Ok(Self { content, signer, others: certificates, is_authentic })
    }
}

fn signed_data_of(bytes: &[u8]) -> Option<Der<'_>> {
    let mut info = Der(Der(bytes).take(SEQUENCE)?);
    info.expect_oid(&OID_PKCS7_ID_SIGNED_DATA)?;
    let mut signed_data = Der(Der(info.take(CONTEXT_0)?).take(SEQUENCE)?);
    signed_data.take(INTEGER)?;
    signed_data.take(SET)?;
    Some(signed_data)
}

fn content_of<'a>(signed_data: &mut Der<'a>, kind: &Oid<'_>) -> Option<(&'a [u8], Der<'a>)> {
    let mut inside = Der(signed_data.take(SEQUENCE)?);
    inside.expect_oid(kind)?;
    let content = Der(inside.take(CONTEXT_0)?).take(SEQUENCE)?;
    Some((content, Der(signed_data.0)))
}

struct SignerInfo<'a> {
    issuer: &'a [u8],
    serial: &'a [u8],
    /// The signed attributes as a whole element. Its identifier differs from that of the SET that is signed.
    attributes: Option<&'a [u8]>,
    is_rsa_with_sha256: bool,
    signature: &'a [u8],
}

impl<'a> SignerInfo<'a> {
    fn read(content: &'a [u8]) -> Option<Self> {
        let mut info = Der(content);
        info.take(INTEGER)?;
        let mut name = Der(info.take(SEQUENCE)?);
        let (issuer, serial) = (name.whole(SEQUENCE)?, name.take(INTEGER)?);
        let is_sha256 = Der(info.take(SEQUENCE)?).expect_oid(&OID_NIST_HASH_SHA256).is_some();
        let attributes = info.whole(CONTEXT_0);
        let algorithm = Der(info.take(SEQUENCE)?).take(OBJECT_IDENTIFIER)?;
        let is_rsa = [OID_PKCS1_RSAENCRYPTION, OID_PKCS1_SHA256WITHRSA].iter().any(|it| it.as_bytes() == algorithm);
        let signature = info.take(OCTET_STRING)?;
        Some(Self { issuer, serial, attributes, is_rsa_with_sha256: is_sha256 && is_rsa, signature })
    }

    fn is_of(&self, certificate: &Certificate) -> bool {
        let is_its = |it: x509_parser::certificate::X509Certificate<'_>| {
            it.issuer().as_raw() == self.issuer && it.raw_serial() == self.serial
        };
        certificate.parsed().is_some_and(is_its)
    }

    fn verify(&self, signer: &Certificate, kind: &Oid<'_>, content: &[u8]) -> bool {
        let Some(signer) = signer.parsed() else { return false };
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &signer.public_key().subject_public_key.data);
        let is_signed = |message: &[u8]| self.is_rsa_with_sha256 && key.verify(message, self.signature).is_ok();
        match self.attributes {
            None => is_signed(content),
            Some(whole) => {
                // The signature covers the attributes as a SET.
                let set = [&[SET], whole.get(1..).unwrap_or_default()].concat();
                has_attributes(whole, kind, &sha256(content)) && is_signed(&set)
            }
        }
    }
}

/// Whether the attributes contain exactly this type and this digest.
fn has_attributes(whole: &[u8], kind: &Oid<'_>, digest: &[u8]) -> bool {
    let mut attributes = Der(content(whole).unwrap_or_default());
    let (mut kinds, mut digests) = (Vec::new(), Vec::new());
    while let Some(mut attribute) = attributes.take(SEQUENCE).map(Der) {
        let name = attribute.take(OBJECT_IDENTIFIER).unwrap_or_default();
        let mut values = Der(attribute.take(SET).unwrap_or_default());
        if name == OID_PKCS9_CONTENT_TYPE.as_bytes() {
            kinds.push(values.take(OBJECT_IDENTIFIER));
        } else if name == OID_PKCS9_ID_MESSAGE_DIGEST.as_bytes() {
            digests.push(values.take(OCTET_STRING));
        }
    }
    kinds == [Some(kind.as_bytes())] && digests == [Some(digest)]
}

/// The content of an element, without its identifier and length.
fn content(element: &[u8]) -> Option<&[u8]> {
    Any::from_der(element).ok().map(|(_, any)| any.data)
}

/// Elements in DER that are not read yet.
#[derive(Clone, Copy)]
pub struct Der<'a>(pub &'a [u8]);

impl<'a> Der<'a> {
    /// The content of the next element, if it has this identifier.
    pub fn take(&mut self, identifier: u8) -> Option<&'a [u8]> {
        self.whole(identifier).and_then(content)
    }

    /// The next element with its identifier and length, if it has this identifier.
    pub fn whole(&mut self, identifier: u8) -> Option<&'a [u8]> {
        self.0.first().filter(|first| **first == identifier)?;
        let (rest, _) = Any::from_der(self.0).ok()?;
        let (whole, rest) = self.0.split_at_checked(self.0.len().checked_sub(rest.len())?)?;
        self.0 = rest;
        Some(whole)
    }

    /// Reads an object identifier that must be this one.
    pub fn expect_oid(&mut self, oid: &Oid<'_>) -> Option<()> {
        self.take(OBJECT_IDENTIFIER).filter(|content| *content == oid.as_bytes()).map(|_| ())
    }
}
