//! A document as values with their places.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use granit_parser::{Event, ScalarStyle, Span, Tag};

use crate::events::{refuse, start};
use crate::refusal::Refusal;
use crate::{pyyaml, yaml};

/// Most nodes that aliases and merge keys may repeat. A few lines could otherwise make billions of nodes.
const REPEATED: usize = 1 << 18;

/// A value.
#[derive(Debug)]
pub(crate) struct Node {
    /// Offset of the first byte of the value, in bytes.
    pub(crate) at: usize,
    pub(crate) value: Value,
    /// Number of nodes in it, itself included.
    size: usize,
}

#[derive(Debug)]
pub(crate) enum Value {
    Null,
    Text(String),
    /// A number or a truth value, as it is written.
    Other(String),
    List(Vec<Rc<Node>>),
    Mapping(Vec<Entry>),
}

/// A key of a mapping, and its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    /// Offset of the key, in bytes.
    pub(crate) at: usize,
    pub(crate) value: Rc<Node>,
}

/// Reads a document. `None` if it has no content. A mapping with the same key twice is refused: PyYAML silently takes
/// the last one.
pub(crate) fn parse(source: &str) -> Result<Option<Rc<Node>>, Refusal> {
    let mut builder = Builder::new(source);
    yaml::read(source, &mut |event, span| {
        if matches!(event, Event::StreamStart) {
            builder = Builder::new(source);
            return Ok(());
        }
        builder.take(event, span)
    })?;
    Ok(builder.root.filter(|root| !matches!(root.value, Value::Null)))
}

impl Node {
    /// The value of a key, if this is a mapping that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.mapping()?.iter().find(|entry| entry.key == key)
    }

    pub(crate) fn mapping(&self) -> Option<&[Entry]> {
        match &self.value {
            Value::Mapping(entries) => Some(entries),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> Option<&[Rc<Node>]> {
        match &self.value {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// The value as it is written, if it is a text, a number or a truth value.
    pub(crate) fn scalar(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) | Value::Other(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }
}

/// Builds values from events.
struct Builder<'a> {
    source: &'a str,
    open: Vec<Open>,
    /// Complete values with an anchor, by the parser's number of the anchor.
    anchored: BTreeMap<usize, Rc<Node>>,
    repeated: usize,
    root: Option<Rc<Node>>,
}

/// An incomplete list or mapping.
struct Open {
    at: usize,
    anchor: Option<usize>,
    content: Content,
}

enum Content {
    List(Vec<Rc<Node>>),
    Mapping {
        entries: Vec<Entry>,
        keys: BTreeSet<String>,
        /// The mappings that `<<` names, in order. Earlier ones win over later ones.
        merged: Vec<Rc<Node>>,
        /// The key whose value is next, and whether it is `<<`.
        key: Option<(String, usize, bool)>,
    },
}

impl<'a> Builder<'a> {
    fn new(source: &'a str) -> Self {
        Self { source, open: Vec::new(), anchored: BTreeMap::new(), repeated: 0, root: None }
    }

    fn take(&mut self, event: &Event, span: &Span) -> Result<(), Refusal> {
        let (at, anchor) = (start(span), event.anchor_id());
        let begin = |content| Open { at, anchor, content };
        match event {
            Event::SequenceStart(..) => self.open.push(begin(Content::List(Vec::new()))),
            Event::MappingStart(..) => {
                let (entries, keys, merged) = (Vec::new(), BTreeSet::new(), Vec::new());
                self.open.push(begin(Content::Mapping { entries, keys, merged, key: None }));
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(open) = self.open.pop() else { return Ok(()) };
                let anchor = open.anchor;
                let node = self.close(open)?;
                self.add(node, anchor, span, false)?;
            }
            Event::Scalar(text, style, _, tag) => {
                let is_merge = *style == ScalarStyle::Plain && tag.is_none() && text == "<<";
                let node = Node { at, value: scalar(text, *style, tag.as_deref()), size: 1 };
                self.add(node.into(), anchor, span, is_merge)?;
            }
            Event::Alias(id) => {
                let Some(node) = self.anchored.get(id).cloned() else {
                    return Err(refuse(self.source, span, "this alias refers to the list or mapping that contains it"));
                };
                self.repeat(node.size, at)?;
                self.add(node, None, span, false)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds a complete value to the collection that it is in.
    fn add(&mut self, node: Rc<Node>, anchor: Option<usize>, span: &Span, is_merge: bool) -> Result<(), Refusal> {
        if let Some(anchor) = anchor {
            self.anchored.insert(anchor, node.clone());
        }
        let source = self.source;
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(Content::List(items)) => items.push(node),
            Some(Content::Mapping { key: key @ None, keys, .. }) => {
                let Some(name) = node.scalar().or(node.is_null().then_some("")) else {
                    let reason = "cloud-init does not support a list or a mapping as a key";
                    return Err(refuse(source, span, reason));
                };
                if !is_merge && !keys.insert(name.to_owned()) {
                    let reason = format!("the key {name:?} is already in this mapping; cloud-init would use only one");
                    return Err(refuse(source, span, &reason));
                }
                *key = Some((name.to_owned(), start(span), is_merge));
            }
            Some(Content::Mapping { key: key @ Some(_), entries, merged, .. }) => match key.take() {
                Some((_, at, true)) => merged.extend(mappings(&node).ok_or_else(|| {
                    Refusal::at_byte(source, at, "<< needs a mapping or a list of mappings to merge")
                })?),
                Some((key, at, false)) => entries.push(Entry { key, at, value: node }),
                None => {}
            },
        }
        Ok(())
    }

    fn close(&mut self, open: Open) -> Result<Rc<Node>, Refusal> {
        let Open { at, content, .. } = open;
        let (value, size) = match content {
            Content::List(items) => {
                let size = items.iter().map(|item| item.size).sum::<usize>();
                (Value::List(items), size)
            }
            Content::Mapping { mut entries, mut keys, merged, .. } => {
                for entry in merged.iter().filter_map(|node| node.mapping()).flatten() {
                    if keys.insert(entry.key.clone()) {
                        self.repeat(entry.value.size, at)?;
                        entries.push(entry.clone());
                    }
                }
                let size = entries.iter().map(|entry| 1 + entry.value.size).sum::<usize>();
                (Value::Mapping(entries), size)
            }
        };
        Ok(Rc::new(Node { at, value, size: size + 1 }))
    }

    fn repeat(&mut self, nodes: usize, at: usize) -> Result<(), Refusal> {
        self.repeated = self.repeated.saturating_add(nodes);
        if self.repeated > REPEATED {
            return Err(Refusal::at_byte(self.source, at, "aliases and merge keys repeat too much; use fewer"));
        }
        Ok(())
    }
}

/// The mappings that a merge key names.
fn mappings(node: &Rc<Node>) -> Option<Vec<Rc<Node>>> {
    match node.list() {
        Some(items) if items.iter().all(|item| item.mapping().is_some()) => Some(items.to_vec()),
        None if node.mapping().is_some() => Some(vec![node.clone()]),
        _ => None,
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_text = match tag.map(|tag| tag.parts().1) {
        None => style != ScalarStyle::Plain || pyyaml::is_text(text) && !pyyaml::is_base_60(text),
        Some("str" | "!" | "" | "tag:yaml.org,2002:str") => true,
        Some(_) => false,
    };
    match text {
        _ if is_text => Value::Text(text.to_owned()),
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        _ => Value::Other(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expect` shows texts in quotes.
    fn check(source: &str, expect: &str) {
        let found = parse(source).map(|root| root.map_or_else(|| "nothing".to_owned(), |root| shown(&root)));
        assert_eq!(found.unwrap_or_else(|refusal| refusal.to_string()), expect, "{source:?}");
    }

    fn shown(node: &Node) -> String {
        match &node.value {
            Value::Null => "null".to_owned(),
            Value::Text(text) => format!("{text:?}"),
            Value::Other(text) => text.clone(),
            Value::List(items) => format!("[{}]", items.iter().map(|item| shown(item)).collect::<Vec<_>>().join(" ")),
            Value::Mapping(entries) => {
                let shown = entries.iter().map(|entry| format!("{}: {}", entry.key, shown(&entry.value)));
                format!("{{{}}}", shown.collect::<Vec<_>>().join(" "))
            }
        }
    }

    #[test]
    fn values_are_what_pyyaml_makes_of_them() {
        check("", "nothing");
        check("# none\n--- # none\n...\n", "nothing");
        check(
            "a: [1, '1', yes, x, ~, 1.5, 52:54:00:12:34:56, 0a:54:00:12:34:56]\n",
            "{a: [1 \"1\" yes \"x\" null 1.5 52:54:00:12:34:56 \"0a:54:00:12:34:56\"]}",
        );
        check("a: !!str 1\nb: ! 1\nc: !!int '1'\n", "{a: \"1\" b: \"1\" c: 1}");
        check("a: \"one\n two\"\nb:\n  c: 'x\ny'\n", "{a: \"one two\" b: {c: \"x y\"}}");
        check(
            "a: &a {b: 1, c: 2}\nd: {<<: *a, b: 3}\ne: {<<: [{b: 4}, *a]}\nf: *a\n",
            "{a: {b: 1 c: 2} d: {b: 3 c: 2} \
               e: {b: 4 c: 2} f: {b: 1 c: 2}}",
        );
        check(
            "a: {b: 1,\n  b: 2}\n",
            "line 2, column 3: the key \"b\" is already in this mapping; cloud-init would use only one",
        );
        check("a: &a [*a]\n", "line 1, column 8: this alias refers to the list or mapping that contains it");
        check("a: {<<: 1}\n", "line 1, column 5: << needs a mapping or a list of mappings to merge");
    }

    #[test]
    fn a_few_lines_do_not_stand_for_billions() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned();
        for number in 1..30 {
            let last = format!("*a{}", number - 1);
            text.push_str(&format!("a{number}: &a{number} [{last}, {last}, {last}, {last}]\n"));
        }
        let refusal = parse(&text).expect_err("it is too much").to_string();
        assert!(refusal.contains("repeat too much"), "{refusal}");
    }
}
