//! The lines of a document that decide what comes of lines put behind it.
//!
//! A parser reads from left to right. Where an entry or an item begins on a line of its own, it knows of those before it only
//! which collections are open, in which columns, and what is defined for the document (anchors, and handles of tags). It is in the
//! same state when they are not there, so it reads all from there on alike; and if it does not know an anchor or a handle then, it
//! says so.

use std::ops::Range;

use granit_parser::{Event, Span, StructureStyle};

use crate::document::{Document, Root};
use crate::text;

/// What a value in lines consists of: items, or entries with a key and a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Children {
    is_list: bool,
    /// At which the value begins.
    column: usize,
    nodes: usize,
    /// Bytes at which the first item or key begins, and the last one.
    first: usize,
    last: usize,
}

impl Children {
    /// Of the value that begins with this event.
    pub(crate) fn new(event: &Event, span: &Span) -> Option<Self> {
        let is_list = match event {
            Event::SequenceStart(StructureStyle::Block, ..) => true,
            Event::MappingStart(StructureStyle::Block, ..) => false,
            _ => return None,
        };
        Some(Self { is_list, column: span.start.col(), nodes: 0, first: 0, last: 0 })
    }

    /// To be called with every node directly in the value.
    pub(crate) fn note(&mut self, at: usize) {
        if self.is_list || self.nodes.is_multiple_of(2) {
            self.first = if self.nodes == 0 { at } else { self.first };
            self.last = at;
        }
        self.nodes += 1;
    }

    /// Where the lines of the first and the last of them begin, if nothing but the margin and a dash stand before both.
    fn lines(&self, source: &str) -> Option<(usize, usize)> {
        let plain = |at: usize| {
            let line = text::line_start(source, at);
            let before = source.get(line..at)?;
            let margin = match self.is_list {
                true => before.trim_end_matches(' ').strip_suffix('-').filter(|_| before.ends_with(' '))?,
                false => before,
            };
            margin.bytes().all(|byte| byte == b' ').then_some((line, margin.len()))
        };
        let ((first, column), (last, other)) = plain(self.first).zip(plain(self.last))?;
        // A list in the column of its key begins elsewhere to the parser; but its dashes are seen.
        (column == other && (self.is_list || column == self.column)).then_some((first, last))
    }
}

/// What is left of a document without what comes before its last lines.
pub(crate) struct Tail {
    /// The lines of the last key, if some of its value is left out.
    key: Range<usize>,
    /// Where the rest begins.
    from: usize,
}

impl Tail {
    /// `None` where the last entry does not begin a line with its key or its dash.
    pub(crate) fn of(source: &str, document: &Document) -> Option<Self> {
        let start = document.entries.last()?.bytes.start;
        let content = source.get(start..)?.strip_prefix(&" ".repeat(document.indent))?;
        let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '"' | '\'');
        let columns = (document.indent, Some(document.indent));
        let is_plain = match document.root {
            // Of a key behind a question mark the parser gives the place, and of a block scalar that of its text.
            Root::Mapping => content.starts_with(is_key) && document.columns == columns,
            Root::List => content.starts_with("- "),
            Root::Empty | Root::Braces | Root::Brackets => false,
        };
        let children = document.children.and_then(|children| children.lines(source));
        let tail = match children {
            // Of a part the meaning is not known yet, so it is parsed twice.
            Some((first, last)) if start < first && last - first > source.len() - last => {
                Self { key: start..first, from: last }
            }
            _ => Self { key: start..start, from: start },
        };
        is_plain.then_some(tail)
    }

    /// Whether the last entry is there as a whole.
    pub(crate) fn has_last_entry(&self) -> bool {
        self.key.is_empty()
    }

    /// What is left of the document, or of one that differs from it only behind its last entry.
    pub(crate) fn text(&self, document: &str) -> String {
        [&document[self.key.clone()], &document[self.from..]].concat()
    }
}
