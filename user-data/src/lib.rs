//! Edits cloud-init user-data as text. Everything outside the edit stays the same, byte for byte.
//!
//! No input or output: bytes go in, bytes or a [`Refusal`] come out. YAML is parsed only to find positions. An edited
//! document is parsed again and must have the same meaning as before, apart from the block. User-data with no place for
//! another key becomes one part of a MIME message, and the block another part. How cloud-init handles user-data is
//! taken from its source code (cloudinit/user_data.py and cloudinit/handlers/).
//!
//! [`ignition`] is for systems that use Ignition instead.

mod archive;
mod block;
mod document;
mod edit;
mod events;
mod flow;
mod gzip;
pub mod ignition;
mod input;
mod jinja;
mod kind;
mod lines;
mod mime;
mod multipart;
mod pyyaml;
mod quotes;
mod refusal;
mod tail;
mod trust;

use slipway_protocol::PhoneHome;

pub use crate::block::{Block, Post, UnknownKey, quoted, url_problem};
use crate::edit::{Blocks, Reading, Unfit};
pub use crate::events::Events;
pub use crate::gzip::MAX_BYTES;
use crate::input::{readable, text_of};
use crate::kind::Kind;
use crate::multipart::Part;
pub use crate::refusal::Refusal;
pub use crate::trust::trusting;

/// Adds the block to the user-data. cloud-init does the same as before, and reports. Every `phone_home` in a
/// cloud-config is replaced.
///
/// Empty user-data becomes a cloud-config with only the block. User-data is refused if cloud-init would not understand
/// it, or if it has more than [`MAX_BYTES`].
pub fn inject(user_data: &[u8], block: &Block) -> Result<Vec<u8>, Refusal> {
    let source = readable(user_data)?;
    let edited = with_block(text_of(&source)?, block)?;
    Ok(if gzip::is_compressed(user_data) { gzip::pack(&edited) } else { edited.into_bytes() })
}

/// [`inject`] for text.
pub fn inject_text(user_data: &str, block: &Block) -> Result<String, Refusal> {
    readable(user_data.as_bytes())?;
    with_block(user_data, block)
}

/// [`inject_text`] with all keys that cloud-init can post.
pub fn inject_phone_home(user_data: &str, phone_home: &PhoneHome) -> Result<String, Refusal> {
    inject_text(user_data, &Block::from(phone_home))
}

/// Refuses what [`inject`] refuses.
pub fn check(user_data: &[u8]) -> Result<(), Refusal> {
    let block = Block { url: "https://localhost/".to_owned(), post: Post::All, tries: None };
    with_block(text_of(&readable(user_data)?)?, &block).map(drop)
}

/// The user-data as text, uncompressed if necessary. Refused if it is not UTF-8 or has more than [`MAX_BYTES`].
pub fn unpacked(user_data: &[u8]) -> Result<String, Refusal> {
    text_of(&readable(user_data)?).map(str::to_owned)
}

/// Removes every block with this `url`. The result is empty if nothing is left. User-data without such a block, or with
/// invalid YAML, stays as it is.
///
/// For user-data that was not empty, this undoes [`inject`] byte for byte, unless the user-data was compressed, ended
/// inside a message without its closing boundary, or had a `phone_home`.
///
/// A block is refused if something else depends on it, or if it is among other keys in an archive.
pub fn remove(user_data: &[u8], url: &str) -> Result<Vec<u8>, Refusal> {
    let unchanged = || Ok(user_data.to_owned());
    let Ok(source) = readable(user_data) else { return unchanged() };
    let Ok(source) = text_of(&source) else { return unchanged() };
    match without_blocks(source, Blocks::To(&|found| found == url))? {
        None => unchanged(),
        Some(edited) if gzip::is_compressed(user_data) && !edited.is_empty() => Ok(gzip::pack(&edited)),
        Some(edited) => Ok(edited.into_bytes()),
    }
}

/// [`remove`] for text, and for every `url` for which `is_meant` is true. `None` if nothing changes.
pub fn remove_text(user_data: &str, is_meant: &dyn Fn(&str) -> bool) -> Result<Option<String>, Refusal> {
    match readable(user_data.as_bytes()) {
        Ok(_) => without_blocks(user_data, Blocks::To(is_meant)),
        Err(_) => Ok(None),
    }
}

fn without_blocks(source: &str, drop: Blocks) -> Result<Option<String>, Refusal> {
    if mime::message(source).is_some() {
        return multipart::remove(source, drop);
    }
    match kind::detect(source) {
        Ok(Kind::CloudConfig) => edit::remove(source, drop, Reading::Yaml),
        Ok(Kind::Jinja) => edit::remove(source, drop, Reading::Jinja),
        Ok(Kind::Archive) => archive::remove(source, drop),
        _ => Ok(None),
    }
}

fn with_block(source: &str, block: &Block) -> Result<String, Refusal> {
    if let Some(message) = mime::message(source) {
        return multipart::inject(source, &message, Part::Block(block));
    }
    let edited = match kind::detect(source)? {
        Kind::Empty => Ok(block.document("\n")),
        Kind::CloudConfig => edit::inject(source, block, Reading::Yaml),
        Kind::Archive => archive::inject(source, block),
        Kind::Jinja if jinja::is_cloud_config(source)? => edit::inject(source, block, Reading::Jinja),
        Kind::Jinja | Kind::Whole(_) => Err(Unfit::NoPlace),
    };
    match edited {
        Ok(edited) => Ok(edited),
        Err(Unfit::Refused(refusal)) => Err(refusal),
        Err(Unfit::NoPlace) => Ok(multipart::wrap(source, Part::Block(block))),
    }
}
