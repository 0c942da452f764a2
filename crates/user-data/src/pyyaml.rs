//! Refuses valid YAML that PyYAML, the parser of cloud-init, does not accept: the forms that people write by mistake.
//! cloud-init drops a cloud-config with any other such form, with the block or without it.

use std::ops::Range;

use granit_parser::{Event, ScalarStyle, Span, StructureStyle};

use crate::events::{refuse, start};
use crate::lines;
use crate::refusal::Refusal;

/// Prefix of YAML's own tags, and those that cloud-init supports (yaml/constructor.py, cloudinit/safeyaml.py).
const YAML: &str = "tag:yaml.org,2002:";
const TAGS: &[&str] = &[
    "map",
    "seq",
    "set",
    "omap",
    "pairs",
    "str",
    "null",
    "bool",
    "int",
    "float",
    "binary",
    "timestamp",
    "python/unicode",
];
/// Deepest nesting of collections that cloud-init can write. Python limits recursion.
const DEPTH: usize = 255;

/// Refuses characters that are not allowed anywhere (yaml/reader.py, NON_PRINTABLE).
pub(crate) fn refuse_unprintable(source: &str) -> Result<(), Refusal> {
    let is_printable = |c: char| match c {
        '\t' | '\n' | '\r' | '\u{85}' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        c => !c.is_control(),
    };
    // In UTF-8, every character that is refused begins with one of these bytes.
    let may_begin = |byte: u8| matches!(byte, 0..=0x1f | 0x7f | 0xc2 | 0xef);
    let starts = source.bytes().enumerate().filter(|(_, byte)| may_begin(*byte));
    let mut suspects = starts.filter_map(|(at, _)| Some((at, source.get(at..)?.chars().next()?)));
    // At the beginning of a line YAML skips a byte order mark, but PyYAML does not.
    let begins_line = |at: usize| at == 0 || matches!(source.as_bytes()[at - 1], b'\n' | b'\r');
    match suspects.find(|(at, c)| !is_printable(*c) || *c == '\u{feff}' && begins_line(*at)) {
        Some((at, c)) => {
            let reason = format!("this is not YAML: the character {c:?} must be escaped, in double quotes");
            Err(Refusal::at_byte(source, at, reason))
        }
        None => Ok(()),
    }
}

/// Refuses a `...` before the document begins at `end` (yaml/parser.py, `parse_implicit_document_start`).
pub(crate) fn refuse_end_before_document(source: &str, end: usize) -> Result<(), Refusal> {
    match lines::lines(source, 0..end).find(|line| source[line.clone()].starts_with("...")) {
        Some(line) => Err(Refusal::at_byte(source, line.start, "this is not YAML: the document ends before it begins")),
        None => Ok(()),
    }
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
                    let reason = "cloud-init accepts tabs only in quotes, comments and text blocks; use spaces";
                    return Err(Refusal::at_byte(self.source, between.start + at, reason));
                }
                _ => {}
            }
            before = c;
        }
        Ok(())
    }
}

/// Whether PyYAML reads a plain scalar as text, rather than as a number, a truth value or null (yaml/resolver.py). The
/// rarer forms of numbers and times count as text.
pub(crate) fn is_text(text: &str) -> bool {
    let words = ["", "~", "null", "true", "false", "yes", "no", "on", "off"];
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_octal = !digits.starts_with('0') || !digits.contains(['8', '9']);
    let is_int = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) && is_octal;
    let is_float = digits.contains('.') && digits.parse::<f64>().is_ok();
    !is_int && !is_float && !words.iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Whether PyYAML reads a plain scalar as a whole number to the base 60, as it does with hardware addresses that have
/// only decimal digits (yaml/resolver.py).
pub(crate) fn is_base_60(text: &str) -> bool {
    let mut groups = text.strip_prefix(['+', '-']).unwrap_or(text).split(':');
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let first = groups.next().is_some_and(|first| first.starts_with(|c| matches!(c, '1'..='9')) && is_number(first));
    let mut others = groups.peekable();
    let is_group = |group: &str| match group.as_bytes() {
        [b'0'..=b'9'] => true,
        [tens, ones] => matches!(tens, b'0'..=b'5') && ones.is_ascii_digit(),
        _ => false,
    };
    first && others.peek().is_some() && others.all(is_group)
}

/// Finds nodes that PyYAML cannot construct: unknown tags, collections as keys, URLs with a query in brackets, and deep
/// nesting.
pub(crate) struct Nodes<'a> {
    source: &'a str,
    /// Quoted scalars whose lines are joined for the parser, and how many of them have been seen.
    joined: &'a [Range<usize>],
    seen: usize,
    open: Vec<Open>,
}

/// An open collection.
struct Open {
    is_mapping: bool,
    /// Whether the collection is in brackets or braces.
    is_flow: bool,
    /// Number of its nodes so far. In a mapping, keys and values alternate, keys first.
    nodes: usize,
}

impl<'a> Nodes<'a> {
    pub(crate) fn new(source: &'a str, joined: &'a [Range<usize>]) -> Self {
        Self { source, joined, seen: 0, open: Vec::new() }
    }

    /// Refuses a node that PyYAML cannot construct. Must be called for every event.
    pub(crate) fn refuse(&mut self, event: &Event, span: &Span) -> Result<(), Refusal> {
        if matches!(event, Event::MappingEnd | Event::SequenceEnd) {
            self.open.pop();
            return Ok(());
        }
        if !event.is_node() {
            return Ok(());
        }
        if let Some(tag) = event.tag().map(|tag| [tag.handle(), tag.suffix()].concat())
            && tag != "!"
            && !tag.strip_prefix(YAML).is_some_and(|name| TAGS.contains(&name))
        {
            let at = Span::empty(span.tag_start().unwrap_or(span.start));
            return Err(refuse(self.source, &at, "cloud-init does not support this tag; remove it"));
        }
        let is_joined = self.is_joined(event, span);
        self.seen += usize::from(is_joined);
        let is_collection = matches!(event, Event::MappingStart(..) | Event::SequenceStart(..));
        if let Some(parent) = self.open.last_mut() {
            let is_key = parent.is_mapping && parent.nodes.is_multiple_of(2);
            parent.nodes += 1;
            let is_question = matches!(event, Event::Scalar(text, ScalarStyle::Plain, ..) if text.contains('?'));
            if parent.is_flow && is_question {
                let reason = "cloud-init does not support a ? in text within brackets; put the text in quotes";
                return Err(refuse(self.source, span, reason));
            }
            if is_key && (is_collection || is_joined) {
                let reason = match is_joined {
                    true => "cloud-init does not support a key of several lines",
                    false => "cloud-init does not support a list or a mapping as a key; put a template in quotes",
                };
                return Err(refuse(self.source, span, reason));
            }
        }
        if let Event::MappingStart(style, ..) | Event::SequenceStart(style, ..) = event {
            let is_mapping = matches!(event, Event::MappingStart(..));
            self.open.push(Open { is_mapping, is_flow: *style == StructureStyle::Flow, nodes: 0 });
        }
        if self.open.len() > DEPTH {
            let reason = "cloud-init does not support more than 255 nested lists and mappings";
            return Err(refuse(self.source, span, reason));
        }
        Ok(())
    }

    /// Must be called after the last event. Refuses joined lines that did not turn out to be a quoted scalar.
    pub(crate) fn refuse_lines_joined_elsewhere(&self) -> Result<(), Refusal> {
        match self.joined.first() {
            Some(first) if self.seen < self.joined.len() => {
                let reason = "this is not YAML: quoted text continues in an invalid column; indent its lines";
                Err(Refusal::at_byte(self.source, first.start, reason))
            }
            _ => Ok(()),
        }
    }

    /// Whether a node is a quoted scalar whose lines are joined for the parser.
    fn is_joined(&self, event: &Event, span: &Span) -> bool {
        let is_quoted = matches!(event, Event::Scalar(_, ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted, ..));
        is_quoted && self.joined.iter().any(|joined| span.byte_range().as_ref() == Some(joined))
    }
}
