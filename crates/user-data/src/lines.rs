//! Lines of a text as in YAML and email: they end with LF, CR LF or CR.

use std::ops::Range;

/// Characters that are line breaks in YAML 1.1 (5.4), but not in YAML 1.2.
const OLD_BREAKS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

/// A range of bytes and its replacement.
pub(crate) type Edit = (Range<usize>, String);

/// The lines in a range, each with its break.
pub(crate) fn lines(text: &str, within: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut at = within.start;
    std::iter::from_fn(move || {
        let start = at;
        let rest = &text.as_bytes()[start..within.end];
        let len = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).map_or(rest.len(), |found| {
            let is_pair = rest[found] == b'\r' && rest.get(found + 1) == Some(&b'\n');
            found + 1 + usize::from(is_pair)
        });
        at += len;
        (len > 0).then_some(start..at)
    })
}

/// [`lines`], last one first. The range must begin at a line start.
pub(crate) fn lines_backwards(text: &str, within: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut end = within.end;
    std::iter::from_fn(move || {
        let line = within.start..end;
        end = line_start(text, line.start + without_break(&text[line.clone()]).len()).max(line.start);
        (!line.is_empty()).then_some(end..line.end)
    })
}

/// Start of the line that contains the byte at an offset.
pub(crate) fn line_start(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().rposition(|byte| matches!(byte, b'\n' | b'\r')).map_or(0, |found| found + 1)
}

/// The first line break of the text, or LF if it has none.
pub(crate) fn newline(text: &str) -> &'static str {
    match text.find(['\n', '\r']).map(|at| &text[at..]) {
        Some(found) if found.starts_with("\r\n") => "\r\n",
        Some(found) if found.starts_with('\r') => "\r",
        _ => "\n",
    }
}

pub(crate) fn ends_with_break(text: &str) -> bool {
    text.ends_with(['\n', '\r'])
}

/// The text without the line break at its end, if any.
pub(crate) fn without_break(text: &str) -> &str {
    text.strip_suffix("\r\n").or_else(|| text.strip_suffix(['\n', '\r'])).unwrap_or(text)
}

/// Line and column, from 1, of the byte at an offset. Columns are characters.
pub(crate) fn place(text: &str, at: usize) -> (usize, usize) {
    let start = line_start(text, at);
    (1 + lines(text, 0..start).count(), 1 + text[start..at].chars().count())
}

/// Python's `str.isspace`, which includes more characters than Unicode's white space.
pub(crate) fn is_python_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

pub(crate) fn has_old_breaks(text: &str) -> bool {
    !text.is_ascii() && text.contains(OLD_BREAKS)
}

/// Replaces ranges of the text. They must be in order and must not overlap.
pub(crate) fn splice(text: &str, edits: &[Edit]) -> String {
    let mut edited = String::with_capacity(text.len() + edits.iter().map(|(_, new)| new.len()).sum::<usize>());
    let mut copied = 0;
    for (range, new) in edits {
        edited.push_str(&text[copied..range.start]);
        edited.push_str(new);
        copied = range.end;
    }
    edited.push_str(&text[copied..]);
    edited
}
