//! Private keys: generating them, and reading them from PEM.

use getrandom::SysRng;
use rsa::pkcs1::DecodeRsaPrivateKey;
use rsa::pkcs8::{self, DecodePrivateKey, EncodePrivateKey, spki};
use rsa::traits::PublicKeyParts;

use crate::certificate::to_pem;
use crate::key_error::KeyError;

/// PEM labels of private keys: PKCS#8, plain and encrypted (RFC 7468, sections 10 and 11), PKCS#1, and other kinds.
pub const PKCS8: &str = "PRIVATE KEY";
const ENCRYPTED: &str = "ENCRYPTED PRIVATE KEY";
const PKCS1: &str = "RSA PRIVATE KEY";
const OTHER: [&str; 3] = ["EC PRIVATE KEY", "DSA PRIVATE KEY", "OPENSSH PRIVATE KEY"];
/// The PEM header of a PKCS#1 key that openssl encrypted.
const ENCRYPTION_HEADER: &str = "DEK-Info";
/// Minimum and maximum length of a key in bits.
const SMALLEST: u32 = 2048;
const LARGEST: u32 = 4096;

/// Length of an RSA key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySize {
    /// 2048 bits, for Secure Boot: much firmware supports no other length.
    Rsa2048,
    /// 3072 bits, for TLS: new firmware requires as many of a server.
    Rsa3072,
}

/// Generates an RSA key in PEM (PKCS#8), for certificates that are made elsewhere.
///
/// # Errors
/// If no random bytes are available.
pub fn generate_rsa_key(size: KeySize) -> Result<String, KeyError> {
    generate(size).map(|document| to_pem(PKCS8, document.as_bytes()))
}

/// Generates an RSA key.
pub fn generate(size: KeySize) -> Result<pkcs8::SecretDocument, KeyError> {
    let bits = match size {
        KeySize::Rsa2048 => 2048,
        KeySize::Rsa3072 => 3072,
    };
    let key = rsa::PrivateKey::new(&mut SysRng, bits);
    let key = key.map_err(|source| KeyError::Generate { source: Box::new(source) })?;
    key.to_pkcs8_der().map_err(|source| KeyError::Generate { source: Box::new(source) })
}

/// The first private key of a text in PEM, as PKCS#8.
pub fn read_key(text: &str) -> Result<pkcs8::SecretDocument, KeyError> {
    let blocks = pem::parse_many(text).map_err(|source| KeyError::Unreadable { source: Box::new(source) })?;
    let is_key = |tag: &str| tag == PKCS8 || tag == ENCRYPTED || tag == PKCS1 || OTHER.contains(&tag);
    let block = blocks.iter().find(|block| is_key(block.tag())).ok_or(KeyError::Missing)?;
    let unreadable = |source| KeyError::Unreadable { source };
    let key = match block.tag() {
        ENCRYPTED => return Err(KeyError::Encrypted),
        PKCS1 if block.headers().get(ENCRYPTION_HEADER).is_some() => return Err(KeyError::Encrypted),
        PKCS1 => rsa::PrivateKey::from_pkcs1_der(block.contents()).map_err(|source| unreadable(Box::new(source)))?,
        PKCS8 => match rsa::PrivateKey::from_pkcs8_der(block.contents()) {
            Err(pkcs8::Error::PublicKey(spki::Error::OidUnknown { .. })) => return Err(KeyError::NotRsa),
            key => key.map_err(|source| unreadable(Box::new(source)))?,
        },
        _ => return Err(KeyError::NotRsa),
    };
    check_size(key.n().bit_width())?;
    key.to_pkcs8_der().map_err(|source| unreadable(Box::new(source)))
}

/// Checks the length of a key.
pub fn check_size(bits: u32) -> Result<(), KeyError> {
    match (SMALLEST..=LARGEST).contains(&bits) {
        true => Ok(()),
        false => Err(KeyError::Size { bits }),
    }
}
