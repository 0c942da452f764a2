//! Refuses valid YAML that PyYAML, the parser of cloud-init, does not accept.

mod nodes;
mod scalars;

use granit_parser::{Event, ScalarStyle, Span};

use crate::document::start;
use crate::{Refusal, text};
pub(crate) use nodes::Nodes;
pub(crate) use scalars::is_text;

/// Refuses characters that are not allowed anywhere (yaml/reader.py, NON_PRINTABLE).
pub(crate) fn refuse_unprintable(source: &str) -> Result<(), Refusal> {
    let is_printable = |c: char| match c {
        '\t' | '\n' | '\r' | '\u{85}' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        c => !c.is_control(),
    };
    // In UTF-8, no other character begins with one of these bytes.
    let may_begin = |byte: u8| matches!(byte, 0..=0x1f | 0x7f | 0xc2 | 0xef);
    let starts = source.bytes().enumerate().filter(|(_, byte)| may_begin(*byte));
    let mut suspects = starts.filter_map(|(at, _)| Some((at, source.get(at..)?.chars().next()?)));
    // At the beginning of a line YAML skips a byte order mark, but PyYAML does not.
    let begins_line = |at: usize| at == 0 || matches!(source.as_bytes()[at - 1], b'\n' | b'\r');
    match suspects.find(|(at, c)| !is_printable(*c) || *c == '\u{feff}' && begins_line(*at)) {
        Some((at, c)) => {
            let reason = format!("this is not YAML: the character {c:?} may only be written in double quotes, escaped");
            Err(Refusal::at_byte(source, at, reason))
        }
        None => Ok(()),
    }
}

/// Refuses directives without a plain name, and a `...` before anything has begun (yaml/scanner.py,
/// `scan_directive_name`; yaml/parser.py, `parse_implicit_document_start`). Only the text before the document is
/// checked.
pub(crate) fn refuse_before_document(source: &str, end: usize) -> Result<(), Refusal> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    for line in text::lines(source, 0..end) {
        let content = text::without_break(&source[line.clone()]);
        let behind = content.strip_prefix('%').map(|name| (name, name.trim_start_matches(is_word)));
        let is_name =
            behind.is_none_or(|(name, behind)| name != behind && (behind.is_empty() || behind.starts_with(' ')));
        let reason = match (is_name, content.starts_with("...")) {
            (true, false) => continue,
            (true, true) => "this is not YAML to cloud-init: a document ends before there is a document",
            (false, _) => {
                "this is not YAML to cloud-init: the name of a directive is letters of ASCII, digits, - and _"
            }
        };
        return Err(Refusal::at_byte(source, line.start, reason));
    }
    Ok(())
}

/// Finds tabs outside quotes, comments and block scalars (yaml/scanner.py, `scan_to_next_token` and
/// `scan_plain_spaces`).
pub(crate) struct Tabs<'a> {
    source: &'a str,
    /// The text before this byte has been checked.
    looked_at: usize,
}

impl<'a> Tabs<'a> {
    pub(crate) fn new(source: &'a str) -> Self {
        Self { source, looked_at: if source.contains('\t') { 0 } else { source.len() } }
    }

    /// Checks the text between two scalars. Must be called for every event.
    pub(crate) fn refuse(&mut self, event: &Event, span: &Span) -> Result<(), Refusal> {
        let between = match event {
            Event::Scalar(_, ScalarStyle::Plain, ..) => return Ok(()),
            // For an empty block scalar, the parser gives the position after the `|`.
            Event::Scalar(value, ScalarStyle::Literal | ScalarStyle::Folded, ..)
                if value.bytes().all(|byte| byte == b'\n') =>
            {
                self.looked_at..span.end.byte_offset().unwrap_or_default()
            }
            Event::Scalar(..) => self.looked_at..start(span),
            Event::StreamEnd => self.looked_at..self.source.len(),
            _ => return Ok(()),
        };
        let text = self.source.get(between.clone()).unwrap_or_default();
        self.looked_at = self.looked_at.max(span.end.byte_offset().unwrap_or_default());
        let mut in_comment = false;
        let mut before = '\n';
        for (at, c) in text.char_indices() {
            match c {
                '\n' | '\r' => in_comment = false,
                // A comment needs a space before it, also after the closing quote of a scalar.
                '#' if matches!(before, '\n' | '\r' | ' ') => in_comment = true,
                '\t' if !in_comment => {
                    let reason = "this is not YAML to cloud-init: a tab may stand in quotes, comments and text blocks; use spaces";
                    return Err(Refusal::at_byte(self.source, between.start + at, reason));
                }
                _ => {}
            }
            before = c;
        }
        Ok(())
    }
}
