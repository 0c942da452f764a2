//! Templates (cloud-init documentation, "Instance metadata", "Using instance-data"): what can be known of them unrendered.

use std::ops::Range;

use crate::kind::{self, Kind, Whole};
use crate::{Refusal, text};

/// What the first line of a template says behind `##`.
const TEMPLATE: &str = "template:";

/// Whether a template becomes a cloud-config as far as can be seen; refuses those cloud-init renders and then leaves alone.
pub(crate) fn is_cloud_config(source: &str) -> Result<bool, Refusal> {
    let (first, rest) = source.split_once('\n').unwrap_or((source, ""));
    // The header is looked for behind white space, and then read where it must be the very first line.
    if !first.starts_with("##") {
        return Err(Refusal::at_byte(
            source,
            0,
            "a template's header has to be the first line, without white space before it",
        ));
    }
    let engine = first.to_ascii_lowercase().split_once(TEMPLATE).map(|(_, engine)| engine.trim().to_owned());
    if engine.as_deref() != Some("jinja") {
        return Err(Refusal::at_byte(source, 0, "the template's header has more in it than \"## template: jinja\""));
    }
    let body = source.len() - rest.len();
    let content = rest.trim_start_matches(text::is_python_space);
    if content.starts_with('{') {
        return Ok(false);
    }
    let at = body + rest.len() - content.len();
    match kind::of(rest) {
        Ok(Kind::CloudConfig) => Ok(true),
        Ok(Kind::Whole(Whole::Script | Whole::JsonPatch)) => Ok(false),
        Ok(_) => {
            Err(Refusal::at_byte(source, at, "cloud-init makes nothing of a template but a cloud-config or a script"))
        }
        Err(refusal) => Err(Refusal::at_byte(source, at, refusal.reason)),
    }
}

/// The template with its expressions as plain text and its statements and comments as white space, byte for byte in
/// their places. `None` where that cannot be told without jinja.
pub(crate) fn masked(source: &str) -> Option<String> {
    let mut masked = String::with_capacity(source.len());
    let mut end = 0;
    for code in codes(source)? {
        masked.push_str(&source[end..code.start]);
        end = code.end;
        mask(&source[code], &mut masked)?;
    }
    masked.push_str(&source[end..]);
    Some(masked)
}

/// Whether what is rendered has every key in the column that it has in the template, as far as can be seen: statements and comments have
/// lines of their own, from the first column on, which go away as a whole (`trim_blocks`, which cloud-init sets), nothing takes white
/// space away, and no text is put elsewhere than it stands.
pub(crate) fn keeps_columns(source: &str) -> bool {
    let Some(codes) = codes(source) else { return false };
    codes.into_iter().all(|range| {
        let (before, code, behind) = (&source[..range.start], &source[range.clone()], &source[range.end..]);
        let inside = &code[2..code.len() - 2];
        let takes_space = inside.starts_with(['-', '+']) || inside.ends_with(['-', '+']);
        let is_alone = (before.is_empty() || before.ends_with('\n'))
            && behind.trim_start_matches([' ', '\t']).chars().next().is_none_or(|next| matches!(next, '\n' | '\r'));
        !takes_space && (code.starts_with("{{") || is_alone && (code.starts_with("{#") || renders_in_place(inside)))
    })
}

/// Whether a statement only decides whether, and how often, what stands behind it is rendered.
fn renders_in_place(statement: &str) -> bool {
    let word = statement.split_whitespace().next().unwrap_or_default();
    matches!(word, "if" | "elif" | "else" | "endif" | "for" | "endfor") || word == "set" && statement.contains('=')
}

/// Where its expressions, statements and comments are.
fn codes(source: &str) -> Option<Vec<Range<usize>>> {
    let mut codes = Vec::new();
    let mut from = 0;
    while let Some(at) = source[from..].find('{') {
        let start = from + at;
        let code = &source[start..];
        let len = match code.as_bytes().get(1) {
            Some(b'{') => expression_len(code)?,
            Some(b'%') => statement_len(code)?,
            Some(b'#') => code[2..].find("#}")? + 4,
            _ => {
                from = start + 1;
                continue;
            }
        };
        from = start + len;
        codes.push(start..from);
    }
    Some(codes)
}

/// Puts characters of the same length in the place of code.
fn mask(code: &str, masked: &mut String) -> Option<()> {
    let is_expression = code.starts_with("{{");
    if is_expression && code.contains(['\n', '\r']) {
        return None;
    }
    for byte in code.bytes() {
        masked.push(match byte {
            b'\n' => '\n',
            b'\r' => '\r',
            _ if is_expression => 'x',
            _ => ' ',
        });
    }
    Some(())
}

fn expression_len(code: &str) -> Option<usize> {
    let len = code_len(code, "}}")?;
    // Braces of its own would need jinja's grammar to be told from its end.
    (!code[2..len].contains('{')).then_some(len)
}

fn statement_len(code: &str) -> Option<usize> {
    let len = code_len(code, "%}")?;
    let is_raw = code[2..len].trim_start_matches(['-', '+', ' ', '\t', '\n', '\r']).starts_with("raw");
    (!is_raw).then_some(len)
}

/// The length up to the end mark, which does not count inside quotes.
fn code_len(code: &str, end: &str) -> Option<usize> {
    let mut quote = None;
    let mut bytes = code.bytes().enumerate().skip(2);
    while let Some((at, byte)) = bytes.next() {
        match quote {
            None if code.as_bytes()[at..].starts_with(end.as_bytes()) => return Some(at + 2),
            None if matches!(byte, b'"' | b'\'') => quote = Some(byte),
            Some(_) if byte == b'\\' => _ = bytes.next(),
            Some(open) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

/// Whether a template ends with a line break that jinja takes away (`trim_blocks`, which cloud-init sets), and with no other.
pub(crate) fn eats_line_break(source: &str) -> bool {
    let end = source.trim_end_matches([' ', '\t', '\n', '\r']);
    (end.ends_with("%}") || end.ends_with("#}")) && text::lines(source, end.len()..source.len()).count() < 2
}
