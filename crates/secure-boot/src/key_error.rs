//! Why a key cannot be made, used or imported.

use std::error::Error as StdError;

use thiserror::Error;

use crate::certificate::CertificateError;

/// Why a key cannot be made, used or imported.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum KeyError {
    /// The key could not be generated.
    #[error("making an RSA key")]
    Generate { source: Box<dyn StdError + Send + Sync> },
    /// The certificate could not be made.
    #[error("making the certificate of a key")]
    Certify { source: rcgen::Error },
    /// The text contains no key.
    #[error("importing a key: the text has no private key in PEM (-----BEGIN PRIVATE KEY-----)")]
    Missing,
    /// The key is encrypted.
    #[error("importing a key: it is encrypted; decrypt it first with openssl pkey -in ENCRYPTED -out KEY")]
    Encrypted,
    /// The key is not RSA.
    #[error("importing a key: it is not an RSA key, but firmware supports only RSA")]
    NotRsa,
    /// The key is damaged.
    #[error("importing a key: it cannot be read")]
    Unreadable { source: Box<dyn StdError + Send + Sync> },
    /// The key is too short or too long.
    #[error("importing a key: it has {bits} bits; use one of 2048 bits, which all firmware accepts, or of up to 4096")]
    Size { bits: u32 },
    /// The certificate cannot be read.
    #[error("importing a key with its certificate")]
    Certificate { source: CertificateError },
    /// The certificate is for another key.
    #[error("importing a key: the certificate of {subject} is for another key")]
    OtherKey { subject: String },
    /// The certificate is not valid yet.
    #[error("using the certificate of {subject}: it is valid from {from}; check the clock")]
    NotYetValid { subject: String, from: String },
    /// The certificate has expired.
    #[error("using the certificate of {subject}: it was valid until {until}; make a new one")]
    Expired { subject: String, until: String },
    /// A signature could not be made.
    #[error("signing with the key of {subject}: the cryptographic library refused")]
    Sign { subject: String },
    /// The external key did not sign.
    #[error("signing with the key of {subject}")]
    Elsewhere { subject: String, source: Box<dyn StdError + Send + Sync> },
    /// The external key does not belong to the certificate.
    #[error(
        "signing with the key of {subject}: the key does not match the certificate; give the key of this certificate"
    )]
    Foreign { subject: String },
}
