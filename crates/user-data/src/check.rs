//! Judges user-data without changing it.

use crate::input::{readable, text_of};
use crate::kind::{self, Kind};
use crate::refusal::Refusal;
use crate::{archive, content, mime, parts};

/// Refuses user-data that cloud-init would not understand, or that is too large. [`inject`](crate::inject()) refuses
/// the same.
pub fn check(user_data: &[u8]) -> Result<(), Refusal> {
    let source = readable(user_data)?;
    let source = text_of(&source)?;
    match mime::message(source) {
        Some(message) => parts::judge(source, &message),
        None => match kind::detect(source)? {
            Kind::Archive => archive::judged(source).map(drop),
            kind => content::judge(source, kind),
        },
    }
}

/// The user-data as text, uncompressed if necessary. Refused if it is not UTF-8 or has more than
/// [`MAX_BYTES`](crate::MAX_BYTES).
pub fn unpacked(user_data: &[u8]) -> Result<String, Refusal> {
    text_of(&readable(user_data)?).map(str::to_owned)
}
