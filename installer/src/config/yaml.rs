//! The configuration as YAML: a mapping of strings to strings and no other YAML.
//!
//! Works on the parser's events, so that each error has its position. Errors never show the text itself, which may be a
//! token. Only a character that YAML does not allow is named.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use granit_parser::{Event, ScalarStyle, Span, Tag, options};
use slipway_user_data::{Events, Refusal};

use super::LARGEST;

/// Returns the content of the mapping, empty if the text has no content.
///
/// Values are taken as written, including numbers and `true`. A value is refused if it is an alias or has an anchor, or
/// if YAML would not read it as text because of its tag or as null.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, String>, Refusal> {
    if text.len() as u64 > LARGEST {
        let reason = format!("the configuration has more than {} MiB", LARGEST >> 20);
        return Err(Refusal { line: 1, column: 1, reason });
    }
    // Another crate may enable the parser's feature `comments`, which makes comments events too.
    let options = options! { emit_comments: false, emit_unresolved_aliases: true };
    let mut reader = Reader { values: BTreeMap::new(), documents: 0, next: Node::Root };
    for next in Events::new(text, options) {
        let (event, span) = next?;
        reader.take(&event, &span)?;
    }
    Ok(reader.values)
}

/// Returns the content of the mapping below one key of the mapping that the text is; none if it has no such key. The
/// content follows the same rules as that of a configuration. Other keys may have any value.
pub(super) fn parse_below(wanted: &str, text: &str) -> Result<Option<BTreeMap<String, String>>, Refusal> {
    let options = options! { emit_comments: false, emit_unresolved_aliases: true };
    let mut found: Option<Reader> = None;
    // How many collections are open. In the outer one, keys and values alternate.
    let (mut depth, mut is_key, mut is_wanted) = (0_usize, false, false);
    let mut documents = 0;
    for next in Events::new(text, options) {
        let (event, span) = next?;
        if depth == 1 && is_key {
            is_wanted = matches!(&event, Event::Scalar(key, ..) if key == wanted);
            if is_wanted && found.is_some() {
                return Err(refuse(&span, "this key is already set"));
            }
            if is_wanted {
                found = Some(Reader { values: BTreeMap::new(), documents: 1, next: Node::Root });
            }
        } else if let Some(reader) = found.as_mut().filter(|_| is_wanted) {
            reader.take(&event, &span)?;
        }
        match &event {
            Event::DocumentStart(..) if documents > 0 => return Err(refuse(&span, "a second document begins here")),
            Event::DocumentStart(..) => documents += 1,
            Event::Scalar(..) | Event::SequenceStart(..) if depth == 0 => {
                return Err(refuse(&span, Node::Root.wanted()));
            }
            Event::MappingStart(..) | Event::SequenceStart(..) => depth += 1,
            Event::MappingEnd | Event::SequenceEnd => depth = depth.saturating_sub(1),
            _ => {}
        }
        // The outer mapping has just begun, or one of its keys or values has ended.
        let is_node = matches!(event, Event::MappingStart(..) | Event::MappingEnd | Event::SequenceEnd);
        if depth == 1 && (is_node || matches!(event, Event::Scalar(..)) || event.is_alias()) {
            is_key = !is_key;
        }
    }
    Ok(found.map(|reader| reader.values))
}

/// Collects the values from events.
struct Reader {
    values: BTreeMap<String, String>,
    documents: usize,
    next: Node,
}

/// What the next node must be.
enum Node {
    Root,
    Key,
    /// The value of this key. A missing value is reported at the key.
    Value(String, Span),
}

impl Reader {
    fn take(&mut self, event: &Event, span: &Span) -> Result<(), Refusal> {
        if event.is_alias() || event.anchor_id().is_some() {
            return Err(refuse(span, "this is an alias or has an anchor: put text that begins with * or & in quotes"));
        }
        if event.tag().is_some_and(|tag| !is_text(tag)) {
            return Err(refuse(span, "this has a tag other than !!str: put text that begins with ! in quotes"));
        }
        match event {
            Event::StreamStart | Event::StreamEnd | Event::DocumentEnd | Event::MappingEnd => Ok(()),
            Event::DocumentStart(..) if self.documents > 0 => {
                Err(refuse(span, "a second document begins here, but a configuration is a single document"))
            }
            Event::DocumentStart(..) => {
                self.documents += 1;
                Ok(())
            }
            Event::MappingStart(_, _, None) if matches!(self.next, Node::Root) => {
                self.next = Node::Key;
                Ok(())
            }
            Event::Scalar(text, style, ..) => {
                let is_plain = *style == ScalarStyle::Plain && event.tag().is_none();
                self.take_scalar(text, is_plain, span)
            }
            _ => Err(refuse(span, self.next.wanted())),
        }
    }

    /// Takes a scalar as the next key or value. YAML may read a plain scalar as something other than text.
    fn take_scalar(&mut self, text: &str, is_plain: bool, span: &Span) -> Result<(), Refusal> {
        // YAML 1.2.2, section 10.3.2.
        let is_null = is_plain && matches!(text, "" | "~" | "null" | "Null" | "NULL");
        match std::mem::replace(&mut self.next, Node::Key) {
            Node::Root if is_null => Ok(()),
            Node::Root => Err(refuse(span, Node::Root.wanted())),
            Node::Key if is_null => {
                let reason = "this key is empty: write a key, or put null or ~ in quotes if that is meant as the key";
                Err(refuse(span, reason))
            }
            Node::Key if is_plain && text == "<<" => Err(refuse(span, "this merges mappings, but values must be text")),
            Node::Key if is_plain && is_number(text) => {
                Err(refuse(span, "put a key that begins with a digit, or with a sign and a digit, in quotes"))
            }
            Node::Key => {
                self.next = Node::Value(text.to_owned(), *span);
                Ok(())
            }
            Node::Value(_, key) if is_null => {
                Err(refuse(&key, "this key has no value: leave it out, or put an empty value, null or ~ in quotes"))
            }
            Node::Value(key, place) => match self.values.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(text.to_owned());
                    Ok(())
                }
                Entry::Occupied(_) => Err(refuse(&place, "this key is already set")),
            },
        }
    }
}

impl Node {
    fn wanted(&self) -> &'static str {
        match self {
            Self::Root => "this is not a mapping: write each key with a colon, a space and its value",
            Self::Key => "a key must be text, not a list or a mapping: put text that begins with [ or { in quotes",
            Self::Value(..) => {
                "a value must be text, not a list or a mapping: put text that begins with [ or { in quotes"
            }
        }
    }
}

/// Whether the tag says that the value is text.
fn is_text(tag: &Tag) -> bool {
    tag.core_suffix() == Some("str")
}

/// Whether the key may be a number. Two numbers can be equal but written differently: 11 and 0xb.
fn is_number(key: &str) -> bool {
    key.strip_prefix(['+', '-']).unwrap_or(key).starts_with(|c: char| c.is_ascii_digit())
}

fn refuse(span: &Span, reason: &str) -> Refusal {
    Refusal { line: span.start.line(), column: span.start.col() + 1, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_of_words_is_read_in_every_style() {
        let check = |text: &str, expect: &[(&str, &str)]| {
            let expect = expect.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            assert_eq!(parse(text), Ok(expect), "{text:?}");
        };
        for nothing in ["", " \n", "\t\n", "\u{feff}", "# none\n", "---\n", "...\n", "--- ~\n", "NULL", "{}"] {
            check(nothing, &[]);
        }
        check(
            "server: https://s:8443/#x # ours\r\ntoken: a b\r\n",
            &[("server", "https://s:8443/#x"), ("token", "a b")],
        );
        check("ca: |\n  -----BEGIN\n  MA==\ntoken: t\n", &[("ca", "-----BEGIN\nMA==\n"), ("token", "t")]);
        check("a: |-\n  x\nb: |+\n  y\n\nc: >\n  v\n  w\n", &[("a", "x"), ("b", "y\n\n"), ("c", "v w\n")]);
        check("a: 'it''s'\nb: \"\\x41\\n\"\nc: x\n  y\n", &[("a", "it's"), ("b", "A\n"), ("c", "x y")]);
        check("%YAML 1.2\n---\n{a: b, \"c\": 'd'}\n...\n# end\n", &[("a", "b"), ("c", "d")]);
        check("? a\n: b\n", &[("a", "b")]);
        check("a: 0x1F\nb: 012\nc: 1e3\nd: .inf\n", &[("a", "0x1F"), ("b", "012"), ("c", "1e3"), ("d", ".inf")]);
        check("a: true\nb: NO\nyes: 2026-01-01\n", &[("a", "true"), ("b", "NO"), ("yes", "2026-01-01")]);
        check("a: ''\nb: 'null'\nc: |\nd: nUll\n", &[("a", ""), ("b", "null"), ("c", ""), ("d", "nUll")]);
        check("a: !!str\nb: !!str ~\nc: !<tag:yaml.org,2002:str> 5\n", &[("a", ""), ("b", "~"), ("c", "5")]);
        check("'1': a\n'0x1': b\n'<<': c\n'': d\n", &[("1", "a"), ("0x1", "b"), ("<<", "c"), ("", "d")]);
        check("a: '*x'\nb: '!x'\nc: '[x]'\n", &[("a", "*x"), ("b", "!x"), ("c", "[x]")]);
    }

    #[test]
    fn what_is_anything_else_is_refused_with_its_place() {
        let check = |text: &str, expect: &str| {
            let refusal = parse(text).unwrap_err().to_string();
            assert!(refusal.starts_with(expect), "{text:?}: {refusal}");
        };
        for root in ["s3cret", "server:s3cret\n", "'~'", "nUll", "- a", "[a]", "!!str"] {
            let refusal = parse(root).unwrap_err();
            assert_eq!((refusal.line, &*refusal.reason), (1, Node::Root.wanted()), "{root:?}");
        }
        check("# c\n- a\n", "line 2, column 1: this is not a mapping");
        check("a: b\n[c]: d\n", "line 2, column 1: a key must be text");
        check("? {c: d}\n: e\n", "line 1, column 3: a key must be text");
        check("a: b\ntoken: [s3cret]\n", "line 2, column 8: a value must be text");
        check("server: s\nca: [\n", "line 2, column 5: a value must be text");
        check("token:\n  s3cret: x\n", "line 2, column 3: a value must be text");
        check("a: &s3cret x\n", "line 1, column 12: this is an alias or has an anchor");
        check("a: &s3cret\n", "line 1, column 11: this is an alias or has an anchor");
        check("&x {a: b}", "line 1, column 4: this is an alias or has an anchor");
        check("a: b\ntoken: *s3cret\n", "line 2, column 8: this is an alias or has an anchor");
        check("*a : b\n", "line 1, column 1: this is an alias or has an anchor");
        for tag in ["!s3cret", "!", "!str", "!!int", "!!binary", "!!null"] {
            check(&format!("a:\n  {tag} YWI=\n"), &format!("line 2, column {}: this has a tag", 4 + tag.len()));
        }
        check("!!map {a: b}", "line 1, column 7: this has a tag");
        check("!!str {a: b}", "line 1, column 7: this is not a mapping");
        for null in ["", " ~", " null", " NULL", " # none"] {
            check(&format!("\ntoken:{null}\n\nserver: s\n"), "line 2, column 1: this key has no value");
        }
        check("{server: s, s3cret}", "line 1, column 13: this key has no value");
        check(": b", "line 1, column 1: this key is empty");
        check("a: b\n~: b", "line 2, column 1: this key is empty");
        check("a: b\n\n\"a\": c\n", "line 3, column 1: this key is already set");
        check("!!str 1: b\n'1': c\n", "line 2, column 1: this key is already set");
        check("11: a\n0xb: b\n", "line 1, column 1: put a key that begins with a digit");
        check("a: b\n-1: a\n", "line 2, column 1: put a key that begins with a digit, or with a sign and a digit, in");
        check("<<: {a: b}\n", "line 1, column 1: this merges mappings");
        check("a: b\n---\n", "line 2, column 1: a second document begins");
        check("--- ~\n--- ~\n", "line 2, column 1: a second document begins");
        check("a: b\n...\n[", "line 3, column 1: this is not YAML");
        check("token: @s3cret\n", "line 1, column 8: this is not YAML: unexpected character: `@'");
        check("token: \"s3cret\n", "line 2, column 1: this is not YAML");
        check("a: b\n c: d\n", "line 2, column 3: this is not YAML");
        check("a: \0", "line 1, column 4: this is not YAML");
    }

    #[test]
    fn no_refusal_shows_what_it_is_of() {
        for around in [
            "S",
            "t:S",
            "- S",
            "t: [S]",
            "t: {S}",
            "t: *S",
            "t: &S",
            "t: !S",
            "t: !S S",
            "{S}",
            "S:",
            "S: S\nS: S",
            "t: \"S",
        ] {
            for around in
                [around.to_owned(), format!("{around}\n---\n"), format!("%S\n---\n{around}"), format!("{around}\0")]
            {
                let refusal = parse(&around.replace('S', "s3cret")).unwrap_err();
                assert!(!format!("{refusal} {refusal:?}").contains("s3cret"), "{around:?}: {refusal}");
            }
        }
    }

    #[test]
    fn one_key_of_a_text_for_others_has_texts() {
        let of = |text: &str| parse_below("slipway", text).map_err(|refusal| refusal.to_string());
        let values = |pairs: &[(&str, &str)]| {
            Ok(Some(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()))
        };
        let both = values(&[("server", "https://s"), ("token", "t")]);
        let around = "#cloud-config\nusers: [a, {slipway: {server: x}}]\n? {slipway: y}\n: *x\n";
        for text in
            ["slipway: {server: 'https://s', token: t}", "slipway:\n  server: https://s\n  token: t\na: &b [c]\n"]
        {
            assert_eq!(of(text), both, "{text}");
            assert_eq!(of(&format!("{around}{text}")), both, "{text}");
        }
        for text in ["", "a: b", "a: {slipway: {server: x}}", "a: slipway\n", "[a]: slipway\n", around] {
            assert_eq!(of(text), Ok(None), "{text}");
        }
        assert_eq!(of("slipway:\n"), values(&[]));
        for (text, expect) in [
            ("slipway: [a]", "line 1, column 10: this is not a mapping"),
            ("slipway: s3cret", "line 1, column 10: this is not a mapping"),
            ("slipway: {server: [s3cret]}", "line 1, column 19: a value must be text"),
            ("slipway: {server: {s3cret: x}}", "line 1, column 19: a value must be text"),
            ("slipway: {server: a, server: s3cret}", "line 1, column 22: this key is already set"),
            ("slipway: {server: *s3cret}", "line 1, column 19: this is an alias"),
            ("slipway: &a {server: s3cret}", "line 1, column 13: this is an alias or has an anchor"),
            ("slipway: {server: ~}", "line 1, column 11: this key has no value"),
            ("slipway: {}\nslipway: {}", "line 2, column 1: this key is already set"),
            ("slipway: {}\n---\nslipway: {}", "line 2, column 1: a second document begins here"),
            ("a: b\n---\nc: d", "line 2, column 1: a second document begins here"),
            ("- slipway", "line 1, column 1: this is not a mapping"),
            ("s3cret", "line 1, column 1: this is not a mapping"),
            ("slipway: {\n", "line 1, column 10: this is not YAML"),
        ] {
            let refusal = of(text).unwrap_err();
            assert!(refusal.starts_with(expect) && !refusal.contains("s3cret"), "{text:?}: {refusal}");
        }
    }

    #[test]
    fn a_text_has_a_bound() {
        let of = |len: u64| format!("ca: {}", "x".repeat(len as usize - 4));
        assert_eq!(parse(&of(LARGEST)).unwrap()["ca"].len() as u64, LARGEST - 4);
        let refusal = parse(&of(LARGEST + 1)).unwrap_err();
        assert_eq!(refusal.to_string(), "line 1, column 1: the configuration has more than 1 MiB");
    }
}
