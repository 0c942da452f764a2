//! Finds the top-level entries of a YAML document, and their meaning.

use std::ops::Range;

use granit_parser::{Event, ScalarStyle, Span, StructureStyle};
use twox_hash::XxHash3_64;

use crate::events::{refuse, start};
use crate::refusal::Refusal;
use crate::{lines, pyyaml, yaml};
use children::Children;

mod children;

const PHONE_HOME: &str = "phone_home";

/// Kind of a document, by its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// No content.
    Empty,
    /// A block mapping: an entry per line.
    Mapping,
    /// A flow mapping, in braces.
    Braces,
    /// A block sequence: an item per line.
    List,
    /// A flow sequence, in brackets.
    Brackets,
}

/// A document and its entries.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) root: Root,
    /// The entries or items in order.
    pub(crate) entries: Vec<Entry>,
    /// Column of the entries, from 0.
    pub(crate) indent: usize,
    /// The text between the braces or brackets. In a block, from the first entry to the `...` line or the end of the
    /// text.
    pub(crate) inside: Range<usize>,
    /// Column of the root, and column of the last entry's key. None if that key is a block scalar or no scalar.
    pub(crate) columns: (usize, Option<usize>),
    /// Children of the last entry's value, if that is a block collection.
    pub(crate) children: Option<Children>,
}

/// A key of the root and its value, or an item of a list.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// Whether the key is `phone_home`, or an alias of a scalar that is.
    pub(crate) is_phone_home: bool,
    /// The `url` of the value, or the `content` of the item (or the item itself), if that is a scalar.
    pub(crate) field: Option<String>,
    /// The `type` of the item.
    pub(crate) content_type: Option<String>,
    /// Whether the item has merged keys, or a key or a type that is not a literal scalar.
    pub(crate) is_pieced: bool,
    /// Whether cloud-init would take the item for a part of an archive, and fail on it.
    pub(crate) is_unfit: bool,
    /// Range of bytes. In a block: all lines of the entry, from the first byte to the last. In a flow collection: the
    /// entry's own first byte to its last.
    pub(crate) bytes: Range<usize>,
    /// Whether the last node of the value is a `|` or `>` scalar.
    pub(crate) ends_in_block_scalar: bool,
    /// A digest of the events of key and value. Entries with the same meaning have the same digest.
    pub(crate) meaning: u64,
}

/// Parses a document, whose root may be missing, a mapping, or a list.
pub(crate) fn parse(source: &str) -> Result<Document, Refusal> {
    let mut reader: Option<Reader> = None;
    let frame = yaml::read(source, &mut |event, span| {
        match (event, &mut reader) {
            (Event::StreamStart, reader) => *reader = None,
            (event, Some(reader)) => reader.take(event, span),
            (event, reader) => *reader = Some(Reader::new(source, event, span)?),
        }
        Ok(())
    })?;
    let is_list = reader.as_ref().is_some_and(Reader::is_list);
    if let Some(joined) = frame.joined.filter(|_| is_list) {
        // An item is parsed again as a separate text, and joined lines would change it.
        let reason = "if the root is a list, as in an archive, the lines of quoted text must be indented; indent them";
        return Err(Refusal::at_byte(source, joined, reason));
    }
    Ok(reader.map_or_else(|| Document::empty(frame.end), |reader| reader.finish(frame.end)))
}

impl Document {
    /// Refuses a cloud-config whose root is not a mapping.
    pub(crate) fn refuse_list(&self, source: &str) -> Result<(), Refusal> {
        match self.root {
            Root::Empty | Root::Mapping | Root::Braces => Ok(()),
            Root::List | Root::Brackets => {
                let reason = "the root of the document is a list; a cloud-config is a mapping";
                Err(Refusal::at_byte(source, self.inside.start, reason))
            }
        }
    }

    fn empty(end: usize) -> Self {
        Self { root: Root::Empty, entries: Vec::new(), indent: 0, inside: end..end, columns: (0, None), children: None }
    }
}

/// Builds a document from the events after the root's own.
struct Reader<'a> {
    source: &'a str,
    document: Document,
    /// Number of open collections inside the root.
    depth: usize,
    /// Whether the root has been closed.
    closed: bool,
    open: Option<Open>,
    /// End of the last scalar of each entry, in bytes.
    scalar_ends: Vec<usize>,
    /// Anchors in the entries that stay, in order. These are the numbers that the parser gives them.
    anchors: Vec<usize>,
    /// Anchors of scalars with the text `phone_home`, in order.
    words: Vec<usize>,
    /// Anchors of lists and mappings, in order.
    collections: Vec<usize>,
}

/// An incomplete entry.
struct Open {
    entry: Entry,
    /// Number of its complete nodes: two make an entry of a mapping, one an item of a list.
    nodes: usize,
    scalar_end: usize,
    children: Option<Children>,
    /// Number of nodes inside its value so far, if that is a mapping.
    fields: Option<usize>,
    /// The last key of that mapping.
    key: String,
}

impl<'a> Reader<'a> {
    fn new(source: &'a str, event: &Event, span: &Span) -> Result<Self, Refusal> {
        let root = match event {
            Event::Scalar(..) if span.is_empty() => Root::Empty,
            Event::MappingStart(StructureStyle::Block, ..) => Root::Mapping,
            Event::MappingStart(StructureStyle::Flow, ..) => Root::Braces,
            Event::SequenceStart(StructureStyle::Block, ..) => Root::List,
            Event::SequenceStart(StructureStyle::Flow, ..) => Root::Brackets,
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                return Err(refuse(source, span, "the root of the document is an alias"));
            }
            _ => return Err(refuse(source, span, "the root of the document is a scalar")),
        };
        let inside = span.end.byte_offset().unwrap_or_default()..source.len();
        let indent = if root == Root::List { indent_at(source, start(span)) } else { 0 };
        let (closed, columns) = (root == Root::Empty, (span.start.col(), None));
        let document = Document { root, entries: Vec::new(), indent, inside, columns, children: None };
        let (scalar_ends, anchors, words, collections) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Ok(Self { source, document, depth: 0, closed, open: None, scalar_ends, anchors, words, collections })
    }

    fn take(&mut self, event: &Event, span: &Span) {
        let ends = matches!(event, Event::MappingEnd | Event::SequenceEnd);
        if self.closed {
            return;
        }
        if ends && self.depth == 0 {
            self.closed = true;
            if matches!(self.document.root, Root::Braces | Root::Brackets) {
                self.document.inside.end = start(span);
            }
            return;
        }
        let is_list = self.is_list();
        if self.open.is_none() {
            self.open = Some(self.begin(event, span));
            self.document.columns.1 = event.scalar().filter(|(_, style)| !is_block(*style)).map(|_| span.start.col());
        }
        match (event.anchor_id(), event.scalar()) {
            (Some(id), Some((PHONE_HOME, _))) => self.words.push(id),
            (Some(id), None) => self.collections.push(id),
            _ => {}
        }
        let is_collection = match event {
            Event::Alias(id) => self.collections.binary_search(id).is_ok(),
            event => event.scalar().is_none(),
        };
        let Some(open) = &mut self.open else { return };
        open.note_field(event, self.depth, is_list, is_collection);
        match (self.depth, &mut open.children) {
            (0, children) if open.nodes == 1 => *children = Children::new(event, span),
            (1, Some(children)) if !ends => children.note(start(span)),
            _ => {}
        }
        match event {
            Event::MappingStart(..) | Event::SequenceStart(..) => self.depth += 1,
            _ if ends => self.depth -= 1,
            _ => {}
        }
        open.note_meaning(event, &mut self.anchors);
        open.note_end(event, span);
        open.nodes += usize::from(self.depth == 0);
        if let Some(open) = self.open.take_if(|open| open.nodes == if is_list { 1 } else { 2 }) {
            self.document.entries.push(open.entry);
            self.document.children = open.children;
            self.scalar_ends.push(open.scalar_end);
        }
    }

    fn is_list(&self) -> bool {
        matches!(self.document.root, Root::List | Root::Brackets)
    }

    fn begin(&self, event: &Event, span: &Span) -> Open {
        let is_word = match event {
            Event::Alias(id) => self.words.binary_search(id).is_ok(),
            event => event.scalar().is_some_and(|(key, _)| key == PHONE_HOME),
        };
        let is_phone_home = !self.is_list() && is_word;
        let entry = Entry { is_phone_home, bytes: start(span)..start(span), ..Entry::default() };
        Open { entry, nodes: 0, scalar_end: start(span), children: None, fields: None, key: String::new() }
    }

    fn finish(mut self, end: usize) -> Document {
        self.document.inside.end = self.document.inside.end.min(end);
        if matches!(self.document.root, Root::Mapping | Root::List) {
            self.widen_to_lines(end);
        }
        self.document
    }

    /// Extends the entries to whole lines. Comments and blank lines after an entry belong to the next one, unless a
    /// scalar of the entry includes them.
    fn widen_to_lines(&mut self, end: usize) {
        if let (Root::Mapping, Some(first)) = (&self.document.root, self.document.entries.first()) {
            self.document.indent = indent_at(self.source, first.bytes.start);
        }
        let is_list = self.document.root == Root::List;
        let line = |entry: &Entry| match is_list {
            true => item_start(self.source, entry.bytes.start, self.document.indent),
            false => lines::line_start(self.source, entry.bytes.start),
        };
        let mut floor = 0;
        let in_order = |entry: &Entry| {
            floor = line(entry).max(floor);
            floor
        };
        let starts: Vec<usize> = self.document.entries.iter().map(in_order).collect();
        self.document.inside = starts.first().copied().unwrap_or(end)..end;
        for (index, entry) in self.document.entries.iter_mut().enumerate() {
            let limit = starts.get(index + 1).copied().unwrap_or(end).max(starts[index]);
            let is_behind = |line: &Range<usize>| {
                let content = self.source[line.clone()].trim_start();
                line.start >= self.scalar_ends[index] && (content.is_empty() || content.starts_with('#'))
            };
            let mut lines = lines::lines_backwards(self.source, starts[index]..limit).skip_while(is_behind);
            let last = lines.next().map_or(starts[index], |line| line.end);
            entry.bytes = starts[index]..last;
        }
    }
}

impl Open {
    /// Adds an event to the meaning, without its position. Anchors are numbered by their order. Those of a phone_home
    /// do not count: it is removed, and the order of the others stays.
    fn note_meaning(&mut self, event: &Event, anchors: &mut Vec<usize>) {
        let anchor = event.anchor_id();
        anchors.extend(anchor.filter(|_| !self.entry.is_phone_home));
        let kind = match event {
            Event::Scalar(_, ScalarStyle::Plain, ..) => 0,
            Event::Scalar(..) => 1,
            Event::SequenceStart(..) => 2,
            Event::SequenceEnd => 3,
            Event::MappingStart(..) => 4,
            Event::MappingEnd => 5,
            _ => 6,
        };
        let tag = event.tag().map(|tag| tag.parts());
        self.add_meaning(&[kind, u8::from(anchor.is_some()), u8::from(tag.is_some())]);
        if let Some((handle, suffix)) = tag {
            self.add_meaning(handle.as_bytes());
            self.add_meaning(suffix.as_bytes());
        }
        match event {
            Event::Alias(id) => {
                let order = anchors.binary_search(id).map_or(u64::MAX, |order| order as u64);
                self.add_meaning(&order.to_le_bytes());
            }
            Event::Scalar(value, ..) => self.add_meaning(value.as_bytes()),
            _ => {}
        }
    }

    fn add_meaning(&mut self, bytes: &[u8]) {
        self.entry.meaning = XxHash3_64::oneshot_with_seed(self.entry.meaning, bytes);
    }

    fn note_end(&mut self, event: &Event, span: &Span) {
        let end = span.end.byte_offset().unwrap_or_default();
        self.entry.bytes.end = self.entry.bytes.end.max(end);
        if let Some((_, style)) = event.scalar() {
            self.entry.ends_in_block_scalar = is_block(style);
            if !span.is_empty() {
                self.scalar_end = self.scalar_end.max(end);
            }
        }
    }

    /// Stores the `url` of an entry's mapping, or the `content` and `type` of an item. An item that is a scalar is
    /// stored itself.
    fn note_field(&mut self, event: &Event, depth: usize, is_list: bool, is_collection: bool) {
        let scalar = event.scalar().map(|(value, _)| value);
        if depth == 0 && (is_list || self.nodes == 1) {
            self.fields = matches!(event, Event::MappingStart(..)).then_some(0);
            // cloud-init skips an item that is a number or a truth value.
            let is_text = !matches!(event, Event::Scalar(text, ScalarStyle::Plain, _, None) if !pyyaml::is_text(text));
            self.entry.field = scalar.filter(|_| is_list && is_text).map(str::to_owned);
        }
        let (1, Some(fields), false) = (depth, self.fields, matches!(event, Event::MappingEnd)) else { return };
        let is_key = fields % 2 == 0;
        if is_key {
            self.key.clear();
            self.key.push_str(scalar.unwrap_or_default());
        } else if self.key == if is_list { "content" } else { "url" } {
            self.entry.field = scalar.map(str::to_owned);
        } else if is_list && self.key == "type" {
            self.entry.content_type = scalar.map(str::to_owned);
            self.entry.is_pieced |= scalar.is_none();
        }
        self.entry.is_pieced |= is_key && (scalar.is_none() || self.key == "<<");
        self.entry.is_unfit |= is_list && is_unfit(&self.key, event, is_key, is_collection);
        self.fields = Some(fields + 1);
    }
}

/// Whether cloud-init fails on a part with this key, or with this value of the key. It then drops all parts
/// (cloudinit/user_data.py, `_explode_archive`).
fn is_unfit(key: &str, event: &Event, is_key: bool, is_collection: bool) -> bool {
    let is_text = match event {
        Event::Scalar(text, ScalarStyle::Plain, _, None) => pyyaml::is_text(text),
        // The content of a merge key is not checked.
        Event::Alias(_) if key == "<<" => true,
        _ => !is_collection,
    };
    let is_null = event.scalar().is_some_and(|(text, _)| matches!(text, "" | "~" | "null" | "Null" | "NULL"));
    match key.to_ascii_lowercase().as_str() {
        _ if is_key => !is_text,
        "filename" | "launch-index" | "content-disposition" | "content-type" | "number-attachments" => false,
        "type" => !is_null && (!is_text || event.scalar().is_some_and(|(text, _)| !text.contains('/'))),
        "content" => !is_text,
        _ => !is_text && !is_null,
    }
}

fn is_block(style: ScalarStyle) -> bool {
    matches!(style, ScalarStyle::Literal | ScalarStyle::Folded)
}

fn indent_at(source: &str, at: usize) -> usize {
    source[lines::line_start(source, at)..].bytes().take_while(|byte| *byte == b' ').count()
}

/// Start of the line with the dash of an item. For a block scalar, the parser gives the position of its text.
fn item_start(source: &str, at: usize, indent: usize) -> usize {
    let mut start = lines::line_start(source, at);
    while start > 0 && source.as_bytes().get(start + indent) != Some(&b'-') {
        start = lines::line_start(source, start - 1);
    }
    start
}
