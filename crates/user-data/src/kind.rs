//! Determines the kind of user-data as cloud-init does (cloudinit/handlers/__init__.py): leading white space is
//! stripped, case is ignored, and the longest prefix wins.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::lines;
use crate::refusal::Refusal;

/// The kinds of user-data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only white space.
    Empty,
    /// YAML: a mapping.
    CloudConfig,
    /// YAML: a list of parts.
    Archive,
    /// A template that is rendered to a cloud-config or a script.
    Jinja,
    /// User-data with no place for another key.
    Whole(Whole),
}

/// The kinds with no place for another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    Script,
    JsonPatch,
    Include,
    PartHandler,
    Boothook,
}

/// Prefixes known to cloud-init. A prefix that begins with another one comes before the other one.
const PREFIXES: &[(&str, Kind)] = &[
    ("text/x-shellscript-per-instance", Kind::Whole(Whole::Script)),
    ("text/x-shellscript-per-boot", Kind::Whole(Whole::Script)),
    ("text/x-shellscript-per-once", Kind::Whole(Whole::Script)),
    ("#cloud-config-archive", Kind::Archive),
    ("#cloud-config-jsonp", Kind::Whole(Whole::JsonPatch)),
    ("#cloud-config", Kind::CloudConfig),
    ("#cloud-boothook", Kind::Whole(Whole::Boothook)),
    ("#include", Kind::Whole(Whole::Include)),
    ("#part-handler", Kind::Whole(Whole::PartHandler)),
    ("## template: jinja", Kind::Jinja),
    ("#!", Kind::Whole(Whole::Script)),
];
const LONGEST_PREFIX: usize = 31;

/// The kind of a text that is not a MIME message.
pub(crate) fn detect(text: &str) -> Result<Kind, Refusal> {
    let start = text.trim_start_matches(lines::is_python_space);
    if start.is_empty() {
        return Ok(Kind::Empty);
    }
    let head: String = start.chars().take(LONGEST_PREFIX).flat_map(char::to_lowercase).collect();
    if let Some((_, kind)) = PREFIXES.iter().find(|(prefix, _)| head.starts_with(prefix)) {
        return Ok(*kind);
    }
    Err(Refusal::at_byte(text, text.len() - start.len(), unknown(start)))
}

/// The kind of a part with a content type, if it does not depend on the content (cloudinit/handlers/__init__.py,
/// `INCLUSION_TYPES_MAP`).
pub(crate) fn of_type(content_type: &str) -> Option<Kind> {
    match content_type {
        "text/cloud-config" => Some(Kind::CloudConfig),
        "text/cloud-config-archive" => Some(Kind::Archive),
        "text/cloud-config-jsonp" => Some(Kind::Whole(Whole::JsonPatch)),
        "text/jinja2" => Some(Kind::Jinja),
        "text/part-handler" => Some(Kind::Whole(Whole::PartHandler)),
        "text/x-include-url" | "text/x-include-once-url" => Some(Kind::Whole(Whole::Include)),
        _ => None,
    }
}

/// Why a text without a header is refused, with the mistake that it looks like.
fn unknown(start: &str) -> String {
    if start.starts_with('\u{feff}') {
        let reason =
            "the text starts with a byte order mark, after which cloud-init does not look for a header; remove it";
        return reason.to_owned();
    }
    let first = start.lines().next().unwrap_or_default().trim_end();
    let letters: String = first.chars().filter(char::is_ascii_alphabetic).flat_map(char::to_lowercase).collect();
    let mistake = if is_base64(first) {
        "it is in base64: decode it"
    } else if first.starts_with('<') {
        "it looks like a web page, perhaps one that asks for a login"
    } else if first.contains('\0') {
        "it looks like UTF-16: save it as UTF-8"
    } else if first.starts_with('#') && letters == "cloudconfig" {
        "the header is \"#cloud-config\", with neither a space nor another character in it"
    } else if first.starts_with("variant:") {
        "it looks like a Butane config: convert it with Butane"
    } else {
        "its first line is not one of the headers that cloud-init knows; begin a cloud-config with \"#cloud-config\""
    };
    format!("cloud-init does not recognise the text: {mistake}")
}

/// Whether a line is base64 of a header, of gzip, or of an Ignition config.
fn is_base64(line: &str) -> bool {
    let whole = line.get(..line.len() / 4 * 4).unwrap_or_default();
    let decoded = STANDARD.decode(whole).unwrap_or_default();
    [&b"#"[..], b"{", b"\x1f\x8b", b"Content-Type:", b"MIME-Version:"].iter().any(|head| decoded.starts_with(head))
}
