//! Adds a `phone_home` block to user-data of any kind.

use slipway_protocol::PhoneHome;

use crate::block::Block;
use crate::edit::{self, Reading, Unfit};
use crate::input::{readable, text_of};
use crate::kind::{self, Kind};
use crate::multipart::{self, Part};
use crate::refusal::Refusal;
use crate::{archive, content, gzip, jinja, mime, parts};

/// Adds the block to the user-data. cloud-init does the same as before, and reports. Every `phone_home` in a
/// cloud-config is replaced.
///
/// Empty user-data becomes a cloud-config with only the block. User-data is refused if cloud-init would not understand
/// it, or if it has more than [`MAX_BYTES`](crate::MAX_BYTES).
pub fn inject(user_data: &[u8], block: &Block) -> Result<Vec<u8>, Refusal> {
    let source = readable(user_data)?;
    let edited = with_block(text_of(&source)?, block)?;
    Ok(if gzip::is_compressed(user_data) { gzip::pack(&edited) } else { edited.into_bytes() })
}

/// [`inject()`] for text.
pub fn inject_text(user_data: &str, block: &Block) -> Result<String, Refusal> {
    readable(user_data.as_bytes())?;
    with_block(user_data, block)
}

/// [`inject_text`] with all keys that cloud-init can post.
pub fn inject_phone_home(user_data: &str, phone_home: &PhoneHome) -> Result<String, Refusal> {
    inject_text(user_data, &Block::from(phone_home))
}

fn with_block(source: &str, block: &Block) -> Result<String, Refusal> {
    if let Some(message) = mime::message(source) {
        parts::judge(source, &message)?;
        return multipart::inject(source, &message, Part::Block(block));
    }
    let edited = match kind::detect(source)? {
        Kind::Empty => Ok(block.document("\n")),
        Kind::CloudConfig => edit::inject(source, block, Reading::Yaml),
        Kind::Archive => archive::inject(source, block),
        Kind::Jinja if jinja::is_cloud_config(source)? => edit::inject(source, block, Reading::Jinja),
        kind @ (Kind::Jinja | Kind::Whole(_)) => {
            content::judge(source, kind)?;
            Err(Unfit::NoPlace)
        }
    };
    match edited {
        Ok(edited) => Ok(edited),
        Err(Unfit::Refused(refusal)) => Err(refusal),
        Err(Unfit::NoPlace) => Ok(multipart::wrap(source, Part::Block(block))),
    }
}
