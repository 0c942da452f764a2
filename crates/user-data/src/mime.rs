//! MIME messages, parsed as Python's email package does for cloud-init (email/feedparser.py, RFC 2045, RFC 2046).

use std::borrow::Cow;
use std::ops::Range;

use crate::lines;

/// cloud-init looks for the header in this many bytes of the user-data (cloudinit/user_data.py).
const WINDOW: usize = 4096;
const MARK: &[u8] = b"mime-version:";

/// Transfer encoding of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// Not encoded.
    Plain,
    Base64,
    Other,
}

/// A message or a part of one.
#[derive(Debug)]
pub(crate) struct Message {
    /// Content type in lower case, without parameters.
    pub(crate) content_type: String,
    /// Boundary of the parts. A boundary with a line break is ignored, as no line can match it.
    pub(crate) boundary: Option<String>,
    pub(crate) encoding: Encoding,
    pub(crate) body: Range<usize>,
}

/// The parts of a message.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) parts: Vec<Part>,
    /// Start of the line with the closing boundary.
    pub(crate) close: Option<usize>,
}

/// A part of a message.
#[derive(Debug)]
pub(crate) struct Part {
    /// Start of the line with the boundary before it.
    pub(crate) boundary: usize,
    /// Headers and body of the part, without the line break that belongs to the next boundary.
    pub(crate) bytes: Range<usize>,
}

/// Parses user-data as a message. `None` if cloud-init would not, or if there are no headers.
pub(crate) fn message(source: &str) -> Option<Message> {
    let window = &source.as_bytes()[..source.len().min(WINDOW)];
    let is_marked = window.windows(MARK.len()).any(|bytes| bytes.eq_ignore_ascii_case(MARK));
    let first = lines::lines(source, 0..source.len()).next()?;
    (is_marked && is_header(&source[first])).then(|| parse(source, 0..source.len()))
}

/// Parses the headers and the body in a range.
pub(crate) fn parse(source: &str, within: Range<usize>) -> Message {
    let mut headers: Vec<(String, String)> = Vec::new();
    let end = within.end;
    let mut body = end;
    for line in lines::lines(source, within) {
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
        boundary: boundary(content_type),
        encoding,
        body: body..end,
    }
}

fn is_header(line: &str) -> bool {
    let name = line.bytes().position(|byte| !matches!(byte, 0x21..=0x39 | 0x3b..=0x7e));
    line.starts_with([' ', '\t']) || line.starts_with("From ") || name.is_some_and(|end| line[end..].starts_with(':'))
}

fn boundary(content_type: &str) -> Option<String> {
    let plain = parameters(content_type).find(|(name, _)| name.eq_ignore_ascii_case("boundary"));
    let value = match plain {
        // Python removes quotes and brackets when it reads the header, and again when it is asked for the boundary.
        Some((_, value)) => unquoted(&unquoted(value)).into_owned(),
        None => boundary_of_pieces(content_type)?,
    };
    let value = value.trim_end();
    (!value.contains(['\n', '\r'])).then(|| value.to_owned())
}

/// A boundary in numbered pieces, or with its character set before it (RFC 2231; email/utils.py, `decode_params`).
fn boundary_of_pieces(content_type: &str) -> Option<String> {
    let mut is_extended = false;
    let mut pieces = Vec::new();
    for (name, value) in parameters(content_type) {
        let Some(number) = name
            .split_at_checked("boundary".len())
            .and_then(|(name, rest)| rest.strip_prefix('*').filter(|_| name.eq_ignore_ascii_case("boundary")))
        else {
            continue;
        };
        let value = unquoted(value);
        let number = number.strip_suffix('*').or((!number.is_empty()).then_some(number));
        let is_encoded = name.ends_with('*');
        is_extended |= is_encoded;
        let number = number.map(|number| number.parse::<u32>()).transpose().ok()?;
        pieces.push((number, if is_encoded { percent_decoded(&value)? } else { value.into_owned() }));
    }
    // Python cannot sort a piece without a number among numbered ones.
    let is_mixed = pieces.len() > 1 && pieces.iter().any(|(number, _)| number.is_none());
    pieces.sort();
    let value: String = pieces.iter().map(|(_, piece)| piece.as_str()).collect();
    match value.splitn(3, '\'').collect::<Vec<_>>()[..] {
        _ if pieces.is_empty() || is_mixed => None,
        [charset, _, value] if is_extended => {
            let charset = charset.to_ascii_lowercase();
            let has_ascii = ["us-ascii", "ascii", "utf-8", "utf8", "iso-8859-", "latin", "windows-125"];
            (charset.is_empty() || has_ascii.iter().any(|name| charset.starts_with(name))).then(|| value.to_owned())
        }
        _ if is_extended => Some(value),
        _ => Some(unquoted(&value).into_owned()),
    }
}

/// Decodes bytes that are written as `%` and two digits. `None` if the result is not ASCII.
fn percent_decoded(text: &str) -> Option<String> {
    let mut pieces = text.split('%');
    let mut decoded = pieces.next()?.to_owned();
    for piece in pieces {
        let digits =
            piece.split_at_checked(2).filter(|(digits, _)| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match digits {
            Some((digits, rest)) => {
                decoded.push(char::from(u8::from_str_radix(digits, 16).ok()?));
                decoded.push_str(rest);
            }
            None => decoded.extend(["%", piece]),
        }
    }
    decoded.is_ascii().then_some(decoded)
}

/// The parameters in the value of a header: `; name=value`, where the value may be in double quotes.
fn parameters(value: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut quoted = false;
    let mut escaped = false;
    let fields = value.split(move |c: char| {
        let is_end = c == ';' && !quoted;
        quoted ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        is_end
    });
    fields.skip(1).filter_map(|field| field.split_once('=')).map(|(name, value)| (name.trim(), value.trim()))
}

/// A text without the quotes or brackets around it (email/utils.py, `unquote`).
fn unquoted(text: &str) -> Cow<'_, str> {
    let inside = |open, close| text.strip_prefix(open).and_then(|text: &str| text.strip_suffix(close));
    match (inside('"', '"'), inside('<', '>')) {
        (Some(text), _) => Cow::Owned(text.replace("\\\\", "\\").replace("\\\"", "\"")),
        (None, Some(text)) => Cow::Borrowed(text),
        (None, None) => Cow::Borrowed(text),
    }
}

/// The parts of a body. As in Python, the outermost boundary ends everything inside it, and adjacent boundaries count
/// as one.
pub(crate) fn parts(source: &str, body: Range<usize>, boundary: &str) -> Parts {
    let mut found = Parts::default();
    let mut after_boundary = false;
    for line in lines::lines(source, body.clone()) {
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
            part.bytes.end = start + lines::without_break(&source[start..line.start]).len();
        }
        if is_close {
            found.close = Some(line.start);
            break;
        }
        found.parts.push(Part { boundary: line.start, bytes: line.end..body.end });
        after_boundary = true;
    }
    // In a message without a closing boundary, Python counts the last line break as part of the missing boundary.
    if let (None, Some(last)) = (found.close, found.parts.last_mut())
        && body.end == source.len()
    {
        let start = last.bytes.start;
        last.bytes.end = start + lines::without_break(&source[start..body.end]).len();
    }
    found
}

/// Whether a line is a boundary, and if so, whether it is the closing one.
fn boundary_kind(line: &str, boundary: &str) -> Option<bool> {
    let rest = line.strip_prefix("--")?.strip_prefix(boundary)?;
    let rest = lines::without_break(rest).trim_end_matches([' ', '\t']);
    match rest {
        "" => Some(false),
        "--" => Some(true),
        _ => None,
    }
}
