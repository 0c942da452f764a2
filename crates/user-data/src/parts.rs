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

/// Refuses a message if cloud-init would drop a part of it. Parts in quoted-printable and parts of types that are not
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
    /// Whether the content is the body as it is.
    is_plain: bool,
    /// Why the content cannot be decoded, if it cannot.
    problem: Option<String>,
}

impl Leaf<'_> {
    /// The kind of the content. `None` if cloud-init has no rule for the part, or its content cannot be decoded.
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
        let reason = format!("cloud-init drops this part, because of its line {line}, column {column}: {reason}");
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

/// Decodes a part. `None` if the body cannot be judged: its encoding is another one, or it is not text, which is
/// possible for types that are not cloud-init's own.
fn leaf<'a>(source: &'a str, message: &Message) -> Option<Leaf<'a>> {
    let body = &source[message.body.clone()];
    let content_type = message.content_type.clone();
    let decoded = match message.encoding {
        Encoding::Plain => as_read(body),
        Encoding::Base64 => decoded(body, &content_type).map(Cow::Owned),
        Encoding::Other => return None,
    };
    let (content, problem) = match decoded {
        Ok(content) => (content, None),
        Err(problem) if is_own(&content_type) => (Cow::Borrowed(""), Some(problem)),
        Err(_) => return None,
    };
    let is_plain = message.encoding == Encoding::Plain;
    Some(Leaf { content_type, content, body: message.body.clone(), is_plain, problem })
}

/// A body without encoding, in the form in which Python's email package returns it: with characters other than ASCII in
/// Latin-1, and characters that Latin-1 lacks as `\u` and digits (email/message.py, `get_payload`). cloud-init then
/// decodes UTF-8, and fails on Latin-1.
fn as_read(body: &str) -> Result<Cow<'_, str>, String> {
    let latin = |c: char| ('\u{80}'..='\u{ff}').contains(&c);
    match body.chars().find(|c| latin(*c)) {
        Some(found) => Err(format!(
            "cloud-init cannot read the character {found:?} in a part that is not encoded; encode the part in base64, \
             with \"Content-Transfer-Encoding: base64\""
        )),
        None => Ok(Cow::Borrowed(body)),
    }
}

/// The text that a body in base64 encodes, or why there is none. cloud-init fails to write what is not UTF-8.
fn decoded(body: &str, content_type: &str) -> Result<String, String> {
    let bytes = bytes(body).ok_or("it is not in base64, although its header says so; encode it again")?;
    let bytes = if COMPRESSED.contains(&content_type) { gzip::unpack(&bytes)? } else { bytes };
    String::from_utf8(bytes).map_err(|_| "it is not text in UTF-8; convert it to that, and encode it again".to_owned())
}

/// Whether cloud-init itself does something with parts of this type.
fn is_own(content_type: &str) -> bool {
    let is_judged = is_detected(content_type) || kind::of_type(content_type).is_some();
    is_judged || COMPRESSED.contains(&content_type) || content_type == "text/cloud-boothook"
}

#[cfg(test)]
mod tests {
    use crate::check;

    #[test]
    fn a_part_that_is_not_encoded_has_no_character_that_cloud_init_fails_on() {
        let judged = |encoding: &str, text: &str| {
            let part =
                format!("Content-Type: text/cloud-config; charset=utf-8\n{encoding}\n#cloud-config\na: {text}\n");
            let message = format!("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\n{part}--b--\n");
            check(message.as_bytes()).map_err(|refusal| refusal.to_string())
        };
        for encoding in ["", "Content-Transfer-Encoding: 8bit\n", "Content-Transfer-Encoding: 7bit\n"] {
            let refusal = judged(encoding, "für").expect_err(encoding);
            assert!(refusal.contains("cannot read the character 'ü'") && refusal.contains("base64"), "{refusal}");
            assert_eq!(judged(encoding, "a → b"), Ok(()), "read as \\u2192");
        }
    }

    #[test]
    fn a_part_that_cannot_be_decoded_is_refused_if_cloud_init_would_use_it() {
        let judged = |content_type: &str, body: &str| {
            let header = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\n";
            let part = format!("Content-Type: {content_type}\nContent-Transfer-Encoding: base64\n\n{body}\n");
            check(format!("{header}{part}--b--\n").as_bytes()).map_err(|refusal| refusal.to_string())
        };
        // "#!/bin/sh\n" with and without the `=` at its end, and a script with a letter in Latin-1.
        let (script, open, latin) = ("IyEvYmluL3NoCg==", "IyEvYmluL3NoCg", "IyEvYmluL3NoCiPkCg==");
        for right in [script, open] {
            assert_eq!(judged("text/x-shellscript", right), Ok(()), "{right}");
        }
        for (wrong, reason) in [("!yEvYmluL3NoCg==", "not in base64"), ("IyEvY", "not in base64"), (latin, "UTF-8")] {
            for content_type in ["text/x-shellscript", "text/plain", "text/cloud-boothook", "text/jinja2"] {
                let refusal = judged(content_type, wrong).expect_err(wrong);
                assert!(refusal.contains("line 8, column 1: ") && refusal.contains(reason), "{refusal}");
            }
            assert_eq!(judged("image/png", wrong), Ok(()), "it is not cloud-init's");
        }
    }
}
