//! Edits a mapping in braces or a list in brackets. Between its entries there are commas, white space and comments.

use std::ops::Range;

use crate::document::Document;
use crate::text::{self, Edit};

/// What takes entries out, and puts `code` before the others. Comments stay where they were, but for one behind a dropped entry on the
/// line where that ends.
pub(crate) fn without(document: &Document, drop: &[bool], source: &str, code: Option<&str>) -> Vec<Edit> {
    let between = Between::of(document, source);
    let mut edits = Vec::new();
    if let Some(code) = code {
        let comma = if drop.contains(&false) { ", " } else { "" };
        edits.push((between.starts[0]..between.starts[0], format!("{code}{comma}")));
    }
    let (count, mut from) = (drop.len(), 0);
    while let Some(first) = (from..count).find(|index| drop[*index]) {
        from = (first..count).find(|index| !drop[*index]).unwrap_or(count);
        match from == count {
            false => edits.push(between.without_some(first, from)),
            true => edits.extend(between.without_last(first, code.is_some())),
        }
    }
    edits
}

/// What stands before each entry, and behind them all.
struct Between<'a> {
    source: &'a str,
    /// Where the collection ends.
    end: usize,
    /// Where each of them begins, and the entry behind it.
    ends: Vec<usize>,
    starts: Vec<usize>,
}

impl<'a> Between<'a> {
    fn of(document: &Document, source: &'a str) -> Self {
        let (entries, inside) = (&document.entries, &document.inside);
        let ends: Vec<usize> =
            std::iter::once(inside.start).chain(entries.iter().map(|entry| entry.bytes.end)).collect();
        let begins = entries.iter().map(|entry| entry.bytes.start).chain([inside.end]);
        let starts = ends.iter().zip(begins).map(|(end, begin)| end + separator_len(&source[*end..begin.max(*end)]));
        Self { source, end: inside.end, starts: starts.collect(), ends }
    }

    fn separator(&self, index: usize) -> &'a str {
        &self.source[self.ends[index]..self.starts[index]]
    }

    /// The comments behind entries, but for those on the lines where they end.
    fn comments_behind(&self, entries: Range<usize>) -> String {
        entries.map(|index| own_lines(self.separator(index + 1))).collect()
    }

    /// Drops entries that have others behind them.
    fn without_some(&self, first: usize, next: usize) -> Edit {
        (self.starts[first]..self.starts[next], self.comments_behind(first..next))
    }

    /// Drops the last entries, with the comma before them.
    fn without_last(&self, first: usize, has_code: bool) -> impl Iterator<Item = Edit> {
        let last = self.starts.len() - 2;
        let mut end = self.ends[last + 1];
        let line = self.source[end..self.end].split(['\n', '\r']).next().unwrap_or_default();
        if line.contains('#') {
            end += line.len();
        }
        let (start, mut kept) = match first {
            0 => (self.starts[0], String::new()),
            _ if self.separator(first).contains('#') => {
                (self.ends[first], comments(self.separator(first)).trim_end().to_owned())
            }
            _ => (self.ends[first], String::new()),
        };
        kept.push_str(&self.comments_behind(first..last));
        if !kept.is_empty() && !self.source[end..].starts_with(['\n', '\r']) {
            kept.push_str(text::newline(self.source));
        }
        // A comma alone is no list of nothing.
        let comma = if first == 0 && !has_code { marks(&self.source[end..self.end]).next() } else { None };
        let comma = comma.map(|at| (end + at..end + at + 1, String::new()));
        std::iter::once((start..end, kept)).chain(comma)
    }
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
