//! Refuses nodes that PyYAML cannot construct. cloud-init would then drop the whole cloud-config.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use granit_parser::{Event, ScalarStyle, Span, StructureStyle};

use super::scalars;
use crate::Refusal;
use crate::document::refuse;

const YAML: &str = "tag:yaml.org,2002:";
/// Deepest nesting of collections that cloud-init can write. Python limits recursion.
const DEPTH: usize = 255;

const NO_MAPPING: &str = "cloud-init merges mappings only: behind << there has to be one, or its alias";
const NO_PAIR: &str = "cloud-init takes nothing but mappings of one key into a list with this tag";
const SPLIT_KEY: &str = "within brackets and braces cloud-init takes a key and its colon only from one line";
const BARE: &str = "cloud-init makes nothing of a bare = or << here; put it in quotes";

/// Finds such nodes among the events of a document (yaml/composer.py, yaml/constructor.py and cloudinit/safeyaml.py).
pub(crate) struct Nodes<'a> {
    source: &'a str,
    /// Quoted scalars whose lines are joined for the parser, and how many of them have been seen.
    joined: &'a [Range<usize>],
    seen: usize,
    open: Vec<Open>,
    /// The kind of node of each anchor, by the parser's numbers.
    kinds: Vec<Kind>,
    /// The anchors by name. The type is that of the parser's own map, so that the program contains its code once.
    names: BTreeMap<Cow<'a, str>, usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Scalar,
    Mapping,
    /// A list that contains only mappings.
    Mappings,
    List,
}

/// Allowed items of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Items {
    All,
    Mappings,
    /// Mappings with one key.
    Pairs,
}

/// An open collection.
struct Open {
    kind: Kind,
    anchor: Option<usize>,
    is_flow: bool,
    items: Items,
    /// Whether it is an item of a list that allows only mappings with one key.
    is_pair: bool,
    /// Number of its nodes so far; in a mapping, keys and values alternate, keys first.
    nodes: usize,
    /// Whether the last key was `<<`.
    merges: bool,
}

impl<'a> Nodes<'a> {
    pub(crate) fn new(source: &'a str, joined: &'a [Range<usize>]) -> Self {
        Self { source, joined, seen: 0, open: Vec::new(), kinds: Vec::new(), names: BTreeMap::new() }
    }

    /// Must be called for every event.
    pub(crate) fn refuse(&mut self, event: &Event<'a>, span: &Span) -> Result<(), Refusal> {
        let problem = match event {
            Event::MappingEnd | Event::SequenceEnd => self.close(),
            Event::Anchor(id, name) => self.name_problem(*id, name.clone(), span),
            event if event.is_node() => {
                let tag = event.tag().map(|tag| [tag.handle(), tag.suffix()].concat());
                let tag = tag.as_deref();
                if let Some(problem) =
                    tag.and_then(|tag| tag_problem(event, span, self.source, self.open.is_empty(), tag))
                {
                    let tag = Span::empty(span.tag_start().unwrap_or(span.start));
                    return Err(refuse(self.source, &tag, problem));
                }
                self.take(event, span, tag)
            }
            _ => None,
        };
        problem.map_or(Ok(()), |problem| Err(refuse(self.source, span, problem)))
    }

    /// Must be called after the last event. Refuses joined lines that did not turn out to be a quoted scalar.
    pub(crate) fn refuse_lines_joined_elsewhere(&self) -> Result<(), Refusal> {
        match self.joined.first() {
            Some(first) if self.seen < self.joined.len() => {
                let reason =
                    "this is not YAML: a text in quotes goes on in a column where it may not; indent its lines";
                Err(Refusal::at_byte(self.source, first.start, reason))
            }
            _ => Ok(()),
        }
    }

    fn take(&mut self, event: &Event, span: &Span, tag: Option<&str>) -> Option<&'static str> {
        let kind = self.kind(event);
        let text = implicit(event, tag);
        // Texts that have a special meaning in PyYAML.
        let bare = text.filter(|text| matches!(*text, "=" | "<<"));
        let problem = text.map_or_else(|| explicit_problem(event, tag), scalars::plain_problem);
        let is_joined = self.is_joined(event, span);
        self.seen += usize::from(is_joined);
        let is_split_key = is_joined && self.open.last().is_some_and(Open::is_key);
        let problem = problem.or(is_split_key.then_some("cloud-init takes a key only from one line"));
        let problem = problem.or_else(|| self.place_problem(event, span, kind, bare.is_some()));
        let (items, is_pair) = self.asked(tag, kind);
        if let Some(parent) = self.open.last_mut() {
            let is_key = parent.is_key();
            parent.nodes += 1;
            parent.merges = is_key && bare == Some("<<");
            if parent.kind == Kind::Mappings && kind != Kind::Mapping {
                parent.kind = Kind::List;
            }
        }
        let anchor = event.anchor_id();
        // An incomplete list may still get other items.
        self.set_kind(anchor, if kind == Kind::Mappings { Kind::List } else { kind });
        if let Event::MappingStart(style, ..) | Event::SequenceStart(style, ..) = event {
            let is_flow = *style == StructureStyle::Flow;
            self.open.push(Open { kind, anchor, is_flow, items, is_pair, nodes: 0, merges: false });
        }
        let is_deep = self.open.len() > DEPTH;
        problem.or(is_deep.then_some("more than 255 lists and mappings in one another are too many for cloud-init"))
    }

    fn kind(&self, event: &Event) -> Kind {
        match event {
            Event::MappingStart(..) => Kind::Mapping,
            Event::SequenceStart(..) => Kind::Mappings,
            Event::Alias(id) => self.kinds.get(*id).copied().unwrap_or(Kind::Scalar),
            _ => Kind::Scalar,
        }
    }

    fn set_kind(&mut self, anchor: Option<usize>, kind: Kind) {
        let Some(id) = anchor else { return };
        if self.kinds.len() <= id {
            self.kinds.resize(id + 1, Kind::Scalar);
        }
        self.kinds[id] = kind;
    }

    /// The allowed items of a new collection, and whether it must be a mapping with one key.
    fn asked(&self, tag: Option<&str>, kind: Kind) -> (Items, bool) {
        let parent = self.open.last();
        let is_merged = kind != Kind::Mapping && parent.is_some_and(|parent| parent.merges);
        let items = match tag.and_then(|tag| tag.strip_prefix(YAML)) {
            Some("omap" | "pairs") => Items::Pairs,
            _ if is_merged => Items::Mappings,
            _ => Items::All,
        };
        (items, parent.is_some_and(|parent| parent.items == Items::Pairs))
    }

    /// Whether a node is a quoted scalar whose lines are joined for the parser.
    fn is_joined(&self, event: &Event, span: &Span) -> bool {
        let is_quoted = matches!(event, Event::Scalar(_, ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted, ..));
        is_quoted && self.joined.iter().any(|joined| span.byte_range().as_ref() == Some(joined))
    }

    fn place_problem(&self, event: &Event, span: &Span, kind: Kind, is_bare: bool) -> Option<&'static str> {
        let parent = self.open.last()?;
        let is_key = parent.is_key();
        if is_key && kind != Kind::Scalar {
            return Some("cloud-init cannot take a list or a mapping for a key");
        }
        if parent.merges && !matches!(kind, Kind::Mapping | Kind::Mappings)
            || parent.items == Items::Mappings && kind != Kind::Mapping
        {
            return Some(NO_MAPPING);
        }
        if parent.items == Items::Pairs && !matches!(event, Event::MappingStart(..)) {
            return Some(NO_PAIR);
        }
        if is_bare && (!is_key || parent.is_pair || event.anchor_id().is_some()) {
            return Some(BARE);
        }
        if is_key && span.is_empty() && event.tag().is_none() && event.anchor_id().is_none() {
            return Some("cloud-init takes no key without a text");
        }
        if parent.is_flow { self.flow_problem(event, span, is_key) } else { None }
    }

    /// Why PyYAML does not accept a node in a flow collection.
    fn flow_problem(&self, event: &Event, span: &Span, is_key: bool) -> Option<&'static str> {
        if let Event::Scalar(text, ScalarStyle::Plain, ..) = event
            && (text.starts_with(':') || text.contains('?'))
        {
            return Some(
                "within brackets and braces cloud-init takes no text with a ? or with a : before it; put it in quotes",
            );
        }
        let behind = self.source.get(span.end.byte_offset()?..)?;
        let mut in_comment = false;
        let is_colon_or_other = |c: char| {
            in_comment = c == '#' || in_comment && !matches!(c, '\n' | '\r');
            !(in_comment || c.is_whitespace())
        };
        let lines = behind.find(is_colon_or_other)?;
        let first = span.tag_start().unwrap_or(span.start);
        let is_split = first.line() != span.end.line() || behind[..lines].contains(['\n', '\r']);
        (is_key && is_split && behind[lines..].starts_with(':')).then_some(SPLIT_KEY)
    }

    fn close(&mut self) -> Option<&'static str> {
        let closed = self.open.pop()?;
        self.set_kind(closed.anchor, closed.kind);
        (closed.is_pair && closed.nodes != 2).then_some(NO_PAIR)
    }

    fn name_problem(&mut self, id: usize, name: Cow<'a, str>, span: &Span) -> Option<&'static str> {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        let behind = span.end.byte_offset().and_then(|end| self.source.get(end..)).unwrap_or_default();
        if !is_plain || behind.starts_with(['[', '{']) {
            return Some(
                "cloud-init takes letters of ASCII, digits, - and _ for the name of an anchor, and nothing else",
            );
        }
        let is_of_key =
            self.open.last().is_some_and(|parent| parent.is_flow && parent.kind == Kind::Mapping && !parent.is_key());
        if is_of_key && behind.trim_start_matches(' ').starts_with(['\n', '\r', '#']) {
            return Some(SPLIT_KEY);
        }
        self.names.insert(name, id).map(|_| "cloud-init takes an anchor's name only once; give this one another")
    }
}

impl Open {
    fn is_key(&self) -> bool {
        self.kind == Kind::Mapping && self.nodes.is_multiple_of(2)
    }
}

/// The text of a scalar whose type PyYAML derives from the text.
fn implicit<'e>(event: &'e Event, tag: Option<&str>) -> Option<&'e str> {
    let (text, style) = event.scalar()?;
    tag.map_or(style == ScalarStyle::Plain, |tag| tag == "!").then_some(text)
}

fn explicit_problem(event: &Event, tag: Option<&str>) -> Option<&'static str> {
    let fits = scalars::fits(tag?.strip_prefix(YAML)?, event.scalar()?.0);
    (!fits).then_some("cloud-init cannot make of this what its tag says")
}

/// Why PyYAML does not accept the tag of a node.
fn tag_problem(event: &Event, span: &Span, source: &str, is_root: bool, tag: &str) -> Option<&'static str> {
    let is_mapping = matches!(event, Event::MappingStart(..));
    let is_list = matches!(event, Event::SequenceStart(..));
    let fits = match tag.strip_prefix(YAML) {
        Some("map") => is_mapping,
        Some("seq") => is_list,
        Some("set") => is_mapping && !is_root,
        Some("omap" | "pairs") => is_list && !is_root,
        Some("str" | "null" | "bool" | "int" | "float" | "binary" | "timestamp" | "python/unicode") => {
            !is_mapping && !is_list
        }
        _ => tag == "!",
    };
    if !fits {
        return Some("cloud-init knows no such tag, or not for this; take it away");
    }
    let written = source.get(span.tag_start()?.byte_offset()?..)?;
    let is_of_tag = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'!' | b'-' | b'_' | b':' | b'/');
    let end = match written.starts_with("!<") {
        true => written.find('>').map_or(written.len(), |at| at + 1),
        false => written.bytes().position(|byte| !is_of_tag(byte)).unwrap_or(written.len()),
    };
    let behind = &written[end..];
    let ends = behind.is_empty() || behind.starts_with([' ', '\t', '\n', '\r']);
    (!ends).then_some("cloud-init takes all up to the next space for the tag; put a space behind it")
}
