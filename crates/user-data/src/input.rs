//! User-data as it arrives: its size, its compression and its encoding.

use std::borrow::Cow;

use crate::gzip::{self, MAX_BYTES};
use crate::refusal::Refusal;

/// The user-data, uncompressed if necessary.
pub(crate) fn readable(user_data: &[u8]) -> Result<Cow<'_, [u8]>, Refusal> {
    let refuse = |reason: String| Refusal { line: 1, column: 1, reason };
    if user_data.len() > MAX_BYTES {
        return Err(refuse(format!("it has more than {} MiB", MAX_BYTES >> 20)));
    }
    if !gzip::is_compressed(user_data) {
        return Ok(Cow::Borrowed(user_data));
    }
    gzip::unpack(user_data).map(Cow::Owned).map_err(refuse)
}

pub(crate) fn text_of(user_data: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(user_data).map_err(|error| {
        let (valid, _) = user_data.split_at(error.valid_up_to());
        let valid = String::from_utf8_lossy(valid);
        Refusal::at_byte(&valid, valid.len(), "the text is not UTF-8 from here on")
    })
}
