//! Judges the parts of a MIME message as cloud-init would read them (cloudinit/user_data.py, `_process_msg`).

use std::borrow::Cow;
use std::ops::Range;

use crate::kind::{self, Kind, Whole};
use crate::mime::{self, Encoding, Message};
use crate::multipart::{DEPTH, bytes, is_detected, parts_boundary};
use crate::refusal::Refusal;
use crate::{archive, content, gzip, lines};

/// Types of parts that are compressed with gzip (cloudinit/user_data.py, `DECOMP_TYPES`).
const COMPRESSED: &[&str] = &[
    "application/gzip",
    "application/gzip-compressed",
    "application/gzipped",
    "application/x-compress",
    "application/x-compressed",
    "application/x-gunzip",
    "application/x-gzip",
    "application/x-gzip-compressed",
];

/// Refuses a message of which cloud-init would drop a part. Parts in quoted-printable and parts of types that are not
/// cloud-init's own are not looked at.
pub(crate) fn judge(source: &str, message: &Message) -> Result<(), Refusal> {
    parts_boundary(source, message)?;
    let mut leaves = Vec::new();
    find(source, message, DEPTH, &mut leaves);
    let kinds: Vec<_> = leaves.iter().map(|leaf| leaf.kind()).collect();
    // A handler may be for any type, also for text without a header.
    let has_handler = kinds.contains(&Some(Ok(Kind::Whole(Whole::PartHandler))));
    for (leaf, kind) in leaves.iter().zip(kinds) {
        let judged = match kind {
            None => leaf.problem.clone().map_or(Ok(()), |reason| Err(Refusal { line: 1, column: 1, reason })),
            Some(Err(_)) if has_handler => Ok(()),
            Some(Err(refusal)) => Err(refusal),
            Some(Ok(Kind::Archive)) => archive::judged(&leaf.content).map(drop),
            Some(Ok(kind)) => content::judge(&leaf.content, kind),
        };
        judged.map_err(|refusal| leaf.placed(source, refusal))?;
    }
    Ok(())
}

/// A part without parts.
struct Leaf<'a> {
    content_type: String,
    content: Cow<'a, str>,
    body: Range<usize>,
    /// The content is the body as it is.
    is_plain: bool,
    /// Why the content cannot be had.
    problem: Option<String>,
}

impl Leaf<'_> {
    /// `None` if cloud-init has no rule for it.
    fn kind(&self) -> Option<Result<Kind, Refusal>> {
        match &*self.content_type {
            _ if self.problem.is_some() => None,
            "text/x-shellscript" => Some(Ok(kind::detect(&self.content).unwrap_or(Kind::Whole(Whole::Script)))),
            detected if is_detected(detected) || COMPRESSED.contains(&detected) => Some(kind::detect(&self.content)),
            // Without the header of a template, cloud-init takes the text as it is.
            "text/jinja2" if kind::detect(&self.content) != Ok(Kind::Jinja) => None,
            other => kind::of_type(other).map(Ok),
        }
    }

    /// The refusal with its place in the message. In an encoded part, no place is known but its beginning.
    fn placed(&self, source: &str, refusal: Refusal) -> Refusal {
        let (first, _) = lines::place(source, self.body.start);
        if self.is_plain {
            return Refusal { line: first + refusal.line - 1, ..refusal };
        }
        let Refusal { line, column, reason } = refusal;
        let reason = format!("cloud-init drops this part, because of line {line}, column {column} of it: {reason}");
        Refusal { line: first, column: 1, reason }
    }
}

fn find<'a>(source: &'a str, message: &Message, depth: usize, leaves: &mut Vec<Leaf<'a>>) {
    match &message.boundary {
        Some(boundary) if message.content_type.starts_with("multipart/") => {
            for part in mime::parts(source, message.body.clone(), boundary).parts {
                if depth > 0 {
                    find(source, &mime::parse(source, part.bytes), depth - 1, leaves);
                }
            }
        }
        _ => leaves.extend(leaf(source, message)),
    }
}

/// `None` if the body cannot be decoded, so that nothing is known of it.
fn leaf<'a>(source: &'a str, message: &Message) -> Option<Leaf<'a>> {
    let body = &source[message.body.clone()];
    let content_type = message.content_type.clone();
    let mut problem = None;
    let content = match message.encoding {
        Encoding::Plain => Cow::Borrowed(body),
        Encoding::Base64 => {
            let mut bytes = bytes(body)?;
            if COMPRESSED.contains(&&*content_type) {
                bytes = gzip::unpack(&bytes).unwrap_or_else(|reason| {
                    problem = Some(reason);
                    Vec::new()
                });
            }
            Cow::Owned(String::from_utf8(bytes).ok()?)
        }
        Encoding::Other => return None,
    };
    let is_plain = message.encoding == Encoding::Plain;
    Some(Leaf { content_type, content, body: message.body.clone(), is_plain, problem })
}
