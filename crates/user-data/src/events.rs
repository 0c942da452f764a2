//! YAML as events with positions.
//!
//! The parser is generic over its input, so it would be compiled in each crate that calls it. All crates read YAML
//! events through this module, so that a program contains the parser once.

use granit_parser::{ErrorKind, Event, Options, Parser, Span, StrInput};

use crate::refusal::Refusal;

/// The events of a text, up to its end or to invalid YAML.
pub struct Events<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// The place of invalid YAML, if the events ended there.
    pub(crate) stopped: Option<Stopped>,
}

/// A place of invalid YAML.
#[derive(Clone, Copy)]
pub(crate) struct Stopped {
    /// Offset in bytes.
    pub(crate) at: usize,
    /// A quoted scalar continues in a column that YAML 1.2 does not allow.
    pub(crate) in_quotes: bool,
}

impl<'a> Events<'a> {
    /// Reads a text.
    pub fn new(text: &'a str, options: Options) -> Self {
        Self { parser: Parser::new_from_str_with_options(text, options), stopped: None }
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Result<(Event<'a>, Span), Refusal>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.parser.next_event()?;
        Some(next.map_err(|error| {
            let in_quotes = matches!(error.kind(), ErrorKind::TabInIndentation | ErrorKind::InvalidQuotedScalarIndent);
            self.stopped = Some(Stopped { at: error.marker().byte_offset().unwrap_or_default(), in_quotes });
            let (line, column) = (error.marker().line(), error.marker().col() + 1);
            Refusal { line, column, reason: format!("this is not YAML: {}", error.info()) }
        }))
    }
}

/// Offset of the first byte of a span.
pub(crate) fn start(span: &Span) -> usize {
    span.start.byte_offset().unwrap_or_default()
}

pub(crate) fn refuse(source: &str, span: &Span, reason: &str) -> Refusal {
    Refusal::at_byte(source, start(span), reason)
}
