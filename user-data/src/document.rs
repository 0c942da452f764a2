//! Where the top-level entries of a YAML document are, and what they mean.

use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, Span, StructureStyle};

use crate::Refusal;

const PHONE_HOME: &str = "phone_home";

/// A document whose root is a block mapping, or that has no content at all.
#[derive(Debug)]
pub(crate) struct Document {
    /// The entries of the root in order.
    pub(crate) entries: Vec<Entry>,
    /// Column of the root's keys, from 0.
    pub(crate) indent: usize,
    /// Byte at which the document's content ends: the `...` line, or the end of the text.
    pub(crate) end: usize,
}

/// A key of the root and its value.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The key, when it is a scalar.
    key: Option<String>,
    /// Line and column of the key, from 1.
    pub(crate) place: (usize, usize),
    /// Its lines, from the first byte of the first to the last byte of the last.
    pub(crate) bytes: Range<usize>,
    /// The last node of the value is a `|` or `>` scalar.
    pub(crate) ends_in_block_scalar: bool,
    /// Key and value as events; equal when they mean the same.
    pub(crate) meaning: Vec<String>,
}

impl Entry {
    pub(crate) fn is_phone_home(&self) -> bool {
        self.key.as_deref() == Some(PHONE_HOME)
    }
}

type Spanned<'a> = (Event<'a>, Span);

/// Parses user-data that starts with the cloud-config header.
pub(crate) fn parse(text: &str) -> Result<Document, Refusal> {
    let events = content_events(text)?;
    let end = document_end(text, &events);
    let nodes: Vec<&Spanned> =
        events.iter().filter(|(event, _)| !matches!(event, Event::DocumentStart(..) | Event::DocumentEnd)).collect();
    match nodes.first() {
        None => Ok(Document { entries: Vec::new(), indent: 0, end }),
        Some((Event::Scalar(..), span)) if span.is_empty() => Ok(Document { entries: Vec::new(), indent: 0, end }),
        Some((Event::MappingStart(StructureStyle::Block, ..), _)) => {
            let indent = nodes.get(1).map_or(0, |(_, span)| line_indent(text, start(span)));
            Ok(Document { entries: entries(text, &nodes, end), indent, end })
        }
        Some((event, span)) => Err(refuse(span, &format!("the root of the document is {}", describe(event)))),
    }
}

/// Every event but comments and the stream's own, of a text that holds at most one document.
fn content_events(text: &str) -> Result<Vec<Spanned<'_>>, Refusal> {
    let mut events = Vec::new();
    let mut documents = 0;
    for next in Parser::new_from_str(text) {
        let (event, span) = next.map_err(|error| {
            let (line, column) = (error.marker().line(), error.marker().col() + 1);
            Refusal::at(line, column, format!("this is not YAML: {}", error.info()))
        })?;
        if matches!(event, Event::DocumentStart(..)) {
            documents += 1;
            if documents == 2 {
                return Err(refuse(&span, "a second document starts; cloud-init reads only one"));
            }
        }
        if !matches!(event, Event::StreamStart | Event::StreamEnd | Event::Comment(..)) {
            events.push((event, span));
        }
    }
    Ok(events)
}

fn document_end(text: &str, events: &[Spanned]) -> usize {
    let explicit = events.iter().find(|(event, _)| matches!(event, Event::DocumentEnd)).map(|(_, span)| start(span));
    explicit.filter(|&at| text[at..].starts_with("...")).unwrap_or(text.len())
}

/// Splits the events of a root mapping into its entries. `nodes` starts with the root's own start.
fn entries(text: &str, nodes: &[&Spanned], end: usize) -> Vec<Entry> {
    let groups = group(&nodes[1..nodes.len().saturating_sub(1)]);
    let starts: Vec<usize> = groups.iter().map(|group| line_start(text, start(&group[0].1))).collect();
    let mut anchors = Vec::new();
    groups
        .iter()
        .enumerate()
        .map(|(index, group)| {
            let limit = starts.get(index + 1).copied().unwrap_or(end);
            let (first, span) = group[0];
            let key = first.scalar().map(|(key, _)| key.to_owned());
            // Anchors of a phone_home are not counted: it goes away, and the order of the others stays.
            let mut own = Vec::new();
            let anchors = if key.as_deref() == Some(PHONE_HOME) { &mut own } else { &mut anchors };
            let last_scalar = group.iter().rev().find_map(|(event, _)| event.scalar());
            Entry {
                key,
                place: (span.start.line(), span.start.col() + 1),
                bytes: starts[index]..entry_end(text, group, starts[index], limit),
                ends_in_block_scalar: matches!(last_scalar, Some((_, ScalarStyle::Literal | ScalarStyle::Folded))),
                meaning: group.iter().map(|(event, _)| meaning(event, anchors)).collect(),
            }
        })
        .collect()
}

/// Groups a mapping's events by two nodes: a key and its value.
fn group<'a, 'b>(nodes: &'b [&'a Spanned<'a>]) -> Vec<&'b [&'a Spanned<'a>]> {
    let mut groups = Vec::new();
    let (mut depth, mut complete, mut from) = (0_usize, 0, 0);
    for (index, (event, _)) in nodes.iter().enumerate() {
        match event {
            Event::MappingStart(..) | Event::SequenceStart(..) => depth += 1,
            Event::MappingEnd | Event::SequenceEnd => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            complete += 1;
        }
        if complete == 2 {
            groups.push(&nodes[from..=index]);
            (complete, from) = (0, index + 1);
        }
    }
    groups
}

/// The end of an entry's last line. Comments and blank lines after it belong to what follows, unless a scalar of the
/// entry reaches over them.
fn entry_end(text: &str, group: &[&Spanned], from: usize, limit: usize) -> usize {
    let scalars = group.iter().filter(|(event, span)| event.scalar().is_some() && !span.is_empty());
    let scalar_end = scalars.filter_map(|(_, span)| span.end.byte_offset()).max().unwrap_or(from).min(limit);
    let mut end = from;
    let mut at = from;
    for line in text[from..limit].split_inclusive('\n') {
        let content = line.trim_start();
        let covered = at < scalar_end;
        at += line.len();
        if covered || !(content.is_empty() || content.starts_with('#')) {
            end = at;
        }
    }
    end
}

/// An event without its place, anchors numbered by their order among the entries looked at.
fn meaning(event: &Event, anchors: &mut Vec<usize>) -> String {
    if let Some(id) = event.anchor_id() {
        anchors.push(id);
    }
    match event {
        Event::Alias(id) => format!("alias {:?}", anchors.iter().rev().position(|anchor| anchor == id)),
        Event::Scalar(value, style, anchor, tag) => {
            format!("scalar {value:?} plain={} anchor={} {tag:?}", *style == ScalarStyle::Plain, *anchor != 0)
        }
        Event::MappingStart(_, anchor, tag) => format!("mapping anchor={} {tag:?}", *anchor != 0),
        Event::SequenceStart(_, anchor, tag) => format!("sequence anchor={} {tag:?}", *anchor != 0),
        other => format!("{other:?}"),
    }
}

fn describe(event: &Event) -> &'static str {
    match event {
        Event::MappingStart(StructureStyle::Flow, ..) => {
            "a mapping in braces; write it as \"key: value\" lines so that phone_home can be added"
        }
        Event::SequenceStart(..) => "a list; a cloud-config is a mapping",
        Event::Alias(_) | Event::UnresolvedAlias(_) => "an alias; a cloud-config is a mapping",
        _ => "a scalar; a cloud-config is a mapping",
    }
}

fn refuse(span: &Span, reason: &str) -> Refusal {
    Refusal::at(span.start.line(), span.start.col() + 1, reason)
}

fn start(span: &Span) -> usize {
    span.start.byte_offset().unwrap_or_default()
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

fn line_indent(text: &str, at: usize) -> usize {
    text[line_start(text, at)..].chars().take_while(|c| *c == ' ').count()
}
