//! What YAML allows and PyYAML, by which cloud-init reads it, does not.

use granit_parser::{Event, ScalarStyle, Span};

use crate::Refusal;
use crate::document::start;

/// Refuses characters that may not stand anywhere (yaml/reader.py, NON_PRINTABLE).
pub(crate) fn refuse_unprintable(source: &str) -> Result<(), Refusal> {
    let is_printable = |c: char| match c {
        '\t' | '\n' | '\r' | '\u{85}' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        c => !c.is_control(),
    };
    match source.char_indices().find(|(_, c)| !is_printable(*c)) {
        Some((at, c)) => {
            let reason = format!("this is not YAML: the character {c:?} may only be written in double quotes, escaped");
            Err(Refusal::at_byte(source, at, reason))
        }
        None => Ok(()),
    }
}

/// Finds tabs outside of quotes, comments and block scalars (yaml/scanner.py, `scan_to_next_token` and `scan_plain_spaces`).
pub(crate) struct Tabs<'a> {
    source: &'a str,
    /// The byte up to which there is none of them.
    looked_at: usize,
}

impl<'a> Tabs<'a> {
    pub(crate) fn new(source: &'a str) -> Self {
        Self { source, looked_at: if source.contains('\t') { 0 } else { source.len() } }
    }

    /// Looks at what is between two scalars. To be called with every event.
    pub(crate) fn refuse(&mut self, event: &Event, span: &Span) -> Result<(), Refusal> {
        let between = match event {
            Event::Scalar(_, ScalarStyle::Plain, ..) => return Ok(()),
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
                // Behind the quote of a scalar a comment needs a space, as it does behind any other character.
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
