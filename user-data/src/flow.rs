//! Edits a mapping in braces or a list in brackets. Between its entries there are commas, white space and comments.

use crate::document::Document;
use crate::text::{self, Edit};

/// What takes entries out, and puts `code` before the others. Comments stay where they were, but for one behind a dropped entry on the
/// line where that ends.
pub(crate) fn without(document: &Document, drop: &[bool], source: &str, code: Option<&str>) -> Vec<Edit> {
    let (entries, inside) = (&document.entries, &document.inside);
    let count = entries.len();
    // Where what is before an entry begins, and where it ends; last what is behind them all.
    let ends: Vec<usize> = std::iter::once(inside.start).chain(entries.iter().map(|entry| entry.bytes.end)).collect();
    let begins = entries.iter().map(|entry| entry.bytes.start).chain([inside.end]);
    let starts: Vec<usize> =
        ends.iter().zip(begins).map(|(end, begin)| end + separator_len(&source[*end..begin.max(*end)])).collect();
    let separator = |index: usize| &source[ends[index]..starts[index]];

    let comma = if drop.contains(&false) { ", " } else { "" };
    let mut edits: Vec<Edit> = code.map(|code| (starts[0]..starts[0], format!("{code}{comma}"))).into_iter().collect();
    let mut from = 0;
    while let Some(first) = (from..count).find(|index| drop[*index]) {
        from = (first..count).find(|index| !drop[*index]).unwrap_or(count);
        let between: String = (first + 1..from).map(|index| own_lines(separator(index))).collect();
        if from < count {
            edits.push((starts[first]..starts[from], between + &own_lines(separator(from))));
            continue;
        }
        let mut end = ends[count];
        let line = source[end..inside.end].split(['\n', '\r']).next().unwrap_or_default();
        if line.contains('#') {
            end += line.len();
        }
        // A comma alone is no list of nothing.
        let comma = if first == 0 && code.is_none() { marks(&source[end..inside.end]).next() } else { None };
        let comma = comma.map(|at| (end + at..end + at + 1, String::new()));
        let (start, mut kept) = match first {
            0 => (starts[0], String::new()),
            _ if separator(first).contains('#') => (ends[first], comments(separator(first)).trim_end().to_owned()),
            _ => (ends[first], String::new()),
        };
        kept.push_str(&between);
        if !kept.is_empty() && !source[end..].starts_with(['\n', '\r']) {
            kept.push_str(text::newline(source));
        }
        edits.push((start..end, kept));
        edits.extend(comma);
    }
    edits
}

/// How long what separates entries is at the begin of a text: up to an anchor, a tag, a question mark or a key. A colon stands there
/// behind a key without a value.
fn separator_len(text: &str) -> usize {
    let mut in_comment = false;
    let is_other = |c: char| {
        in_comment = c == '#' || in_comment && !matches!(c, '\n' | '\r');
        !(in_comment || c.is_whitespace() || matches!(c, ',' | ':'))
    };
    text.find(is_other).unwrap_or(text.len())
}

/// Where commas and colons stand in a separator.
fn marks(separator: &str) -> impl Iterator<Item = usize> {
    let mut in_comment = false;
    let is_mark = move |(_, c): &(usize, char)| {
        in_comment = *c == '#' || in_comment && !matches!(c, '\n' | '\r');
        !in_comment && matches!(c, ',' | ':')
    };
    separator.char_indices().filter(is_mark).map(|(at, _)| at)
}

/// A separator without its commas and colons.
fn comments(separator: &str) -> String {
    let edits: Vec<Edit> = marks(separator).map(|at| (at..at + 1, String::new())).collect();
    text::splice(separator, &edits)
}

/// The comments of a separator that do not begin on the line on which it does; empty where there are none.
fn own_lines(separator: &str) -> String {
    let lines = separator.find(['\n', '\r']).map_or("", |at| &separator[at..]);
    if lines.contains('#') { comments(lines) } else { String::new() }
}
