//! Templates (cloud-init documentation, "Instance metadata", "Using instance-data"): what can be known of them unrendered.

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
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        let (before, code) = rest.split_at(at);
        masked.push_str(before);
        let len = match code.as_bytes().get(1) {
            Some(b'{') => expression_len(code)?,
            Some(b'%') => statement_len(code)?,
            Some(b'#') => code[2..].find("#}")? + 4,
            _ => 1,
        };
        let (code, after) = code.split_at(len);
        mask(code, &mut masked)?;
        rest = after;
    }
    masked.push_str(rest);
    Some(masked)
}

/// Puts characters of the same length in the place of code.
fn mask(code: &str, masked: &mut String) -> Option<()> {
    let is_expression = code.starts_with("{{");
    if code == "{" {
        masked.push('{');
        return Some(());
    }
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

/// Whether jinja takes all white space behind the template away.
pub(crate) fn eats_white_space(source: &str) -> bool {
    let end = source.trim_end();
    ["-%}", "-}}", "-#}"].iter().any(|mark| end.ends_with(mark))
}

/// Whether jinja takes away the first line break behind the template (`trim_blocks`, which cloud-init sets).
pub(crate) fn eats_line_break(source: &str) -> bool {
    let end = source.trim_end_matches([' ', '\t', '\n', '\r']);
    end.ends_with("%}") || end.ends_with("#}")
}
