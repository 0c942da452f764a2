//! Judges a network configuration of a NoCloud seed (cloud-init documentation, "Networking config Version 1" and
//! "Version 2").
//!
//! cloud-init falls back to a configuration of its own if it cannot read this one, and fails or configures nothing if
//! it cannot use it. What cloud-init does is taken from its source code (cloudinit/stages.py,
//! `_find_networking_config`, and cloudinit/net/network_state.py). Version 2 goes to netplan as it is where netplan is
//! installed. Elsewhere cloud-init carries it out itself. What only netplan or only cloud-init supports is accepted,
//! except for two things that make netplan refuse the whole configuration: an unknown key, and a device that is named
//! but not defined.

mod address;
mod v1;
mod v2;

use crate::refusal::Refusal;
use crate::tree::{self, Entry, Node, Value};

/// Most bytes of a network configuration.
pub const MAX_BYTES: usize = 1 << 20;
/// Longest name of a network interface (Linux, `IFNAMSIZ`).
const LONGEST_NAME: usize = 15;
/// Largest number of a VLAN (IEEE 802.1Q, 9.6).
const LARGEST_VLAN: u32 = 4094;
/// Modes of bonds, by their numbers (Linux, Documentation/networking/bonding.rst).
const BOND_MODES: &[&str] =
    &["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];

/// Refuses a network configuration that cloud-init would ignore or fail on, with line and column.
pub fn check(config: &str) -> Result<(), Refusal> {
    let whole = |reason: String| Refusal { line: 1, column: 1, reason };
    if config.len() > MAX_BYTES {
        return Err(whole(format!("the network configuration has more than {} MiB", MAX_BYTES >> 20)));
    }
    // PyYAML skips a byte order mark at the beginning.
    let config = config.strip_prefix('\u{feff}').unwrap_or(config);
    let Some(root) = tree::parse(config)? else {
        let reason = "the network configuration is empty, so cloud-init would make one of its own; to have that, leave \
                      it out; to have none, write \"config: disabled\"";
        return Err(whole(reason.to_owned()));
    };
    judge(&root).map_err(|Wrong { at, reason }| Refusal::at_byte(config, at, reason))
}

/// What is wrong, and at which byte offset.
struct Wrong {
    at: usize,
    reason: String,
}

type Judged<T = ()> = Result<T, Wrong>;

fn wrong<T>(at: usize, reason: impl Into<String>) -> Judged<T> {
    Err(Wrong { at, reason: reason.into() })
}

fn judge(root: &Node) -> Judged {
    let entries = mapping(root, "a network configuration")?;
    let Some(inner) = root.get("network") else { return judge_version(root) };
    if let Some(other) = entries.iter().find(|entry| entry.key != "network") {
        return wrong(other.at, format!("cloud-init ignores {:?} beside \"network\"; move it below that", other.key));
    }
    mapping(&inner.value, "network")?;
    judge_version(&inner.value)
}

fn judge_version(config: &Node) -> Judged {
    if config.get("config").is_some_and(|entry| entry.value.scalar() == Some("disabled")) {
        return Ok(());
    }
    let Some(version) = config.get("version") else {
        return wrong(config.at, "a network configuration has the key \"version\", which is 1 or 2; add it");
    };
    match &version.value.value {
        Value::Other(number) if number == "1" => v1::judge(config),
        Value::Other(number) if number == "2" => v2::judge(config),
        _ => wrong(version.value.at, "version must be the number 1 or 2, without quotes"),
    }
}

fn mapping<'a>(node: &'a Node, what: &str) -> Judged<&'a [Entry]> {
    node.mapping().map_or_else(|| wrong(node.at, format!("{what} must be a mapping; check the indentation")), Ok)
}

fn list<'a>(node: &'a Node, what: &str) -> Judged<&'a [std::rc::Rc<Node>]> {
    node.list().map_or_else(|| wrong(node.at, format!("{what} must be a list: {what}: [...]")), Ok)
}

/// The value of a key. None if the key has no value or an empty text: cloud-init leaves out such a key.
fn given<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    node.get(key).map(|entry| &*entry.value).filter(|value| !value.is_null() && value.scalar() != Some(""))
}

/// Refuses a value that is not a number. A number may be in quotes.
fn judge_number(node: &Node, key: &str) -> Judged {
    given(node, key).map_or(Ok(()), |value| judge_whole(value, key))
}

fn judge_whole(value: &Node, key: &str) -> Judged {
    let is_octal = |text: &str| text.len() > 1 && text.starts_with('0');
    match &value.value {
        // PyYAML reads 010 as 8.
        Value::Other(text) if text.parse::<u32>().is_ok() && !is_octal(text) => Ok(()),
        Value::Text(text) if text.parse::<u32>().is_ok() => Ok(()),
        _ => wrong(value.at, format!("{key} must be a whole number in decimal digits")),
    }
}

/// Refuses a device's name that is a variable of a template, or, if it names an interface, that no network interface
/// can have (Linux, `dev_valid_name`).
fn judge_name(name: &str, at: usize, is_interface: bool) -> Judged {
    if name.contains(['$', '{', '}']) {
        return wrong(at, format!("{name:?} looks like a variable of a template that was not filled in"));
    }
    let is_plain = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control());
    let is_valid = name.len() <= LONGEST_NAME && !name.contains(['/', ':']) && name != "." && name != "..";
    if is_plain && (is_valid || !is_interface) {
        return Ok(());
    }
    let reason =
        format!("{name:?} cannot be the name of a network interface: at most {LONGEST_NAME} characters, without");
    wrong(at, format!("{reason} spaces, colons and slashes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_refused(config: &str, expect: &str) {
        let refusal = check(config).expect_err(config).to_string();
        assert!(refusal.starts_with(expect), "{config:?}: {refusal}");
    }

    #[test]
    fn what_is_no_network_configuration_is_told_with_its_place() {
        check_refused("", "line 1, column 1: the network configuration is empty");
        check_refused("# none\n---\n", "line 1, column 1: the network configuration is empty");
        check_refused(
            "version: 2\nethernets: {eth0: {addresses: [192.0.2.5/24]}\n",
            "line 2, column 12: this is not YAML",
        );
        check_refused("version: 2\nethernets:\n\teth0: {}\n", "line 3, column 2: ");
        check_refused(
            "auto lo\niface lo inet loopback\n",
            "line 1, column 1: a network configuration must be a mapping",
        );
        check_refused("network: {version: 2}\nethernets: {}\n", "line 2, column 1: cloud-init ignores \"ethernets\"");
        check_refused("network:\n", "line 1, column 8: network must be a mapping");
        check_refused("version: '2'\n", "line 1, column 10: version must be the number 1 or 2");
        check_refused("version: 3\n", "line 1, column 10: version must be");
        check_refused("version: 2\nversion: 1\n", "line 2, column 1: the key \"version\" is already in this mapping");
        check_refused("version: 2\n---\nversion: 2\n", "line 2, column 1: a second document");
        let large = format!("version: 2\n#{}\n", "-".repeat(MAX_BYTES));
        check_refused(&large, "line 1, column 1: the network configuration has more than 1 MiB");
    }
}
