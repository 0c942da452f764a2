//! Values and tables as text.

use clap::ValueEnum;
use serde::Serialize;
use slipway_protocol::printable::line;
use slipway_protocol::{Firmware, NodeStatus, Proof};
use slipway_server::time::Millis;

/// What a machine must prove, as an option.
#[derive(Clone, Copy, Default, ValueEnum)]
pub enum ProofName {
    /// The identifiers that were registered. Anybody on its network can read and repeat them.
    #[default]
    Registered,
    /// A bootstrap token that was made for the node.
    Token,
    /// The TPM that the node is known by.
    Attested,
}

impl From<ProofName> for Proof {
    fn from(name: ProofName) -> Self {
        match name {
            ProofName::Registered => Self::Registered,
            ProofName::Token => Self::Token,
            ProofName::Attested => Self::Attested,
        }
    }
}

/// The text for a missing value.
pub fn dash() -> String {
    "-".to_owned()
}

/// Cuts a message to `room` characters.
pub fn cut_to(said: &str, room: usize) -> String {
    if said.chars().count() <= room {
        return said.to_owned();
    }
    said.chars().take(room.saturating_sub(1)).chain(['…']).collect()
}

/// A length of time in its two largest units.
pub fn duration(millis: Millis) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Bytes in the largest decimal unit that gives at least one.
pub fn bytes(count: u64) -> String {
    let units = [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];
    match units.iter().find(|(_, size)| count >= *size) {
        Some((unit, size)) => format!("{}.{} {unit}", count / size, count % size * 10 / size),
        None => format!("{count} B"),
    }
}

/// The protocol's name of an enum value without data.
pub fn word<T: Serialize>(value: &T) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// A table whose columns are as wide as their widest cell. Texts of machines and files cannot break out of their cell.
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

/// The name of a node, else its id.
pub fn label(node: &NodeStatus) -> &str {
    node.name.as_deref().unwrap_or(&node.id)
}

/// The state of Secure Boot. `own_key` is the site's platform key. None for a machine with a BIOS, or if it is unknown.
pub fn secure_boot(firmware: &Firmware, own_key: Option<&str>) -> Option<String> {
    let keys = match firmware.platform_key.as_deref() {
        None => "keys that are unknown",
        found if found == own_key => "the keys of this site",
        Some(_) => "other keys than those of this site",
    };
    Some(match (firmware.secure_boot?, firmware.setup_mode) {
        (true, _) => format!("on, with {keys}"),
        (false, Some(true)) => {
            "off; the firmware is in Setup Mode and can be given keys (run start --secure-boot)".to_owned()
        }
        (false, _) => format!("off, with {keys}; it is switched on in the firmware's menu"),
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
            assert_eq!(super::secure_boot(&firmware, Some("ours")).as_deref(), expect);
        };
        check(None, None, None, None);
        check(Some(true), Some(false), Some("ours"), Some("on, with the keys of this site"));
        check(Some(true), Some(false), Some("theirs"), Some("on, with other keys than those of this site"));
        check(Some(true), None, None, Some("on, with keys that are unknown"));
        let setup = "off; the firmware is in Setup Mode and can be given keys (run start --secure-boot)";
        check(Some(false), Some(true), None, Some(setup));
        let off = "off, with the keys of this site; it is switched on in the firmware's menu";
        check(Some(false), Some(false), Some("ours"), Some(off));
        let theirs =
            Firmware { secure_boot: Some(true), platform_key: Some("theirs".to_owned()), ..Firmware::default() };
        assert_eq!(super::secure_boot(&theirs, None).as_deref(), Some("on, with other keys than those of this site"));
    }
}
