//! Archives: a YAML list of parts (cloud-init documentation, "User data formats", "Cloud config archive").

use crate::block::Block;
use crate::document::{self, Entry};
use crate::edit::{self, Blocks, Reading, Unfit};
use crate::jinja;
use crate::kind::{self, Kind};
use crate::refusal::Refusal;

/// Adds a part to the archive. It replaces the last part if that is only a block.
pub(crate) fn inject(source: &str, block: &Block) -> Result<String, Unfit> {
    let item = |column: usize, newline: &str| {
        let margin = " ".repeat(column);
        let content = block.document("\n");
        let content: String = content.lines().map(|line| format!("{margin}    {line}{newline}")).collect();
        format!("{margin}- type: text/cloud-config{newline}{margin}  content: |{newline}{content}")
    };
    edit::append_item(source, &item, |entry| is_nothing_but(entry, Blocks::All))
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

/// The content of a part without the blocks to drop. `None` if it has none of them. cloud-init looks for a header only
/// if there is no type. A part with neither is a cloud-config (cloudinit/user_data.py, `_explode_archive`).
fn without_blocks(entry: &Entry, drop: Blocks) -> Result<Option<String>, Refusal> {
    let Some(content) = entry.field.as_ref().filter(|_| !entry.is_pieced) else { return Ok(None) };
    let named = entry.content_type.as_deref().filter(|named| named.contains('/'));
    let essence = named.map(|named| named.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    let reading = match (essence.as_deref(), kind::detect(content)) {
        (Some("text/cloud-config"), _) | (None, Ok(Kind::CloudConfig) | Err(_)) => Reading::Yaml,
        (Some("text/jinja2"), _) | (None, Ok(Kind::Jinja)) if jinja::is_cloud_config(content) == Ok(true) => {
            Reading::Jinja
        }
        _ => return Ok(None),
    };
    edit::remove(content, drop, reading)
}
