//! MIME messages, read as Python's email package reads them for cloud-init (email/feedparser.py, RFC 2045, RFC 2046).

use std::ops::Range;

use crate::text;

/// cloud-init looks for the header this far into the bytes of the user-data (cloudinit/user_data.py).
const WINDOW: usize = 4096;
const MARK: &[u8] = b"mime-version:";

/// How a part's text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// It is not.
    Plain,
    Base64,
    Other,
}

/// A message or a part of one.
#[derive(Debug)]
pub(crate) struct Message {
    /// In lower case, without parameters.
    pub(crate) content_type: String,
    /// Of one line; others no line can be.
    pub(crate) boundary: Option<String>,
    pub(crate) encoding: Encoding,
    pub(crate) body: Range<usize>,
}

/// What is between the boundaries of a message.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) parts: Vec<Part>,
    /// Where the line of the closing boundary begins.
    pub(crate) close: Option<usize>,
}

/// A part of a message.
#[derive(Debug)]
pub(crate) struct Part {
    /// Where the line of the boundary before it begins.
    pub(crate) boundary: usize,
    /// Its headers and its body, without the line break that belongs to the next boundary.
    pub(crate) bytes: Range<usize>,
}

/// The user-data as a message, if cloud-init takes it for one and it has headers.
pub(crate) fn message(source: &str) -> Option<Message> {
    let window = &source.as_bytes()[..source.len().min(WINDOW)];
    let is_marked = window.windows(MARK.len()).any(|bytes| bytes.eq_ignore_ascii_case(MARK));
    let first = text::lines(source, 0..source.len()).next()?;
    (is_marked && is_header(&source[first])).then(|| parse(source, 0..source.len()))
}

/// The headers and the body in a range.
pub(crate) fn parse(source: &str, within: Range<usize>) -> Message {
    let mut headers: Vec<(String, String)> = Vec::new();
    let end = within.end;
    let mut body = end;
    for line in text::lines(source, within) {
        let content = &source[line.clone()];
        if content.starts_with(['\n', '\r']) {
            body = line.end;
            break;
        }
        if !is_header(content) {
            body = line.start;
            break;
        }
        match (content.starts_with([' ', '\t']), headers.last_mut(), content.split_once(':')) {
            (true, Some((_, value)), _) => value.push_str(content),
            (false, _, Some((name, value))) => headers.push((name.to_ascii_lowercase(), value.to_owned())),
            _ => {}
        }
        body = line.end;
    }
    let header = |name: &str| headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.trim());
    let content_type = header("content-type").unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_known = essence.matches('/').count() == 1;
    let encoding = match header("content-transfer-encoding").unwrap_or_default().to_ascii_lowercase().as_str() {
        "base64" => Encoding::Base64,
        "quoted-printable" | "x-uuencode" | "uuencode" | "uue" | "x-uue" => Encoding::Other,
        _ => Encoding::Plain,
    };
    Message {
        content_type: if is_known { essence } else { "text/plain".to_owned() },
        boundary: parameter(content_type, "boundary")
            .map(|value| value.trim_end().to_owned())
            .filter(|value| !value.contains(['\n', '\r'])),
        encoding,
        body: body..end,
    }
}

fn is_header(line: &str) -> bool {
    let name = line.bytes().position(|byte| !matches!(byte, 0x21..=0x39 | 0x3b..=0x7e));
    line.starts_with([' ', '\t']) || line.starts_with("From ") || name.is_some_and(|end| line[end..].starts_with(':'))
}

/// A parameter of a header's value: `; name=value`, where the value may be in double quotes.
fn parameter(value: &str, wanted: &str) -> Option<String> {
    let mut quoted = false;
    let mut escaped = false;
    let fields = value.split(|c: char| {
        let is_end = c == ';' && !quoted;
        quoted ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        is_end
    });
    let mut pairs = fields.skip(1).filter_map(|field| field.split_once('='));
    let (_, value) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case(wanted))?;
    let value = value.trim();
    match value.strip_prefix('"').and_then(|value| value.strip_suffix('"')) {
        Some(inner) => Some(inner.replace("\\\\", "\\").replace("\\\"", "\"")),
        None => Some(value.to_owned()),
    }
}

/// The parts of a body. As Python has it, the outermost boundary ends everything in it, and boundaries that follow one
/// another are one.
pub(crate) fn parts(source: &str, body: Range<usize>, boundary: &str) -> Parts {
    let mut found = Parts::default();
    let mut after_boundary = false;
    for line in text::lines(source, body.clone()) {
        let Some(is_close) = boundary_kind(&source[line.clone()], boundary) else {
            after_boundary = false;
            continue;
        };
        if after_boundary {
            let Some(part) = found.parts.last_mut() else { continue };
            part.bytes = line.end..body.end;
            continue;
        }
        if let Some(part) = found.parts.last_mut() {
            let start = part.bytes.start;
            part.bytes.end = start + text::without_break(&source[start..line.start]).len();
        }
        if is_close {
            found.close = Some(line.start);
            break;
        }
        found.parts.push(Part { boundary: line.start, bytes: line.end..body.end });
        after_boundary = true;
    }
    found
}

/// Whether a line is a boundary, and if so, whether it is the closing one.
fn boundary_kind(line: &str, boundary: &str) -> Option<bool> {
    let rest = line.strip_prefix("--")?.strip_prefix(boundary)?;
    let rest = text::without_break(rest).trim_end_matches([' ', '\t']);
    match rest {
        "" => Some(false),
        "--" => Some(true),
        _ => None,
    }
}
