//! The last lines of a document, which decide the meaning of lines that are added after them.
//!
//! A parser reads from left to right. At an entry or item that begins a line, the earlier ones matter only in two ways:
//! which collections are open, in which columns, and what the document has defined (anchors, and handles of tags).
//! Without the earlier entries, the parser is in the same state, so it reads the rest in the same way. If an anchor or
//! a handle is then unknown, it reports an error.

use std::ops::Range;

use granit_parser::{Event, Span, StructureStyle};

use crate::document::{Document, Root};
use crate::text;

/// The children of a block collection: items, or entries with a key and a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Children {
    is_list: bool,
    /// Column of the collection.
    column: usize,
    nodes: usize,
    /// Offset of the first item or key, and of the last one, in bytes.
    first: usize,
    last: usize,
}

impl Children {
    /// For a collection that begins with this event.
    pub(crate) fn new(event: &Event, span: &Span) -> Option<Self> {
        let is_list = match event {
            Event::SequenceStart(StructureStyle::Block, ..) => true,
            Event::MappingStart(StructureStyle::Block, ..) => false,
            _ => return None,
        };
        Some(Self { is_list, column: span.start.col(), nodes: 0, first: 0, last: 0 })
    }

    /// Must be called for every direct child node.
    pub(crate) fn note(&mut self, at: usize) {
        if self.is_list || self.nodes.is_multiple_of(2) {
            self.first = if self.nodes == 0 { at } else { self.first };
            self.last = at;
        }
        self.nodes += 1;
    }

    /// Starts of the lines with the first and the last child, if each has only indentation and a dash before it.
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
        // For a list in the column of its key, the parser gives another column. But the dashes show it.
        (column == other && (self.is_list || column == self.column)).then_some((first, last))
    }
}

/// The last lines of a document.
pub(crate) struct Tail {
    /// The lines of the last key, if part of its value is left out.
    key: Range<usize>,
    /// Where the other lines begin.
    from: usize,
}

impl Tail {
    /// `None` if the last entry does not begin a line with its key or dash.
    pub(crate) fn of(source: &str, document: &Document) -> Option<Self> {
        let start = document.entries.last()?.bytes.start;
        let content = source.get(start..)?.strip_prefix(&" ".repeat(document.indent))?;
        let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '"' | '\'');
        let columns = (document.indent, Some(document.indent));
        let is_plain = match document.root {
            // For a key after a question mark, the parser gives the position of the key; for a block scalar, that of
            // its text.
            Root::Mapping => content.starts_with(is_key) && document.columns == columns,
            Root::List => content.starts_with("- "),
            Root::Empty | Root::Braces | Root::Brackets => false,
        };
        let children = document.children.and_then(|children| children.lines(source));
        let tail = match children {
            // The meaning of a part is not known yet, so a part is parsed twice.
            Some((first, last)) if start < first && last - first > source.len() - last => {
                Self { key: start..first, from: last }
            }
            _ => Self { key: start..start, from: start },
        };
        is_plain.then_some(tail)
    }

    /// Whether the whole last entry is included.
    pub(crate) fn has_last_entry(&self) -> bool {
        self.key.is_empty()
    }

    /// The last lines of the document, or of one that differs only after its last entry.
    pub(crate) fn text(&self, document: &str) -> String {
        [&document[self.key.clone()], &document[self.from..]].concat()
    }
}
