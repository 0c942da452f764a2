//! What is kept of the keys of a site, and how a key gets there.

use serde::{Deserialize, Serialize};
use slipway_protocol::{ErrorCode, Secret};
use slipway_secure_boot::{KeyError, KeySize, SigningKey};
use time::{Duration, OffsetDateTime};

use super::{FILE, failed};
use crate::base::data::DataDir;
use crate::base::error::{Error, chain};
use crate::keys::pkcs11::{self, KeyUri};

/// How long certificates are valid. Firmware does not look at it, and other programs do.
const VALID: Duration = Duration::days(365 * 30);

/// What is in the file.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// Owner of our entries in the lists (UEFI Specification 2.10, section 32.4.1).
    pub owner: String,
    /// Whether the lists have Microsoft's certificates too.
    pub microsoft: bool,
    pub pk: StoredKey,
    pub kek: StoredKey,
    pub db: StoredKey,
    /// What takes the place of `db`, by a rotation in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_db: Option<StoredKey>,
    /// What may not start any more.
    #[serde(default)]
    pub revoked: Vec<Revoked>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredKey {
    pub certificate: String,
    /// In PEM, or the PKCS #11 URI of a key in a token.
    pub key: Secret,
}

/// What may not start any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Revoked {
    /// What is signed with the key of this certificate, in PEM.
    Certificate(String),
    /// The program with this digest (Authenticode, SHA-256, in hexadecimal).
    Program(String),
}

/// A key and its certificate, to import.
pub struct Imported {
    /// The private key in PEM, or the PKCS #11 URI of one in a token.
    pub key: String,
    /// Its certificate in PEM.
    pub certificate: String,
}

/// The name tells keys of a rotation apart.
pub fn signer_name(now: OffsetDateTime) -> String {
    format!("slipway Secure Boot signature (db) {}", now.date())
}

/// The imported key, if it can be used now, or a new one with this name.
pub fn key(imported: Option<Imported>, name: &str, now: OffsetDateTime) -> Result<StoredKey, Error> {
    let Some(Imported { key, certificate }) = imported else {
        // A machine whose clock is behind would take a certificate of today for one of tomorrow.
        let new = SigningKey::generate(KeySize::Rsa2048, name, now - Duration::days(1), now + VALID);
        return Ok(stored(&new.map_err(refused)?, String::new()));
    };
    let new = read_key(&key, &certificate).map_err(refused)?;
    new.check_validity(now).map_err(refused)?;
    new.prove().map_err(refused)?;
    Ok(stored(&new, key))
}

/// The key of a text in PEM, or in the token that a URI names. The token is not asked for anything before the first signature.
pub fn read_key(key: &str, certificate: &str) -> Result<SigningKey, KeyError> {
    if !pkcs11::is_uri(key) {
        return SigningKey::from_pem(key, certificate);
    }
    let uri: KeyUri = key.parse().map_err(|source| KeyError::Unreadable { source: Box::new(source) })?;
    SigningKey::elsewhere(certificate, Box::new(move |message| Ok(pkcs11::sign(&uri, message)?)))
}

/// What is stored of a key: of one that is elsewhere, the URI that it was read from.
fn stored(key: &SigningKey, uri: String) -> StoredKey {
    StoredKey { certificate: key.certificate().to_pem(), key: Secret::from(key.key_to_pem().unwrap_or(uri)) }
}

pub fn save(data: &DataDir, stored: &Stored) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(stored);
    data.replace(FILE, &text.map_err(failed("writing"))?)
}

/// Only a command refuses a key, and it shows one line.
fn refused(error: KeyError) -> Error {
    Error::refused(ErrorCode::InvalidRequest, chain(&error))
}
