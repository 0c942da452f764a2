//! Archives: a YAML list of parts (cloud-init documentation, "User data formats", "Cloud config archive").

use crate::block::Block;
use crate::document::{self, Document, Entry, Root};
use crate::edit::{self, Blocks, Reading, Unfit};
use crate::kind::{self, Kind};
use crate::refusal::Refusal;
use crate::{content, jinja};

/// Adds a part to the archive. The new part replaces the last part if that is only a block.
pub(crate) fn inject(source: &str, block: &Block) -> Result<String, Unfit> {
    let item = |column: usize, newline: &str| {
        let margin = " ".repeat(column);
        let content = block.document("\n");
        let content: String = content.lines().map(|line| format!("{margin}    {line}{newline}")).collect();
        format!("{margin}- type: text/cloud-config{newline}{margin}  content: |{newline}{content}")
    };
    let before = judged(source).map_err(Unfit::Refused)?;
    edit::append_item(source, &before, &item, |entry| is_nothing_but(entry, Blocks::All))
}

/// Parses an archive. Refused if cloud-init would not understand the archive or one of its parts.
pub(crate) fn judged(source: &str) -> Result<Document, Refusal> {
    let document = document::parse(source)?;
    if let Some(entry) = document.entries.iter().find(|entry| entry.is_unfit) {
        let reason = "cloud-init fails on this part and drops all parts: content and type must be strings, and \
                      type must contain a slash";
        return Err(at(source, entry, reason));
    }
    if matches!(document.root, Root::Mapping | Root::Braces) {
        let reason = "the root of the document is a mapping; an archive is a list";
        return Err(Refusal::at_byte(source, document.inside.start, reason));
    }
    for entry in &document.entries {
        let Some((content, kind)) = part(entry) else { continue };
        content::judge(content, kind).map_err(|Refusal { line, column, reason }| {
            let reason = format!("cloud-init drops this part, because of its line {line}, column {column}: {reason}");
            at(source, entry, &reason)
        })?;
    }
    Ok(document)
}

/// The content and the kind of a part, as far as they are known. cloud-init looks for a header only if there is no
/// type. A part with neither is a cloud-config (cloudinit/user_data.py, `_explode_archive`).
fn part(entry: &Entry) -> Option<(&str, Kind)> {
    let content = entry.field.as_deref().filter(|_| !entry.is_pieced)?;
    let named = entry.content_type.as_deref().filter(|named| named.contains('/'));
    let essence = named.map(|named| named.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    let kind = match essence {
        Some(essence) => kind::of_type(&essence)?,
        None => kind::detect(content).unwrap_or(Kind::CloudConfig),
    };
    Some((content, kind))
}

/// Removes the blocks to drop. `None` if the archive has none of them or is not YAML.
pub(crate) fn remove(source: &str, drop: Blocks) -> Result<Option<String>, Refusal> {
    let Ok(before) = document::parse(source) else { return Ok(None) };
    let mut items = Vec::new();
    for entry in &before.entries {
        let without = without_blocks(entry, drop).map_err(|refusal| at(source, entry, &refusal.reason))?;
        if without.as_ref().is_some_and(|content| !content.is_empty()) {
            let reason = "the phone_home block is among other keys of this part; remove it by hand";
            return Err(at(source, entry, reason));
        }
        items.push(without.is_some());
    }
    edit::remove_entries(source, &before, &items, Reading::Yaml)
}

fn at(source: &str, entry: &Entry, reason: &str) -> Refusal {
    Refusal::at_byte(source, entry.bytes.start, reason)
}

fn is_nothing_but(entry: &Entry, drop: Blocks) -> bool {
    matches!(without_blocks(entry, drop), Ok(Some(content)) if content.is_empty())
}

/// The content of a part without the blocks to drop. `None` if the part has none of them.
fn without_blocks(entry: &Entry, drop: Blocks) -> Result<Option<String>, Refusal> {
    match part(entry) {
        Some((content, Kind::CloudConfig)) => edit::remove(content, drop, Reading::Yaml),
        Some((content, Kind::Jinja)) if jinja::is_cloud_config(content) == Ok(true) => {
            edit::remove(content, drop, Reading::Jinja)
        }
        _ => Ok(None),
    }
}
