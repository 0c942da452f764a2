//! Determines the kind of user-data as cloud-init does (cloudinit/handlers/__init__.py): leading white space is
//! stripped, case is ignored, and the longest prefix wins.

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

/// Prefixes known to cloud-init. A longer one comes before its own prefix.
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
    let reason = if start.starts_with('\u{feff}') {
        "the text starts with a byte order mark, after which cloud-init does not look for a header; remove it"
    } else {
        "cloud-init does not recognise the text: its first line is not one of the headers that cloud-init knows; begin \
         a cloud-config with \"#cloud-config\""
    };
    Err(Refusal::at_byte(text, text.len() - start.len(), reason))
}
