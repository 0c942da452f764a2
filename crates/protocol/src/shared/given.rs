//! What counts as a value in the input of slipway: files in YAML, requests and hints in JSON, options.
//!
//! A key that is present must have a value. The variable of a template may be empty, and a disk hint that lost its
//! value would select every disk. [`read`] applies this rule to any format and any type, so that no type needs
//! attributes for it. What slipway itself has written, such as its store, is read without the rule.

mod deserializer;
#[cfg(feature = "clap")]
pub mod options;
mod place;

use serde::{Deserialize, Deserializer};

use deserializer::Given;
use place::Place;

/// The end of the error about a key that has no value. Only the key's path precedes this text, so no input is repeated.
pub const NO_VALUE: &str = " has no value: leave the key out, or give it one";
/// The end of the error about a mapping that has a key twice.
const TWICE: &str = " has a key twice";
/// The error about a document that has no value.
pub const NOTHING: &str = "nothing is given";

/// Who gives the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// People and their programs. `null` and blank texts do not count as values. An empty mapping or list counts,
    /// unless it selects disks.
    Settings,
    /// Like `Settings`, for a change of settings: an empty mapping or list at the top level removes what was set.
    Change,
    /// Machines that report what they found. Their texts may be blank: a disk may have a model of eight spaces.
    Report,
}

/// The largest number that a value may be. The store and other programs have no larger integers.
pub const LARGEST: u64 = i64::MAX as u64;
/// Keys that select disks. With an empty value, they would select more disks than was meant.
const SELECTING: [&str; 2] = ["disk", "skip"];
/// Keys whose texts may be blank: text that is written unchanged to a file or a log, and words of a command.
const VERBATIM: [&str; 5] = ["content", "content_base64", "command", "environment", "logs"];

/// Reads a value from a format that has named fields and `null`. Refuses a key without a value, and a key that is there
/// twice. Errors have the path of the key, and what the format adds, such as line and column.
pub fn read<'de, T: Deserialize<'de>, D: Deserializer<'de>>(rule: Rule, deserializer: D) -> Result<T, D::Error> {
    T::deserialize(Given::new(deserializer, Place::root(rule)))
}

/// Whether the sentence of an error was written by [`read`] itself. Such sentences repeat no input.
pub fn is_own(sentence: &str) -> bool {
    let path = sentence.strip_suffix(NO_VALUE).or_else(|| sentence.strip_suffix(TWICE));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte);
    sentence == NOTHING || path.is_some_and(|path| path.bytes().all(is_plain))
}

/// Whether the text of this key may be blank.
pub fn may_be_blank(key: &str) -> bool {
    VERBATIM.contains(&key)
}

/// Whether an empty list or mapping of this key would select more than was meant.
pub fn selects(key: &str) -> bool {
    SELECTING.contains(&key)
}

/// A regular expression (ECMA-262, with the flag `u`) that finds something in a text that is not blank.
pub const VISIBLE: &str = r"[^\s\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2060\ufeff]";

/// Whether a text has nothing that can be seen: it is empty, or has only white space and control characters.
pub fn is_blank(text: &str) -> bool {
    // The characters in `matches!` have no width (Unicode, general category Cf).
    text.chars()
        .all(|c| c.is_whitespace() || c.is_control() || matches!(c, '\u{200B}'..='\u{200F}' | '\u{2060}' | '\u{FEFF}'))
}

#[cfg(test)]
mod tests;
