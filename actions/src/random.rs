//! Random bytes and UUIDs.

use ring::rand::{SecureRandom, SystemRandom};

use crate::error::Error;

/// Returns random bytes from the operating system.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::Random)?;
    Ok(bytes)
}

/// A random UUID (RFC 9562, section 5.4).
pub(crate) fn uuid() -> Result<[u8; 16], Error> {
    let mut uuid = bytes::<16>()?;
    uuid[6] = 0x40 | (uuid[6] & 0x0F);
    uuid[8] = 0x80 | (uuid[8] & 0x3F);
    Ok(uuid)
}

/// Parses a UUID in its text form; none if it is invalid.
pub(crate) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    base16ct::mixed::decode_vec(text.replace('-', "")).ok()?.try_into().ok()
}

/// A UUID as text, in lower case.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex = base16ct::lower::encode_string(uuid);
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
