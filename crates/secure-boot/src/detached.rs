//! Signatures that are files of their own.

use crate::key_error::KeyError;
use crate::keys::SigningKey;
use crate::pkcs7::{self, Message};

/// The signature of a file as iPXE's `imgverify` reads it: a message of PKCS #7 in DER, with the signer's certificate and
/// without the file. iPXE knows no signed attributes, so there are none.
///
/// # Errors
/// If the key cannot sign.
pub fn sign(content: &[u8], key: &SigningKey) -> Result<Vec<u8>, KeyError> {
    Ok(pkcs7::content_info(&pkcs7::signed_data(key, &Message::Elsewhere(content))?))
}
