//! Edits a flow mapping or flow sequence. Between its entries there are commas, white space and comments.

use std::ops::Range;

use crate::document::Document;
use crate::lines::{self, Edit};

/// The edits that remove entries, and put `code` before the others. Comments stay, except one after a dropped entry on
/// the line where the entry ends.
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

/// The text before each entry, and after the last one.
struct Between<'a> {
    source: &'a str,
    /// End of the collection.
    end: usize,
    /// Where each of these texts begins, and where the next entry begins.
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

    /// The comments after entries, except those on the line where an entry ends.
    fn comments_behind(&self, entries: Range<usize>) -> String {
        entries.map(|index| own_lines(self.separator(index + 1))).collect()
    }

    /// Drops entries that are followed by others.
    fn without_some(&self, first: usize, next: usize) -> Edit {
        (self.starts[first]..self.starts[next], self.comments_behind(first..next))
    }

    /// Drops the last entries, and the comma before them.
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
            kept.push_str(lines::newline(self.source));
        }
        // A single comma is not an empty list.
        let comma = if first == 0 && !has_code { marks(&self.source[end..self.end]).next() } else { None };
        let comma = comma.map(|at| (end + at..end + at + 1, String::new()));
        std::iter::once((start..end, kept)).chain(comma)
    }
}

/// Length of the separator at the beginning of a text, which ends at an anchor, a tag, a question mark or a key. A
/// separator has a colon after a key without a value.
fn separator_len(text: &str) -> usize {
    let mut in_comment = false;
    let is_other = |c: char| {
        in_comment = c == '#' || in_comment && !matches!(c, '\n' | '\r');
        !(in_comment || c.is_whitespace() || matches!(c, ',' | ':'))
    };
    text.find(is_other).unwrap_or(text.len())
}

/// Positions of the commas and colons in a separator.
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
    lines::splice(separator, &edits)
}

/// The comments of a separator, except one on its first line. Empty if there are none.
fn own_lines(separator: &str) -> String {
    let lines = separator.find(['\n', '\r']).map_or("", |at| &separator[at..]);
    if lines.contains('#') { comments(lines) } else { String::new() }
}
