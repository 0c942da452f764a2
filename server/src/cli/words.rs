//! Formats values and tables as text.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use slipway_protocol::shared::printable::line;
use slipway_protocol::{Firmware, NodeStatus};
use slipway_server::base::time::Millis;

/// Text for a missing value.
pub fn dash() -> String {
    "-".to_owned()
}

/// Truncates a message to `room` characters.
pub fn cut_to(said: &str, room: usize) -> String {
    if said.chars().count() <= room {
        return said.to_owned();
    }
    said.chars().take(room.saturating_sub(1)).chain(['…']).collect()
}

/// Formats a duration in its two largest units.
pub fn duration(millis: Millis) -> String {
    slipway_protocol::shared::duration::words(Duration::from_millis(millis))
}

/// The protocol's word for an enum value without data.
pub fn word<T: Serialize>(value: &T) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Formats a table. Columns are as wide as their widest cell. Text from machines and files cannot break out of its
/// cell.
pub fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let header: Vec<String> = header.iter().map(|&title| title.to_owned()).collect();
    let rows = rows.iter().map(|row| row.iter().map(|cell| line(cell).into_owned()).collect());
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// The word on the command line for one of several possible values.
pub fn possible<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Parses a label: `KEY=VALUE`.
pub fn label_pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "a label is given as KEY=VALUE".to_owned())
}

/// The name of a node, or its id if it has no name.
pub fn label(node: &NodeStatus) -> &str {
    node.name.as_deref().unwrap_or(&node.id)
}

/// Describes the state of Secure Boot. `own_key` is the site's platform key; without one, nothing is said about whose
/// keys the machine has. With `advises`, adds what to do. `None` for a machine with a BIOS, or if the state is unknown.
pub fn secure_boot(firmware: &Firmware, own_key: Option<&str>, advises: bool) -> Option<String> {
    let keys = match (firmware.platform_key.as_deref(), own_key) {
        (_, None) => "",
        (None, _) => ", with unknown keys",
        (found, _) if found == own_key => ", with this site's keys",
        (Some(_), _) => ", but not with this site's keys",
    };
    let in_setup = !firmware.secure_boot? && firmware.setup_mode == Some(true);
    let advice = match in_setup {
        true => " and accepts keys (run start --secure-boot)",
        false => "; switch it on in the firmware's setup",
    };
    let advice = if advises && own_key.is_some() { advice } else { "" };
    Some(match firmware.secure_boot? {
        true => format!("on{keys}"),
        false if in_setup => format!("off; the firmware is in Setup Mode{advice}"),
        false => format!("off{keys}{advice}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_secure_boot_says_whose_keys_there_are() {
        let check = |secure_boot: Option<bool>, setup_mode: Option<bool>, key: Option<&str>, expect: Option<&str>| {
            let platform_key = key.map(str::to_owned);
            let firmware = Firmware { uefi: true, secure_boot, setup_mode, platform_key, ..Firmware::default() };
            let said = super::secure_boot(&firmware, Some("ours"), true);
            assert_eq!(said.as_deref(), expect);
            // After a failure, the state is shown without advice.
            let without = super::secure_boot(&firmware, Some("ours"), false);
            assert!(!without.as_deref().is_some_and(|state| state.contains("menu") || state.contains("run start")));
            assert!(said.is_none_or(|said| said.starts_with(without.as_deref().unwrap_or("nothing"))));
        };
        check(None, None, None, None);
        check(Some(true), Some(false), Some("ours"), Some("on, with this site's keys"));
        check(Some(true), Some(false), Some("theirs"), Some("on, but not with this site's keys"));
        check(Some(true), None, None, Some("on, with unknown keys"));
        let setup = "off; the firmware is in Setup Mode and accepts keys (run start --secure-boot)";
        check(Some(false), Some(true), None, Some(setup));
        let off = "off, with this site's keys; switch it on in the firmware's setup";
        check(Some(false), Some(false), Some("ours"), Some(off));
        let theirs =
            Firmware { secure_boot: Some(true), platform_key: Some("theirs".to_owned()), ..Firmware::default() };
        assert_eq!(super::secure_boot(&theirs, None, true).as_deref(), Some("on"));
        let off = Firmware { secure_boot: Some(false), ..theirs };
        assert_eq!(super::secure_boot(&off, None, true).as_deref(), Some("off"));
    }
}
