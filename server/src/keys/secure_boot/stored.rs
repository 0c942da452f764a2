//! The stored form of a site's Secure Boot keys, and how keys get into it.

use serde::{Deserialize, Serialize};
use slipway_protocol::{ErrorCode, Secret};
use slipway_secure_boot::{KeyError, KeySize, SigningKey};
use time::{Duration, OffsetDateTime};

use super::{FILE, failed};
use crate::base::data::DataDir;
use crate::base::error::{Error, chain};
use crate::keys::pkcs11::{self, KeyUri};

/// Validity of certificates. Firmware ignores it, but other programs do not.
const VALID: Duration = Duration::days(365 * 30);

/// Content of the file [`FILE`].
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// Owner GUID of our entries in the signature lists (UEFI Specification 2.10, section 32.4.1).
    pub owner: String,
    /// Whether the lists include Microsoft's certificates.
    pub microsoft: bool,
    pub pk: StoredKey,
    pub kek: StoredKey,
    pub db: StoredKey,
    /// The key that replaces `db` at the end of a rotation in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_db: Option<StoredKey>,
    /// Certificates and programs that must no longer boot.
    #[serde(default)]
    pub revoked: Vec<Revoked>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredKey {
    pub certificate: String,
    /// Private key in PEM, or the PKCS #11 URI of a key in a token.
    pub key: Secret,
}

/// A revoked certificate or program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Revoked {
    /// Everything signed with the key of this certificate, in PEM.
    Certificate(String),
    /// The program with this digest (Authenticode, SHA-256, in hexadecimal).
    Program(String),
}

/// A key and its certificate to import.
pub struct Imported {
    /// Private key in PEM, or the PKCS #11 URI of a key in a token.
    pub key: String,
    /// The key's certificate in PEM.
    pub certificate: String,
}

/// Common name of a signature key. The date distinguishes the keys of a rotation.
pub fn signer_name(now: OffsetDateTime) -> String {
    format!("slipway Secure Boot signature (db) {}", now.date())
}

/// Checks an imported key, or makes a new key. `name` is the common name of a new key's certificate.
pub fn key(imported: Option<Imported>, name: &str, now: OffsetDateTime) -> Result<StoredKey, Error> {
    let Some(Imported { key, certificate }) = imported else {
        // Valid since yesterday, for machines whose clock is behind.
        let new = SigningKey::generate(KeySize::Rsa2048, name, now - Duration::days(1), now + VALID);
        return Ok(stored(&new.map_err(refused)?, String::new()));
    };
    let new = read_key(&key, &certificate).map_err(refused)?;
    new.check_validity(now).map_err(refused)?;
    new.prove().map_err(refused)?;
    Ok(stored(&new, key))
}

/// Reads a key in PEM, or the PKCS #11 URI of a key in a token. The token is not accessed before the first signature.
pub fn read_key(key: &str, certificate: &str) -> Result<SigningKey, KeyError> {
    if !pkcs11::is_uri(key) {
        return SigningKey::from_pem(key, certificate);
    }
    let uri: KeyUri = key.parse().map_err(|source| KeyError::Unreadable { source: Box::new(source) })?;
    SigningKey::elsewhere(certificate, Box::new(move |message| Ok(pkcs11::sign(&uri, message)?)))
}

/// Returns the stored form of a key. `uri` is stored for a key in a token, which has no PEM.
fn stored(key: &SigningKey, uri: String) -> StoredKey {
    StoredKey { certificate: key.certificate().to_pem(), key: Secret::from(key.key_to_pem().unwrap_or(uri)) }
}

pub fn save(data: &DataDir, stored: &Stored) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(stored);
    data.replace(FILE, &text.map_err(failed("writing"))?)
}

/// Formats an error in one line, because only commands import keys, and they show one line.
fn refused(error: KeyError) -> Error {
    Error::refused(ErrorCode::InvalidRequest, chain(&error))
}
