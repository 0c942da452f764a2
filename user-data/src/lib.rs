//! Edits cloud-init user-data as text, so that everything outside the edit stays as it was, byte for byte.
//!
//! No input or output: text goes in, text or a [`Refusal`] comes out. YAML is parsed only to find where things are; an
//! edited document is parsed again and must mean what it meant before, `phone_home` apart.

mod document;
mod kind;

use slipway_protocol::PhoneHome;

use crate::document::Document;
use crate::kind::Kind;

/// First line of a cloud-config (cloud-init documentation, "User data formats").
const HEADER: &str = "#cloud-config";

/// Why user-data cannot be edited, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct Refusal {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is there and what would be right.
    pub reason: String,
}

impl Refusal {
    fn at(line: usize, column: usize, reason: impl Into<String>) -> Self {
        Self { line, column, reason: reason.into() }
    }
}

/// The user-data with the given `phone_home` block in place of every top-level one it had.
///
/// Empty user-data becomes a cloud-config that holds nothing but the block. Anything that is not a cloud-config with a
/// block mapping at its root is refused.
pub fn inject_phone_home(user_data: &str, phone_home: &PhoneHome) -> Result<String, Refusal> {
    match kind::of(user_data)? {
        Kind::Empty => Ok(format!("{HEADER}\n{}", block(phone_home, 0, "\n"))),
        Kind::CloudConfig => replace_phone_home(user_data, phone_home),
    }
}

fn replace_phone_home(text: &str, phone_home: &PhoneHome) -> Result<String, Refusal> {
    let document = document::parse(text)?;
    let newline =
        if text.split_inclusive('\n').next().is_some_and(|line| line.ends_with("\r\n")) { "\r\n" } else { "\n" };
    let block = block(phone_home, document.indent, newline);
    let insert_at = place(&document, text);

    let mut edited = String::with_capacity(text.len() + block.len());
    let mut copied = 0;
    let mut inserted = false;
    for entry in document.entries.iter().filter(|entry| entry.is_phone_home()) {
        if insert_at <= entry.bytes.start && !inserted {
            edited.push_str(&text[copied..insert_at]);
            edited.push_str(&block);
            inserted = true;
            copied = insert_at;
        }
        edited.push_str(&text[copied..entry.bytes.start]);
        copied = entry.bytes.end;
    }
    if !inserted {
        edited.push_str(&text[copied..insert_at]);
        if !edited.ends_with('\n') {
            edited.push_str(newline);
        }
        edited.push_str(&block);
        copied = insert_at;
    }
    edited.push_str(&text[copied..]);
    check_meaning(&document, &edited)?;
    Ok(edited)
}

/// Where the block goes: after the last entry's document, unless the text ends inside a block scalar without a line
/// break. There the break the block needs would become part of the scalar, so the block goes before the first entry.
fn place(document: &Document, text: &str) -> usize {
    let last_kept = document.entries.last().filter(|entry| !entry.is_phone_home());
    match (document.entries.first(), last_kept) {
        (Some(first), Some(last)) if last.ends_in_block_scalar && !text.ends_with('\n') => first.bytes.start,
        _ => document.end,
    }
}

/// Holds an edit to its promise: every other entry still means what it meant, and there is one `phone_home`.
fn check_meaning(before: &Document, edited: &str) -> Result<(), Refusal> {
    let (line, column) = before.entries.iter().find(|entry| entry.is_phone_home()).map_or((1, 1), |entry| entry.place);
    let after = document::parse(edited).map_err(|refusal| {
        let reason = format!("another part of the document depends on this phone_home: {}", refusal.reason);
        Refusal::at(line, column, reason)
    })?;
    let kept = |document: &Document| -> Vec<_> {
        let others = document.entries.iter().filter(|entry| !entry.is_phone_home());
        others.map(|entry| entry.meaning.clone()).collect()
    };
    let blocks = after.entries.iter().filter(|entry| entry.is_phone_home()).count();
    if blocks != 1 || kept(before) != kept(&after) {
        return Err(Refusal::at(line, column, "phone_home cannot be replaced here without changing other keys"));
    }
    Ok(())
}

fn block(phone_home: &PhoneHome, indent: usize, newline: &str) -> String {
    let mut lines =
        vec!["phone_home:".to_owned(), format!("  url: {}", quoted(&phone_home.url)), "  post: all".to_owned()];
    lines.extend(phone_home.tries.map(|tries| format!("  tries: {tries}")));
    let margin = " ".repeat(indent);
    lines.into_iter().map(|line| format!("{margin}{line}{newline}")).collect()
}

/// The text as a YAML double-quoted scalar (YAML 1.2.2, 7.3.1), which is also a YAML 1.1 one.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
