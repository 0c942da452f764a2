//! The lines of a block collection's children.

use granit_parser::{Event, Span, StructureStyle};

use crate::lines;

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
    /// Starts with the event that begins a collection. None if it is not a block collection.
    pub(crate) fn new(event: &Event, span: &Span) -> Option<Self> {
        let is_list = match event {
            Event::SequenceStart(StructureStyle::Block, ..) => true,
            Event::MappingStart(StructureStyle::Block, ..) => false,
            _ => return None,
        };
        Some(Self { is_list, column: span.start.col(), nodes: 0, first: 0, last: 0 })
    }

    /// Notes a child node at a byte offset. Must be called for every direct child.
    pub(crate) fn note(&mut self, at: usize) {
        if self.is_list || self.nodes.is_multiple_of(2) {
            self.first = if self.nodes == 0 { at } else { self.first };
            self.last = at;
        }
        self.nodes += 1;
    }

    /// Starts of the lines with the first and the last child, if each has only indentation and a dash before it.
    pub(crate) fn lines(&self, source: &str) -> Option<(usize, usize)> {
        let plain = |at: usize| {
            let line = lines::line_start(source, at);
            let before = source.get(line..at)?;
            let margin = match self.is_list {
                true => before.trim_end_matches(' ').strip_suffix('-').filter(|_| before.ends_with(' '))?,
                false => before,
            };
            margin.bytes().all(|byte| byte == b' ').then_some((line, margin.len()))
        };
        let ((first, column), (last, other)) = plain(self.first).zip(plain(self.last))?;
        // For a list in the column of its key, the parser gives another column. But the dashes show the right one.
        (column == other && (self.is_list || column == self.column)).then_some((first, last))
    }
}
