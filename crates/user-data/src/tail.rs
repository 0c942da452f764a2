//! The last lines of a document, which decide the meaning of lines that are added after them.
//!
//! A parser reads from left to right. At an entry or item that begins a line, the earlier ones matter only in two ways:
//! which collections are open, in which columns, and what the document has defined (anchors, and handles of tags).
//! Without the earlier entries, the parser is in the same state, so it reads the rest in the same way. If an anchor or
//! a handle is then unknown, it reports an error.

use std::ops::Range;

use crate::document::{Document, Root};

/// The last lines of a document.
pub(crate) struct Tail {
    /// The lines of the last key, if part of its value is left out.
    key: Range<usize>,
    /// Byte offset at which the other lines begin.
    from: usize,
}

impl Tail {
    /// Finds the last lines. `None` if the last entry does not begin a line with its key or dash.
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
            // A part of an entry is parsed before and after the edit, because its meaning is not known yet.
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
