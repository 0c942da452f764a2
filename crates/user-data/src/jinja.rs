//! Templates (cloud-init documentation, "Instance metadata", "Using instance-data"): what can be known without
//! rendering them.

use std::ops::Range;

use crate::kind::{self, Kind, Whole};
use crate::lines;
use crate::refusal::Refusal;

/// Text after `##` in the first line of a template.
const TEMPLATE: &str = "template:";

/// Statements of jinja that have an end, `{% endif %}`, and others (jinja, src/jinja2/parser.py). cloud-init has `do`
/// too.
const BLOCKS: &[&str] = &["if", "for", "macro", "call", "filter", "set", "with", "block", "autoescape"];
const STATEMENTS: &[&str] = &["set", "elif", "else", "include", "import", "from", "extends", "print", "do"];

/// Whether a template seems to become a cloud-config. Refuses templates that cloud-init renders and then ignores.
pub(crate) fn is_cloud_config(source: &str) -> Result<bool, Refusal> {
    let (first, rest) = source.split_once('\n').unwrap_or((source, ""));
    // cloud-init skips white space to detect the header, but then expects it in the very first line.
    if !first.starts_with("##") {
        let reason = "a template's header must be the first line, without white space before it";
        return Err(Refusal::at_byte(source, 0, reason));
    }
    let engine = first.to_ascii_lowercase().split_once(TEMPLATE).map(|(_, engine)| engine.trim().to_owned());
    if engine.as_deref() != Some("jinja") {
        return Err(Refusal::at_byte(source, 0, "the template's header contains more than \"## template: jinja\""));
    }
    if let Some((at, what)) = misplaced(source) {
        return Err(Refusal::at_byte(source, at, format!("{what}, so cloud-init cannot render the template")));
    }
    let body = source.len() - rest.len();
    let content = rest.trim_start_matches(lines::is_python_space);
    if content.starts_with('{') {
        return Ok(false);
    }
    let at = body + rest.len() - content.len();
    match kind::detect(rest) {
        Ok(Kind::CloudConfig) => Ok(true),
        Ok(Kind::Whole(Whole::Script | Whole::JsonPatch)) => Ok(false),
        Ok(_) => Err(Refusal::at_byte(
            source,
            at,
            "cloud-init ignores a template that is not for a cloud-config or a script",
        )),
        Err(refusal) => Err(Refusal::at_byte(source, at, refusal.reason)),
    }
}

/// Returns the offset of the first code that is not closed or in a wrong place, and what is wrong. Stops at raw text.
fn misplaced(source: &str) -> Option<(usize, String)> {
    let (mut from, mut open) = (0, Vec::new());
    while let Some(at) = source[from..].find('{').map(|at| from + at) {
        let code = &source[at..];
        let len = match code.as_bytes().get(1) {
            Some(b'{') => code_len(code, "}}"),
            Some(b'%') => code_len(code, "%}"),
            Some(b'#') => code[2..].find("#}").map(|len| len + 4),
            _ => Some(1),
        };
        let Some(len) = len else {
            return Some((at, format!("{:?} is not closed", code.get(..2).unwrap_or_default())));
        };
        from = at + len;
        let Some(inside) = code[..len].strip_prefix("{%").and_then(|code| code.strip_suffix("%}")) else { continue };
        let statement = inside.trim_start_matches(['-', '+']).trim_start();
        let word = statement.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        if word == "raw" {
            return None;
        }
        if let Some(begun) = word.strip_prefix("end").filter(|begun| BLOCKS.contains(begun)) {
            match open.pop() {
                Some((_, last)) if last == begun => {}
                _ => return Some((at, format!("{{% {word} %}} does not end an open block"))),
            }
        } else if BLOCKS.contains(&word) && !(word == "set" && statement.contains('=')) {
            open.push((at, word));
        } else if !STATEMENTS.contains(&word) {
            return Some((at, format!("{{% {word} %}} is not a statement of jinja")));
        }
    }
    open.first().map(|(at, word)| (*at, format!("{{% {word} %}} is not closed")))
}

/// The template with expressions as plain text, and statements and comments as white space, with every byte at its
/// place. `None` if that needs jinja.
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

/// Whether every key seems to keep its column when rendered. Statements and comments must be on lines of their own,
/// from the first column on. Such a line disappears as a whole (`trim_blocks`, which cloud-init sets). Nothing may
/// strip white space or render text at another place.
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

/// Whether a statement only decides if and how often the text after it is rendered.
fn renders_in_place(statement: &str) -> bool {
    let word = statement.split_whitespace().next().unwrap_or_default();
    matches!(word, "if" | "elif" | "else" | "endif" | "for" | "endfor") || word == "set" && statement.contains('=')
}

/// Ranges of expressions, statements and comments.
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

/// Replaces code with characters of the same length.
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
    // With braces inside the expression, only jinja's grammar could find its end.
    (!code[2..len].contains('{')).then_some(len)
}

fn statement_len(code: &str) -> Option<usize> {
    let len = code_len(code, "%}")?;
    let is_raw = code[2..len].trim_start_matches(['-', '+', ' ', '\t', '\n', '\r']).starts_with("raw");
    (!is_raw).then_some(len)
}

/// Length up to and including the end mark. Marks inside quotes do not count.
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

/// Whether a template ends with only one line break, and jinja removes it (`trim_blocks`, which cloud-init sets).
pub(crate) fn eats_line_break(source: &str) -> bool {
    let end = source.trim_end_matches([' ', '\t', '\n', '\r']);
    (end.ends_with("%}") || end.ends_with("#}")) && lines::lines(source, end.len()..source.len()).count() < 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_a_template_ends() {
        for (text, expect) in [
            ("a: {{ b }} {# c #}\n{% if d %}e{% endif %}\n{%- for x in y -%}\n{% endfor %}{", None),
            ("a: {{ {'b': '}}'}['b'] }}\n{% raw %}{{\n", None),
            ("{% set a = 1 %}{% set b %}c{% endset %}{% macro d(e) %}{% endmacro %}{% with %}{% endwith %}", None),
            ("{% if a %}{% elif(b) %}{%else%}{% do c.append(1) %}{%endif%}", None),
            ("a: {{ b\n", Some((3, "\"{{\" is not closed"))),
            ("a: 1\n{% if b %}\n", Some((5, "{% if %} is not closed"))),
            ("{% for x in y %}{% if x %}{% endif %}\n", Some((0, "{% for %} is not closed"))),
            ("{% macro d() %}", Some((0, "{% macro %} is not closed"))),
            ("{% set a = 1\n", Some((0, "\"{%\" is not closed"))),
            ("a\n{% endif %}", Some((2, "{% endif %} does not end an open block"))),
            ("{% if a %}{% for b in c %}{% endif %}{% endfor %}", Some((26, "{% endif %} does not end an open block"))),
            ("{% if a %}{% elsif b %}{% endif %}", Some((10, "{% elsif %} is not a statement of jinja"))),
        ] {
            let found = misplaced(text);
            let found = found.as_ref().map(|(at, what)| (*at, what.as_str()));
            assert_eq!(found, expect, "{text:?}");
        }
    }
}
