//! Encrypts to operators' public keys, in the format of age (age-encryption.org/v1). The server cannot decrypt the
//! result.

use std::io::Write;
use std::str::FromStr;

use age::Encryptor;
use age::armor::{ArmoredWriter, Format};
use age::stream::StreamWriter;
use age::x25519::Recipient;
use slipway_protocol::{ErrorCode, Secret};

use crate::base::error::Error;

/// First line of an encrypted text.
const HEAD: &str = "-----BEGIN AGE ENCRYPTED FILE-----";

/// Parses an age public key, `age1…`.
pub fn recipient(text: &str) -> Result<Recipient, Error> {
    Recipient::from_str(text).map_err(|reason| {
        // The text is not repeated, because it may be a private key given by mistake.
        let message = format!(
            "the recipient is not an age public key, as `age-keygen` prints it (age1 and 58 letters and digits): \
             {reason}"
        );
        Error::refused(ErrorCode::InvalidRequest, message)
    })
}

/// Encrypts a text to all of these recipients. Any of them can decrypt it.
pub fn text(recipients: &[Recipient], text: &str) -> Result<Secret, Error> {
    let failed = |source| Error::Seal { doing: "encrypting a recovery key", source };
    let mut sealed = ArmoredWriter::wrap_output(Vec::new(), Format::AsciiArmor).map_err(failed)?;
    let mut writer = stream(recipients, &mut sealed)?;
    writer.write_all(text.as_bytes()).and_then(|()| writer.finish().map(drop)).map_err(failed)?;
    let sealed = sealed.finish().map_err(failed)?;
    Ok(Secret::from(String::from_utf8_lossy(&sealed).into_owned()))
}

/// Returns a writer that encrypts to the recipients. The caller must call `finish` on it.
pub fn stream<W: Write>(recipients: &[Recipient], output: W) -> Result<StreamWriter<W>, Error> {
    let doing = "encrypting to the recipients";
    let encryptor = Encryptor::with_recipients(recipients.iter().map(|recipient| recipient as &dyn age::Recipient));
    let encryptor = encryptor.map_err(|error| Error::Seal { doing, source: std::io::Error::other(error) })?;
    encryptor.wrap_output(output).map_err(|source| Error::Seal { doing, source })
}

/// Whether a text is encrypted.
pub fn is_sealed(text: &Secret) -> bool {
    text.reveal().starts_with(HEAD)
}
