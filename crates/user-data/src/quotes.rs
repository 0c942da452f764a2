//! Quoted scalars over several lines. PyYAML lets them continue in any column (yaml/scanner.py,
//! `scan_flow_scalar_spaces`). YAML 1.2 requires a deeper column than the parent's (YAML 1.2.2, 7.3). If the lines are
//! joined, both accept such a scalar.

use std::borrow::Cow;
use std::ops::Range;

/// Most bytes that are parsed again because of such scalars.
const AGAIN: usize = 16 << 20;

/// A document in which the lines of some quoted scalars are joined, with every byte at its place.
pub(crate) struct Text<'a> {
    pub(crate) text: Cow<'a, str>,
    /// The joined scalars, including both quotes.
    pub(crate) joined: Vec<Range<usize>>,
}

impl<'a> Text<'a> {
    /// The document without changes.
    pub(crate) fn new(source: &'a str) -> Self {
        Self { text: Cow::Borrowed(source), joined: Vec::new() }
    }

    /// Joins the lines of the apparent quoted scalar that begins after `from` and ends after `at`. Returns whether the
    /// text has changed and may be parsed again.
    pub(crate) fn join(&mut self, from: usize, at: usize) -> bool {
        let is_too_much = (self.joined.len() + 1).saturating_mul(self.text.len()) > AGAIN;
        let Some(quoted) = around(&self.text, from, at).filter(|_| !is_too_much) else { return false };
        let joined = join(&self.text, &quoted);
        let is_other = joined != self.text;
        self.text = Cow::Owned(joined);
        self.joined.push(quoted);
        is_other
    }
}

/// The quoted scalar that is open at byte `at`, including both quotes, as far as can be known without a parser.
fn around(text: &str, from: usize, at: usize) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let mut index = from;
    let mut before = b' ';
    while index < at {
        let byte = bytes[index];
        let is_begin = matches!(before, b' ' | b'\t' | b'\n' | b'\r' | b'[' | b'{' | b',' | b':');
        match byte {
            b'#' if is_begin => {
                index += bytes[index..].iter().position(|byte| matches!(byte, b'\n' | b'\r'))?;
            }
            b'"' | b'\'' if is_begin => {
                let end = end(bytes, index)?;
                if at < end {
                    return Some(index..end);
                }
                index = end;
            }
            _ => index += 1,
        }
        before = bytes[index - 1];
    }
    None
}

/// End of the quoted scalar that begins at byte `start`.
fn end(bytes: &[u8], start: usize) -> Option<usize> {
    let quote = bytes[start];
    let mut index = start + 1;
    loop {
        let rest = bytes.get(index..).filter(|rest| !rest.is_empty())?;
        index += match rest {
            [b'\\', _, ..] if quote == b'"' => 2,
            [b'\'', b'\'', ..] if quote == b'\'' => 2,
            [byte, ..] if *byte == quote => return Some(index + 1),
            _ => 1,
        };
    }
}

/// Replaces the line breaks in a quoted scalar with spaces, except before a document marker, which is valid anywhere.
fn join(text: &str, quoted: &Range<usize>) -> String {
    let inside = &text[quoted.clone()];
    let mut joined = String::with_capacity(text.len());
    joined.push_str(&text[..quoted.start]);
    for (at, c) in inside.char_indices() {
        let is_mark = || {
            let behind = ["---", "..."].iter().find_map(|mark| inside[at + 1..].strip_prefix(mark));
            behind.is_some_and(|behind| behind.starts_with([' ', '\t', '\n', '\r']))
        };
        joined.push(if matches!(c, '\n' | '\r') && !is_mark() { ' ' } else { c });
    }
    joined.push_str(&text[quoted.end..]);
    joined
}
