//! What YAML allows and PyYAML, by which cloud-init reads it, does not.

use granit_parser::{Event, ScalarStyle, Span};

use crate::Refusal;
use crate::document::{refuse, start};

const YAML: &str = "tag:yaml.org,2002:";

/// Refuses characters that may not stand anywhere (yaml/reader.py, NON_PRINTABLE).
pub(crate) fn refuse_unprintable(source: &str) -> Result<(), Refusal> {
    let is_printable = |c: char| match c {
        '\t' | '\n' | '\r' | '\u{85}' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        c => !c.is_control(),
    };
    // In UTF-8 every other character begins with a byte that these do not begin with.
    let may_begin = |byte: u8| matches!(byte, 0..=0x1f | 0x7f | 0xc2 | 0xef);
    let starts = source.bytes().enumerate().filter(|(_, byte)| may_begin(*byte));
    let mut suspects = starts.filter_map(|(at, _)| Some((at, source.get(at..)?.chars().next()?)));
    match suspects.find(|(_, c)| !is_printable(*c)) {
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

/// Finds nodes that PyYAML makes nothing of, whereupon cloud-init drops all of the cloud-config (yaml/constructor.py, `SafeConstructor`,
/// and cloudinit/safeyaml.py).
#[derive(Default)]
pub(crate) struct Nodes {
    open: Vec<Open>,
}

/// A collection whose end has not come.
struct Open {
    is_mapping: bool,
    /// Its nodes so far; in a mapping a key comes first.
    nodes: usize,
    /// The last key was `<<`.
    merges: bool,
}

impl Nodes {
    /// To be called with every event.
    pub(crate) fn refuse(&mut self, event: &Event, span: &Span) -> Result<(), Refusal> {
        let is_mapping = matches!(event, Event::MappingStart(..));
        let is_list = matches!(event, Event::SequenceStart(..));
        if matches!(event, Event::MappingEnd | Event::SequenceEnd) {
            self.open.pop();
        }
        if !event.is_node() {
            return Ok(());
        }
        if let Some(problem) = tag_problem(event, is_mapping, is_list) {
            let tag = Span::empty(span.tag_start().unwrap_or(span.start));
            return Err(refuse(&tag, problem));
        }
        let problem = self.place_problem(event, is_mapping || is_list);
        if is_mapping || is_list {
            self.open.push(Open { is_mapping, nodes: 0, merges: false });
        }
        problem.map_or(Ok(()), |problem| Err(refuse(span, problem)))
    }

    fn place_problem(&mut self, event: &Event, is_collection: bool) -> Option<&'static str> {
        let plain = match event {
            Event::Scalar(value, ScalarStyle::Plain, ..) if event.tag().is_none() => Some(&**value),
            _ => None,
        };
        let is_key = self.open.last().is_some_and(|open| open.is_mapping && open.nodes % 2 == 0);
        let is_merged = !is_key && self.open.last().is_some_and(|open| open.merges);
        if let Some(open) = self.open.last_mut() {
            open.nodes += 1;
            open.merges = is_key && plain == Some("<<");
        }
        match plain {
            _ if is_key && is_collection => Some("cloud-init cannot take a list or a mapping for a key"),
            Some(_) if is_merged => {
                Some("cloud-init merges mappings only: behind << there has to be one, or its alias")
            }
            Some("=") if !is_key => Some("cloud-init makes nothing of a bare =; put it in quotes"),
            _ => None,
        }
    }
}

/// Why PyYAML has no use for the tag of a node.
fn tag_problem(event: &Event, is_mapping: bool, is_list: bool) -> Option<&'static str> {
    let (handle, suffix) = event.tag()?.parts();
    let name = format!("{handle}{suffix}");
    let fits = match name.strip_prefix(YAML) {
        Some("map" | "set") => is_mapping,
        Some("seq" | "omap" | "pairs") => is_list,
        Some("str" | "null" | "bool" | "int" | "float" | "binary" | "timestamp" | "python/unicode") => {
            !is_mapping && !is_list
        }
        _ => name == "!",
    };
    (!fits).then_some("cloud-init knows no such tag, or not for this; take it away")
}
