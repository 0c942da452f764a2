//! What sort of user-data a text is, decided as cloud-init decides it (cloudinit/user_data.py and handlers/__init__.py):
//! leading white space stripped, case ignored, the longest prefix wins.

use crate::Refusal;

/// The sorts that can be edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing but white space.
    Empty,
    /// Starts with `#cloud-config`.
    CloudConfig,
}

/// Prefixes cloud-init knows, longer ones before their own prefixes; `None` for the one that can be edited.
const PREFIXES: &[(&str, Option<&str>)] = &[
    ("#cloud-config-archive", Some("a cloud-config archive")),
    ("#cloud-config-jsonp", Some("a JSON patch")),
    ("#cloud-config", None),
    ("#cloud-boothook", Some("a boothook")),
    ("#include-once", Some("a list of URLs to include")),
    ("#include", Some("a list of URLs to include")),
    ("#part-handler", Some("a part handler")),
    ("#upstart-job", Some("an upstart job")),
    ("## template: jinja", Some("a jinja template")),
    ("#!", Some("a script")),
];

/// cloud-init looks for a MIME header this far into the text.
const MIME_WINDOW: usize = 4096;

pub(crate) fn of(text: &str) -> Result<Kind, Refusal> {
    let start = text.trim_start();
    if start.is_empty() {
        return Ok(Kind::Empty);
    }
    let skipped = &text[..text.len() - start.len()];
    let line = 1 + skipped.matches('\n').count();
    let column = 1 + skipped.rsplit('\n').next().unwrap_or_default().chars().count();
    let refuse = |what: &str| {
        let reason =
            format!("the user-data is {what}, and phone_home can only be put into a \"#cloud-config\" document");
        Err(Refusal::at(line, column, reason))
    };
    let window: String = start.chars().take(MIME_WINDOW).collect::<String>().to_ascii_lowercase();
    for (prefix, refused_as) in PREFIXES {
        if window.starts_with(prefix) {
            return refused_as.map_or(Ok(Kind::CloudConfig), refuse);
        }
    }
    if window.contains("mime-version:") || window.starts_with("content-type:") {
        return refuse("a MIME message");
    }
    refuse("nothing cloud-init recognises (its first line has none of the headers cloud-init knows)")
}
