//! The site key: decrypts the keys of the site, which all its servers share in the database.

use std::fmt::{self, Debug, Formatter};
use std::io::Read;
use std::str::FromStr;

use age::secrecy::ExposeSecret;
use age::x25519::{Identity, Recipient};
use age::{DecryptError, Decryptor};
use slipway_protocol::ErrorCode;

use crate::base::error::Error;

/// A private key of age (age-encryption.org/v1), `AGE-SECRET-KEY-1…`.
#[derive(Clone)]
pub struct SiteKey(Identity);

impl SiteKey {
    /// Makes a new key.
    pub fn generate() -> Self {
        Self(Identity::generate())
    }

    /// Reads a key from the text of a file as `age-keygen` and `slipway-server site-key` write it: comments, and one
    /// private key.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let key = lines.next().and_then(|line| Identity::from_str(line).ok()).filter(|_| lines.next().is_none());
        // The text is not repeated, because it may be a key with a typing error.
        key.map(Self).ok_or_else(|| {
            let message = "the site key is not one private key of age (AGE-SECRET-KEY-1...): `slipway-server site-key \
                           FILE` makes one";
            Error::refused(ErrorCode::InvalidRequest, message)
        })
    }

    /// The key as a file has it.
    pub fn to_text(&self) -> String {
        format!("# public key: {}\n{}\n", self.recipient(), self.0.to_string().expose_secret())
    }

    /// The public key, to which the keys of the site are encrypted.
    pub fn recipient(&self) -> Recipient {
        self.0.to_public()
    }

    /// Decrypts what was encrypted to this key. `None` if it was encrypted to another.
    pub fn open(&self, sealed: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let failed = |source| Error::Seal { doing: "decrypting the keys of the site", source };
        let decryptor = Decryptor::new_buffered(sealed).map_err(std::io::Error::other).map_err(failed)?;
        let mut content = match decryptor.decrypt([&self.0 as &dyn age::Identity].into_iter()) {
            Err(DecryptError::NoMatchingKeys) => return Ok(None),
            opened => opened.map_err(std::io::Error::other).map_err(failed)?,
        };
        let mut opened = Vec::new();
        content.read_to_end(&mut opened).map_err(failed)?;
        Ok(Some(opened))
    }
}

impl Debug for SiteKey {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.recipient())
    }
}
