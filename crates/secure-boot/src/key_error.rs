//! Why a key cannot be made, used or imported.

use std::error::Error as StdError;

use thiserror::Error;

use crate::certificate::CertificateError;

/// A key cannot be made, used or imported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No key could be made.
    #[error("making an RSA key")]
    Generate {
        /// The cause.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// No certificate could be made for a key.
    #[error("making the certificate of a key")]
    Certify {
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// The text has no key.
    #[error("importing a key: the text has none in PEM (-----BEGIN PRIVATE KEY-----)")]
    Missing,
    /// The key needs a passphrase.
    #[error("importing a key: it is encrypted; decrypt it before: openssl pkey -in ENCRYPTED -out KEY")]
    Encrypted,
    /// The key is of another kind.
    #[error("importing a key: it is not RSA, and firmware verifies nothing else")]
    NotRsa,
    /// The key is damaged.
    #[error("importing a key: it cannot be read")]
    Unreadable {
        /// The cause.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The key has too few or too many bits.
    #[error("importing a key: it has {bits} bits; use one of 2048 bits, which all firmware verifies, and at most 4096")]
    Size {
        /// Its length.
        bits: u32,
    },
    /// The certificate cannot be read.
    #[error("importing a key with its certificate")]
    Certificate {
        /// The cause.
        #[source]
        source: CertificateError,
    },
    /// The certificate is that of another key.
    #[error("importing a key: the certificate of {subject} is for another key")]
    OtherKey {
        /// Whose certificate it is.
        subject: String,
    },
    /// The certificate is not valid yet.
    #[error("using the certificate of {subject}: it is valid from {from}; check the clock")]
    NotYetValid {
        /// Whose certificate it is.
        subject: String,
        /// When it begins to be valid.
        from: String,
    },
    /// The certificate was valid.
    #[error("using the certificate of {subject}: it was valid until {until}; make a new one")]
    Expired {
        /// Whose certificate it is.
        subject: String,
        /// When it ceased to be valid.
        until: String,
    },
    /// A signature could not be made.
    #[error("signing with the key of {subject}: the library for it refused")]
    Sign {
        /// Whose key it is.
        subject: String,
    },
    /// A key elsewhere did not sign.
    #[error("signing with the key of {subject}")]
    Elsewhere {
        /// Whose key it is.
        subject: String,
        /// The cause.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// Another key signed elsewhere.
    #[error(
        "signing with the key of {subject}: another key signed; name the key and the certificate that belong together"
    )]
    Foreign {
        /// Whose key should have signed.
        subject: String,
    },
}
