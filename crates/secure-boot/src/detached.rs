//! Signatures that are files of their own.

use crate::key_error::KeyError;
use crate::keys::SigningKey;
use crate::pkcs7::{self, Message};

/// Makes the detached signature of a file for iPXE's `imgverify`: a PKCS #7 message in DER with the signer's
/// certificate, without the file. The message has no signed attributes, because iPXE does not support them.
///
/// # Errors
/// If the key cannot sign.
pub fn sign(content: &[u8], key: &SigningKey) -> Result<Vec<u8>, KeyError> {
    Ok(pkcs7::content_info(&pkcs7::signed_data(key, &Message::Elsewhere(content))?))
}
