//! X.509 certificates (RFC 5280) as Secure Boot uses them: for their key and name. Firmware has no trusted clock, so it
//! ignores their dates.

use std::fmt;

use pem::{EncodeConfig, LineEnding, Pem};
use ring::digest::{SHA256, digest};
use thiserror::Error;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

/// The label of a certificate in PEM (RFC 7468, section 5).
const LABEL: &str = "CERTIFICATE";

/// A certificate whose DER was parsed.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    der: Vec<u8>,
    subject: String,
}

/// Why a certificate cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// The text has no certificate.
    #[error("reading a certificate: the text has no certificate in PEM (-----BEGIN CERTIFICATE-----)")]
    Missing,
    /// The bytes are not a certificate.
    #[error("reading a certificate: it is not X.509 in DER, or is truncated")]
    Unreadable,
}

impl Certificate {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// If the bytes are anything but one certificate.
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        let Ok(([], certificate)) = X509Certificate::from_der(der) else { return Err(CertificateError::Unreadable) };
        Ok(Self { der: der.to_vec(), subject: certificate.subject().to_string() })
    }

    /// Reads the first certificate of a text in PEM.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn from_pem(text: &str) -> Result<Self, CertificateError> {
        let blocks = pem::parse_many(text).map_err(|_| CertificateError::Unreadable)?;
        let block = blocks.iter().find(|block| block.tag() == LABEL).ok_or(CertificateError::Missing)?;
        Self::from_der(block.contents())
    }

    /// The certificate in DER.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// The certificate in PEM.
    pub fn to_pem(&self) -> String {
        to_pem(LABEL, &self.der)
    }

    /// Subject, such as `CN=slipway db`.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// SHA-256 of the certificate in DER, its fingerprint.
    pub fn sha256(&self) -> [u8; 32] {
        sha256(&self.der)
    }

    /// The parsed certificate. Never none, because it was parsed before.
    pub(crate) fn parsed(&self) -> Option<X509Certificate<'_>> {
        X509Certificate::from_der(&self.der).ok().map(|(_, certificate)| certificate)
    }

    /// Length of its RSA key in bits. None for another kind of key.
    pub(crate) fn rsa_bits(&self) -> Option<u32> {
        let parsed = self.parsed()?;
        let PublicKey::RSA(key) = parsed.public_key().parsed().ok()? else { return None };
        let start = key.modulus.iter().position(|byte| *byte != 0)?;
        let digits = key.modulus.get(start..)?;
        Some(u32::try_from(digits.len()).ok()? * 8 - digits.first()?.leading_zeros())
    }

    /// Whether another certificate is a CA and signed this one.
    pub(crate) fn is_issued_by(&self, issuer: &Self) -> bool {
        let (Some(issued), Some(issuer)) = (self.parsed(), issuer.parsed()) else { return false };
        issued.issuer().as_raw() == issuer.subject().as_raw()
            && issuer.is_ca()
            && issued.verify_signature(Some(issuer.public_key())).is_ok()
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Certificate").field(&self.subject).finish()
    }
}

/// DER as a text in PEM.
pub fn to_pem(label: &str, der: &[u8]) -> String {
    pem::encode_config(&Pem::new(label, der), EncodeConfig::new().set_line_ending(LineEnding::LF))
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut sum = [0; 32];
    sum.copy_from_slice(digest(&SHA256, bytes).as_ref());
    sum
}
