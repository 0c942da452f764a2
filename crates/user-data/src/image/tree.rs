//! A YAML document as a tree, as far as settings are looked up in it.

use std::collections::HashMap;

use granit_parser::{Event, ScalarStyle, options};

use crate::events::{Events, refuse};
use crate::refusal::Refusal;

/// Maximum depth of a tree. cloud-init's configurations are not as deep.
const MAX_DEPTH: usize = 64;
/// Maximum number of nodes in a text, without copies.
const MAX_NODES: usize = 1 << 16;
/// Most nodes and bytes of text that are copied for anchors and aliases. A few lines could otherwise make billions of
/// nodes.
const MAX_COPIED: usize = 1 << 18;

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Null,
    /// Any other scalar, as text.
    Text(String),
    List(Vec<Node>),
    /// Keys that are scalars, with their lines, from 1.
    Map(Vec<(String, usize, Node)>),
}

impl Node {
    /// Number of nodes and bytes of text in the node, and its depth.
    fn measure(&self) -> (usize, usize) {
        let both = |(size, depth): (usize, usize), (more, deep): (usize, usize)| (size + more, depth.max(deep + 1));
        match self {
            Self::Null => (1, 0),
            Self::Text(text) => (1 + text.len(), 0),
            Self::List(items) => items.iter().map(Self::measure).fold((1, 0), both),
            Self::Map(entries) => {
                let measure = |(key, _, value): &(String, usize, Self)| both((1 + key.len(), 0), value.measure());
                entries.iter().map(measure).fold((1, 0), |all, (size, depth)| (all.0 + size, all.1.max(depth)))
            }
        }
    }
}

/// The settings of a file: its first document, empty if that has no content. Refused if the document is not a mapping.
pub(super) fn settings(text: &str) -> Result<Vec<(String, usize, Node)>, Refusal> {
    let options = options! { emit_comments: false };
    let mut reader = Reader { events: Events::new(text, options), anchors: HashMap::new(), nodes: 0, copied: 0 };
    loop {
        let Some(next) = reader.events.next() else { return Ok(Vec::new()) };
        let (event, span) = next?;
        if matches!(event, Event::StreamStart | Event::StreamEnd | Event::DocumentStart(..) | Event::DocumentEnd) {
            continue;
        }
        return match reader.node(event, 0)? {
            Node::Map(settings) => reader.rest().map(|()| settings),
            Node::Null => Ok(Vec::new()),
            _ => Err(refuse(text, &span, "this is not a mapping")),
        };
    }
}

struct Reader<'a> {
    events: Events<'a>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    copied: usize,
}

impl<'a> Reader<'a> {
    /// Reads the node that begins with this event.
    fn node(&mut self, event: Event<'a>, depth: usize) -> Result<Node, Refusal> {
        let anchor = event.anchor_id();
        self.nodes += 1;
        if depth > MAX_DEPTH || self.nodes > MAX_NODES {
            return Err(too_large());
        }
        let node = match event {
            Event::Alias(id) => match self.anchors.get(&id) {
                Some(node) => copy(node, depth, &mut self.copied)?,
                None => Node::Null,
            },
            Event::Scalar(text, style, ..) => match &*text {
                "" | "~" | "null" | "Null" | "NULL" if style == ScalarStyle::Plain => Node::Null,
                text => Node::Text(text.to_owned()),
            },
            Event::SequenceStart(..) => self.list(depth)?,
            Event::MappingStart(..) => self.map(depth)?,
            _ => Node::Null,
        };
        if let Some(id) = anchor {
            self.anchors.insert(id, copy(&node, depth, &mut self.copied)?);
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Node, Refusal> {
        let mut items = Vec::new();
        while let Some(next) = self.events.next() {
            match next? {
                (Event::SequenceEnd, _) => break,
                (event, _) => items.push(self.node(event, depth + 1)?),
            }
        }
        Ok(Node::List(items))
    }

    fn map(&mut self, depth: usize) -> Result<Node, Refusal> {
        let mut entries: Vec<(String, usize, Node)> = Vec::new();
        while let Some(next) = self.events.next() {
            let (event, span) = next?;
            if event == Event::MappingEnd {
                break;
            }
            let key = self.node(event, depth + 1)?;
            let Some(value) = self.events.next() else { break };
            let value = self.node(value?.0, depth + 1)?;
            if let Node::Text(key) = key {
                // PyYAML takes the last of two equal keys.
                entries.retain(|(earlier, ..)| *earlier != key);
                entries.push((key, span.start.line(), value));
            }
        }
        Ok(Node::Map(entries))
    }

    /// Refuses what is not YAML in the rest of the text.
    fn rest(&mut self) -> Result<(), Refusal> {
        self.events.by_ref().try_for_each(|next| next.map(drop))
    }
}

/// Copies a node to a depth. Refused if the tree would become too deep, or the copies too large.
fn copy(node: &Node, depth: usize, copied: &mut usize) -> Result<Node, Refusal> {
    let (size, inner) = node.measure();
    *copied += size;
    if depth + inner > MAX_DEPTH || *copied > MAX_COPIED {
        return Err(too_large());
    }
    Ok(node.clone())
}

fn too_large() -> Refusal {
    Refusal { line: 1, column: 1, reason: "it is too deep or too large".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_found_however_they_are_written() {
        let text = |text: &str| Node::Text(text.to_owned());
        let list = || Node::List(vec![text("NoCloud"), text("None")]);
        let check = |source: &str, expect: Node| {
            let found = settings(source).unwrap().into_iter().find(|(key, ..)| key == "k").map(|(.., node)| node);
            assert_eq!(found, Some(expect), "{source}");
        };
        for source in [
            "k: [ NoCloud, None ] # x\n",
            "k:\n- NoCloud\n- 'None'\n",
            "{\"k\": [\"NoCloud\",\n \"None\"]}",
            "# c\n---\na: &x [NoCloud, None]\nk: *x\n",
            "k: 1\nk: [NoCloud, None]\n",
        ] {
            check(source, list());
        }
        check("k:\n", Node::Null);
        check("k: 'null'", text("null"));
        check("k: {a: {b: }}", Node::Map(vec![("a".to_owned(), 1, Node::Map(vec![("b".to_owned(), 1, Node::Null)]))]));
        assert_eq!(settings("# nothing\n"), Ok(Vec::new()));
        for wrong in ["k: [a", "- a\n", "text", "k: 1\n\tx: 2\n"] {
            assert!(settings(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_few_lines_do_not_stand_for_billions() {
        let lines = |first: &str, rest: &dyn Fn(&str) -> String, count: usize| {
            let rest = (1..count).map(|n| format!("a{n}: &a{n} {}\n", rest(&format!("*a{}", n - 1))));
            format!("a0: &a0 {first}\n{}", rest.collect::<String>())
        };
        let long = "x".repeat(1 << 16);
        for (text, is_right) in [
            (lines("[x, x]", &|last| format!("[{last}, {last}, {last}, {last}]"), 30), false),
            (lines("[x, x]", &|last| format!("[{last}]"), 100), false),
            (lines(&long, &|_| "[*a0, *a0, *a0, *a0]".to_owned(), 2), false),
            (lines("{x: 1}", &|last| format!("{{y: {last}, z: {last}}}"), 8), true),
            (lines("[x, x]", &|last| format!("[{last}]"), 40), true),
        ] {
            assert_eq!(settings(&text).is_ok(), is_right, "{}", &text[..100]);
        }
    }
}
