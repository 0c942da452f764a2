//! MIME messages with several parts: adds a part, removes blocks from parts, and wraps user-data that has no place for
//! another key. cloud-init merges the parts in order; later keys override earlier ones.

use std::ops::Range;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};

use crate::block::Block;
use crate::edit::{self, Blocks, Reading};
use crate::kind::{self, Kind};
use crate::lines::{self, Edit, splice};
use crate::mime::{self, Encoding, Message};
use crate::refusal::Refusal;
use crate::{archive, jinja};

const BOUNDARY: &str = "slipway-phone-home";
/// Number of boundary names to try, as the text may contain some of them.
const BOUNDARIES: usize = 8;
/// Headers of a part whose kind cloud-init determines from its first line, as for user-data without a message.
const AS_IT_IS: &str = "Content-Type: text/plain\n\n";
const IN_BASE64: &str = "Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\n";
/// Reads base64 as Python does, which adds the `=` that are missing (email/_encoded_words.py, `decode_b`).
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// Characters in a line of base64 (RFC 2045, 6.8).
const LINE: usize = 76;
/// Nesting of messages up to which blocks are found, and parts judged.
pub(crate) const DEPTH: usize = 8;

/// The added part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// A cloud-config with only the block.
    Block(&'a Block),
    /// A script that runs early in every boot.
    Boothook(&'a str),
}

impl Part<'_> {
    /// The part with the boundary before it. A script keeps its own line ends, which the shell needs, whatever
    /// `newline` is.
    fn behind(self, boundary: &str, newline: &str) -> String {
        let (content_type, text) = match self {
            Self::Block(block) => ("text/cloud-config", block.document(newline)),
            Self::Boothook(script) => ("text/cloud-boothook", script.to_owned()),
        };
        format!("--{boundary}{newline}Content-Type: {content_type}{newline}{newline}{text}")
    }
}

/// Makes a message of the user-data, whose meaning stays the same, and a part.
pub(crate) fn wrap(source: &str, ours: Part) -> String {
    // In a message, cloud-init reads only ASCII. base64 protects other characters, and text that looks like a boundary.
    let is_plain = source.is_ascii() && !source.contains(&format!("--{BOUNDARY}")) && !source.ends_with('\r');
    let part = if is_plain { format!("{AS_IT_IS}{source}") } else { format!("{IN_BASE64}{}", base64(source, "\n")) };
    around(&part, BOUNDARY, ours)
}

/// Makes a message of another message and a part.
fn wrap_message(source: &str, ours: Part) -> Result<String, Refusal> {
    let names = (1..=BOUNDARIES).map(|n| if n == 1 { BOUNDARY.to_owned() } else { format!("{BOUNDARY}-{n}") });
    let mut free = names.filter(|name| !source.contains(&format!("--{name}")));
    match free.next() {
        Some(boundary) => Ok(around(source, &boundary, ours)),
        None => {
            Err(Refusal::at_byte(source, 0, "the message contains every boundary that slipway could put around it"))
        }
    }
}

fn around(part: &str, boundary: &str, ours: Part) -> String {
    // The line break after the text must be of the same kind, otherwise CR and LF would become one break.
    let newline = if part.ends_with('\r') { "\r" } else { "\n" };
    let ours = ours.behind(boundary, "\n");
    format!("{}{part}{newline}{ours}--{boundary}--\n", head(boundary))
}

fn head(boundary: &str) -> String {
    format!("Content-Type: multipart/mixed; boundary=\"{boundary}\"\nMIME-Version: 1.0\n\n--{boundary}\n")
}

/// Adds a part to the message. A block replaces the last part if that is only a block.
pub(crate) fn inject(source: &str, message: &Message, ours: Part) -> Result<String, Refusal> {
    let Some(boundary) = parts_boundary(source, message)? else { return wrap_message(source, ours) };
    let found = mime::parts(source, message.body.clone(), boundary);
    let end = found.close.unwrap_or(source.len());
    let mut edits = match ours {
        Part::Block(_) => without_any_block(source, &found),
        Part::Boothook(_) => Vec::new(),
    };
    let newline = lines::newline(source);
    let part = ours.behind(boundary, newline);
    match found.close {
        Some(close) => edits.push((close..close, part)),
        None => {
            // In a message without a closing boundary, Python counts the last line break as part of the missing
            // boundary.
            let open = if lines::ends_with_break(source) { "" } else { newline };
            // Directly after the headers, a boundary with a colon in it would become a header.
            let gap = if message.body.is_empty() { newline } else { "" };
            edits.push((end..end, format!("{open}{gap}{part}--{boundary}--{newline}")));
        }
    }
    Ok(splice(source, &edits))
}

/// The boundary of a message that may have several parts. `None` for other messages.
pub(crate) fn parts_boundary<'a>(source: &str, message: &'a Message) -> Result<Option<&'a str>, Refusal> {
    if !message.content_type.starts_with("multipart/") {
        return Ok(None);
    }
    let missing = || Refusal::at_byte(source, 0, "the message's Content-Type has no boundary");
    message.boundary.as_deref().ok_or_else(missing).map(Some)
}

fn without_any_block(source: &str, found: &mime::Parts) -> Vec<Edit> {
    let end = found.close.unwrap_or(source.len());
    let mut edits = Vec::new();
    for (index, part) in found.parts.iter().enumerate() {
        let next = found.parts.get(index + 1).map_or(end, |next| next.boundary);
        match without_blocks(source, part.bytes.clone(), Blocks::All, DEPTH) {
            // File names contain the numbers of the parts, so only the last one may be removed.
            Ok(Change::Nothing) if index + 1 == found.parts.len() && found.close.is_some() => {
                edits.push((part.boundary..next, String::new()));
            }
            Ok(Change::Edits(inner)) => edits.extend(inner),
            _ => {}
        }
    }
    edits
}

/// Removes the blocks to drop. `None` if the message has none of them.
pub(crate) fn remove(source: &str, drop: Blocks) -> Result<Option<String>, Refusal> {
    match without_blocks(source, 0..source.len(), drop, DEPTH)? {
        Change::None => Ok(None),
        Change::Nothing => Ok(Some(String::new())),
        Change::Edits(edits) => {
            let edited = splice(source, &edits);
            Ok(Some(unwrapped(&edited).unwrap_or(edited)))
        }
    }
}

/// The input of [`wrap`] or [`wrap_message`], if only the part with the block was removed from their result.
fn unwrapped(source: &str) -> Option<String> {
    let message = mime::parse(source, 0..source.len());
    let boundary = message.boundary?;
    if !boundary.starts_with(BOUNDARY) || !source.starts_with(&head(&boundary)) {
        return None;
    }
    let found = mime::parts(source, message.body, &boundary);
    let (Some(close), [only]) = (found.close, &found.parts[..]) else { return None };
    if lines::without_break(&source[close..]).len() != boundary.len() + 4 {
        return None;
    }
    let part = &source[only.bytes.clone()];
    match (part.strip_prefix(IN_BASE64), part.strip_prefix(AS_IT_IS)) {
        (Some(encoded), _) => decoded(encoded),
        (None, Some(text)) => Some(text.to_owned()),
        (None, None) => Some(part.to_owned()),
    }
}

/// Effect of dropping blocks on a part.
enum Change {
    /// The part has no such block.
    None,
    /// Nothing is left.
    Nothing,
    Edits(Vec<Edit>),
}

fn without_blocks(source: &str, part: Range<usize>, drop: Blocks, depth: usize) -> Result<Change, Refusal> {
    let message = mime::parse(source, part);
    match &message.boundary {
        Some(boundary) if message.content_type.starts_with("multipart/") => {
            in_parts(source, message.body.clone(), boundary, drop, depth)
        }
        _ => in_leaf(source, &message, drop),
    }
}

fn in_parts(source: &str, body: Range<usize>, boundary: &str, drop: Blocks, depth: usize) -> Result<Change, Refusal> {
    let found = mime::parts(source, body.clone(), boundary);
    let end = found.close.unwrap_or(body.end);
    let mut edits = Vec::new();
    let mut left = found.parts.len();
    for (index, part) in found.parts.iter().enumerate() {
        if depth == 0 {
            break;
        }
        match without_blocks(source, part.bytes.clone(), drop, depth - 1)? {
            Change::None => {}
            Change::Edits(inner) => edits.extend(inner),
            Change::Nothing => {
                let next = found.parts.get(index + 1).map_or(end, |next| next.boundary);
                edits.push((part.boundary..next, String::new()));
                left -= 1;
            }
        }
    }
    match (edits.is_empty(), left) {
        (true, _) => Ok(Change::None),
        (false, 0) => Ok(Change::Nothing),
        (false, _) => Ok(Change::Edits(edits)),
    }
}

fn in_leaf(source: &str, message: &Message, drop: Blocks) -> Result<Change, Refusal> {
    let body = &source[message.body.clone()];
    let content = match message.encoding {
        Encoding::Plain => body.to_owned(),
        Encoding::Base64 => match decoded(body) {
            Some(content) => content,
            None => return Ok(Change::None),
        },
        Encoding::Other => return Ok(Change::None),
    };
    let is_plain = message.encoding == Encoding::Plain;
    let edited = without_blocks_in(&message.content_type, &content, drop).map_err(|refusal| {
        let (first, _) = lines::place(source, message.body.start);
        let line = if is_plain { first + refusal.line - 1 } else { first };
        Refusal { line, ..refusal }
    })?;
    let change = |edited: String| {
        let newline = lines::newline(source);
        if is_plain { edited } else { base64(&edited, newline) + newline }
    };
    Ok(match edited {
        None => Change::None,
        Some(edited) if edited.is_empty() => Change::Nothing,
        Some(edited) => Change::Edits(vec![(message.body.clone(), change(edited))]),
    })
}

/// The content of a part without the blocks to drop. `None` if the part has none of them. The kind of the part is
/// determined like in cloud-init (cloudinit/user_data.py, `_process_msg`).
fn without_blocks_in(content_type: &str, content: &str, drop: Blocks) -> Result<Option<String>, Refusal> {
    let kind = if is_detected(content_type) { kind::detect(content).ok() } else { kind::of_type(content_type) };
    match kind {
        Some(Kind::CloudConfig) => edit::remove(content, drop, Reading::Yaml),
        Some(Kind::Archive) => archive::remove(content, drop),
        Some(Kind::Jinja) if jinja::is_cloud_config(content) == Ok(true) => edit::remove(content, drop, Reading::Jinja),
        _ => Ok(None),
    }
}

/// Whether cloud-init determines the kind of such a part from its content.
pub(crate) fn is_detected(content_type: &str) -> bool {
    matches!(content_type, "text/plain" | "text/x-not-multipart" | "text/x-shellscript")
}

fn base64(content: &str, newline: &str) -> String {
    let encoded = STANDARD.encode(content);
    let lines: Vec<&str> =
        (0..encoded.len()).step_by(LINE).map(|at| &encoded[at..encoded.len().min(at + LINE)]).collect();
    lines.join(newline)
}

fn decoded(body: &str) -> Option<String> {
    String::from_utf8(bytes(body)?).ok()
}

/// Decodes a body in base64. `None` if it is not base64.
pub(crate) fn bytes(body: &str) -> Option<Vec<u8>> {
    let encoded: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    LENIENT.decode(encoded).ok()
}
