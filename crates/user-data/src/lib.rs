//! Edits cloud-init user-data as text. Everything outside the edit stays the same, byte for byte.
//!
//! No input or output: bytes go in, bytes or a [`Refusal`] come out. YAML is parsed only to find positions. An edited
//! document is parsed again and must have the same meaning as before, apart from the block. User-data with no place for
//! another key becomes one part of a MIME message, and the block another part. How cloud-init handles user-data is
//! taken from its source code (cloudinit/user_data.py and cloudinit/handlers/).
//!
//! [`ignition`] is for systems that use Ignition instead, [`network`] judges network configurations, [`seed`] all that
//! a system gets for its first boot, and [`image`] whether an installed system would take it.

mod archive;
mod block;
mod check;
mod content;
mod document;
mod edit;
mod events;
mod flow;
mod gzip;
pub mod ignition;
pub mod image;
mod inject;
mod input;
mod jinja;
mod kind;
mod lines;
mod mime;
mod multipart;
pub mod network;
mod numbers;
mod parts;
mod pyyaml;
mod quotes;
mod refusal;
pub mod seed;
mod tail;
mod tree;
mod trust;
mod yaml;

pub use crate::block::{Block, Post, UnknownKey, quoted, url_problem};
pub use crate::check::{check, unpacked};
use crate::edit::{Blocks, Reading};
pub use crate::events::Events;
pub use crate::gzip::MAX_BYTES;
pub use crate::inject::{inject, inject_phone_home, inject_text};
use crate::input::{readable, text_of};
use crate::kind::Kind;
pub use crate::numbers::check_numbers;
pub use crate::refusal::Refusal;
pub use crate::trust::trusting;

/// Removes every block with this `url`. The result is empty if nothing is left. User-data without such a block, or with
/// invalid YAML, stays as it is.
///
/// For user-data that was not empty, this undoes [`inject()`] byte for byte, unless the user-data was compressed, ended
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
