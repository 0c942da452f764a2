//! The keys of devices and what their values are, as netplan's parser has them (netplan, src/parse.c).
//!
//! netplan ignores a whole configuration if it finds another key or another kind of value in it.

use crate::network::address::{is_host, judge_hardware};
use crate::network::{BOND_MODES, Judged, judge_whole, list, mapping, wrong};
use crate::tree::{Entry, Node};

/// What the value of a key is.
#[derive(Clone, Copy)]
pub(super) enum Is {
    /// True or false, in YAML's words for it.
    Bool,
    /// A whole number from 0.
    Number,
    /// Any text or number.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A mode of a bond, also of Open vSwitch.
    BondMode,
    /// A hardware address, or a word for a generated one.
    Mac,
    /// An address of a host.
    Host,
    List,
    /// A list of these words.
    Words(&'static [&'static str]),
    /// A list of addresses of hosts. cloud-init takes a single one too.
    Hosts,
    Mapping,
    /// A list of texts. cloud-init takes a single one too.
    Texts,
    /// A mapping with these keys.
    Keys(Keys),
    /// Not looked at.
    Any,
}

/// Keys and their values.
pub(super) type Keys = &'static [(&'static str, Is)];

pub(super) const RENDERERS: &[&str] = &["networkd", "NetworkManager"];
/// Words for hardware addresses that NetworkManager makes.
const MADE: &[&str] = &["permanent", "preserve", "random", "stable", "default"];

/// Keys of all devices.
const COMMON: Keys = &[
    ("accept-ra", Is::Bool),
    ("activation-mode", Is::Word(&["manual", "off"])),
    ("addresses", Is::List),
    ("critical", Is::Bool),
    ("dhcp-identifier", Is::Word(&["mac", "duid"])),
    ("dhcp4", Is::Bool),
    ("dhcp4-overrides", Is::Keys(OVERRIDES)),
    ("dhcp6", Is::Bool),
    ("dhcp6-overrides", Is::Keys(OVERRIDES)),
    ("gateway4", Is::Any),
    ("gateway6", Is::Any),
    ("hairpin", Is::Bool),
    ("ignore-carrier", Is::Bool),
    ("ipv6-address-generation", Is::Word(&["eui64", "stable-privacy"])),
    ("ipv6-address-token", Is::Text),
    ("ipv6-mtu", Is::Number),
    ("ipv6-privacy", Is::Bool),
    ("link-local", Is::Words(&["ipv4", "ipv6"])),
    ("macaddress", Is::Mac),
    ("mtu", Is::Number),
    ("nameservers", Is::Keys(&[("addresses", Is::Hosts), ("search", Is::Texts)])),
    ("neigh-suppress", Is::Bool),
    ("networkmanager", Is::Mapping),
    ("openvswitch", Is::Mapping),
    ("optional", Is::Bool),
    ("optional-addresses", Is::Words(&["ipv4-ll", "ipv6-ra", "dhcp4", "dhcp6", "static"])),
    ("port-mac-learning", Is::Bool),
    ("ra-overrides", Is::Mapping),
    ("renderer", Is::Word(RENDERERS)),
    ("routes", Is::List),
    ("routing-policy", Is::List),
];
const OVERRIDES: Keys = &[
    ("hostname", Is::Text),
    ("route-metric", Is::Number),
    ("send-hostname", Is::Bool),
    ("use-dns", Is::Bool),
    ("use-domains", Is::Text),
    ("use-hostname", Is::Bool),
    ("use-mtu", Is::Bool),
    ("use-ntp", Is::Bool),
    ("use-routes", Is::Bool),
];
/// Keys of devices that exist, and are not created.
const PHYSICAL: Keys = &[
    ("emit-lldp", Is::Bool),
    ("generic-receive-offload", Is::Bool),
    ("generic-segmentation-offload", Is::Bool),
    ("large-receive-offload", Is::Bool),
    ("match", Is::Keys(&[("driver", Is::Any), ("macaddress", Is::Any), ("name", Is::Text)])),
    ("receive-checksum-offload", Is::Bool),
    ("set-name", Is::Text),
    ("tcp-segmentation-offload", Is::Bool),
    ("tcp6-segmentation-offload", Is::Bool),
    ("transmit-checksum-offload", Is::Bool),
    ("wakeonlan", Is::Bool),
    ("wakeonwlan", Is::List),
];
const ETHERNET: Keys = &[
    ("auth", Is::Mapping),
    ("delay-virtual-functions-rebind", Is::Bool),
    ("embedded-switch-mode", Is::Word(&["switchdev", "legacy"])),
    ("infiniband-mode", Is::Word(&["datagram", "connected"])),
    ("link", Is::Text),
    ("virtual-function-count", Is::Number),
];
const WIFI: Keys = &[("access-points", Is::Mapping), ("auth", Is::Mapping), ("regulatory-domain", Is::Text)];
const BRIDGE: Keys = &[
    ("interfaces", Is::List),
    (
        "parameters",
        Is::Keys(&[
            ("ageing-time", Is::Text),
            ("aging-time", Is::Text),
            ("forward-delay", Is::Text),
            ("hello-time", Is::Text),
            ("max-age", Is::Text),
            ("path-cost", Is::Mapping),
            ("port-priority", Is::Mapping),
            ("priority", Is::Number),
            ("stp", Is::Bool),
        ]),
    ),
];
const BOND: Keys = &[
    ("interfaces", Is::List),
    (
        "parameters",
        Is::Keys(&[
            ("ad-select", Is::Word(&["stable", "bandwidth", "count"])),
            ("all-members-active", Is::Bool),
            ("all-slaves-active", Is::Bool),
            ("arp-all-targets", Is::Word(&["any", "all"])),
            ("arp-interval", Is::Text),
            ("arp-ip-targets", Is::List),
            ("arp-validate", Is::Word(&["none", "active", "backup", "all"])),
            ("down-delay", Is::Text),
            ("fail-over-mac-policy", Is::Word(&["none", "active", "follow"])),
            ("gratuitious-arp", Is::Number),
            ("gratuitous-arp", Is::Number),
            ("lacp-rate", Is::Word(&["slow", "fast"])),
            ("learn-packet-interval", Is::Text),
            ("mii-monitor-interval", Is::Text),
            ("min-links", Is::Number),
            ("mode", Is::BondMode),
            ("packets-per-member", Is::Number),
            ("packets-per-slave", Is::Number),
            ("primary", Is::Text),
            ("primary-reselect-policy", Is::Word(&["always", "better", "failure"])),
            ("resend-igmp", Is::Number),
            (
                "transmit-hash-policy",
                Is::Word(&["layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4", "vlan+srcmac"]),
            ),
            ("up-delay", Is::Text),
        ]),
    ),
];
/// Modes of bonds of Open vSwitch.
const OPEN_VSWITCH_MODES: &[&str] = &["balance-tcp", "balance-slb"];
const VLAN: Keys = &[("id", Is::Number), ("link", Is::Text)];
pub(super) const ROUTE: Keys = &[
    ("advertised-mss", Is::Number),
    ("advertised-receive-window", Is::Number),
    ("congestion-window", Is::Number),
    ("from", Is::Any),
    ("metric", Is::Number),
    ("mtu", Is::Number),
    ("on-link", Is::Bool),
    ("scope", Is::Word(&["global", "link", "host"])),
    ("table", Is::Number),
    ("to", Is::Any),
    ("type", Is::Word(TYPES)),
    ("via", Is::Any),
];
const TYPES: &[&str] = &[
    "unicast",
    "anycast",
    "blackhole",
    "broadcast",
    "local",
    "multicast",
    "nat",
    "prohibit",
    "throw",
    "unreachable",
    "xresolve",
];
pub(super) const POLICY: Keys = &[
    ("from", Is::Any),
    ("mark", Is::Number),
    ("priority", Is::Number),
    ("table", Is::Number),
    ("to", Is::Any),
    ("type-of-service", Is::Number),
];

/// The keys of a device of this kind; none for kinds that only netplan knows.
fn of(kind: &str) -> Option<[Keys; 3]> {
    Some(match kind {
        "ethernets" => [COMMON, PHYSICAL, ETHERNET],
        "wifis" => [COMMON, PHYSICAL, WIFI],
        "bonds" => [COMMON, BOND, &[]],
        "bridges" => [COMMON, BRIDGE, &[]],
        "vlans" => [COMMON, VLAN, &[]],
        _ => return None,
    })
}

/// Refuses keys that a device of this kind does not have, and values of another kind.
pub(super) fn judge_device(kind: &str, device: &Entry) -> Judged {
    let what = format!("the device {:?}", device.key);
    match of(kind) {
        Some(keys) => judge(&device.value, &what, &keys),
        None => {
            let known = |entry: &&Entry| COMMON.iter().any(|(name, _)| *name == entry.key);
            let mut entries = mapping(&device.value, &what)?.iter().filter(known);
            entries.try_for_each(|entry| judge_entry(entry, &what, &[COMMON]))
        }
    }
}

/// Refuses other keys, and values of another kind.
pub(super) fn judge(node: &Node, what: &str, keys: &[Keys]) -> Judged {
    mapping(node, what)?.iter().try_for_each(|entry| judge_entry(entry, what, keys))
}

fn judge_entry(Entry { key, at, value }: &Entry, what: &str, keys: &[Keys]) -> Judged {
    let mut all = keys.iter().copied().flatten();
    let Some((_, is)) = all.find(|(name, _)| name == key) else {
        return wrong(*at, format!("{what} has no key {key:?}{}", meant(key, keys)));
    };
    judge_value(value, key, *is)
}

/// The key that was meant, in words, if one is like it.
fn meant(key: &str, keys: &[Keys]) -> String {
    let letters = |text: &str| text.to_ascii_lowercase().replace(['-', '_'], "");
    let is_like = |name: &str| {
        let (name, key) = (letters(name), letters(key));
        let swapped = |a: &str, b: &str| a.len() >= 3 && (b.starts_with(a) || b.ends_with(a));
        swapped(&key, &name) || swapped(&name, &key) || is_one_off(&key, &name) || is_one_off(&name, &key)
    };
    let like = keys.iter().copied().flatten().filter(|(name, _)| is_like(name));
    let shortest = like.min_by_key(|(name, _)| name.len());
    match shortest {
        Some((name, _)) => format!("; {name:?} may be meant"),
        None => "; netplan would ignore the whole configuration".to_owned(),
    }
}

/// Whether a text is the other one without one character.
fn is_one_off(short: &str, long: &str) -> bool {
    let same = short.bytes().zip(long.bytes()).take_while(|(a, b)| a == b).count();
    short.len() + 1 == long.len() && short.get(same..) == long.get(same + 1..)
}

fn judge_value(node: &Node, key: &str, is: Is) -> Judged {
    let text = node.scalar();
    let one_of = |words: &[&str]| format!("{key} is one of: {}", words.join(", "));
    match is {
        Is::Any => Ok(()),
        Is::Bool if text.is_some_and(is_bool) => Ok(()),
        Is::Bool => wrong(node.at, format!("{key} must be true or false")),
        Is::Number => judge_whole(node, key),
        Is::Text if text.is_some_and(|text| !text.is_empty()) => Ok(()),
        Is::Text => wrong(node.at, format!("{key} must be a text")),
        Is::Word(words) if text.is_some_and(|text| words.contains(&text)) => Ok(()),
        Is::Word(words) => wrong(node.at, one_of(words)),
        Is::BondMode => {
            let modes = [BOND_MODES, OPEN_VSWITCH_MODES].concat();
            if text.is_some_and(|text| modes.contains(&text)) { Ok(()) } else { wrong(node.at, one_of(&modes)) }
        }
        Is::Mac if text.is_some_and(|text| MADE.contains(&text)) => Ok(()),
        Is::Mac => judge_hardware(node, key),
        Is::Host if text.is_some_and(is_host) => Ok(()),
        Is::Host => wrong(node.at, format!("{key} must be addresses such as 192.0.2.1, without a prefix length")),
        Is::List => list(node, key).map(drop),
        Is::Words(words) => list(node, key)?.iter().try_for_each(|item| judge_value(item, key, Is::Word(words))),
        Is::Hosts if text.is_some() => judge_value(node, key, Is::Host),
        Is::Hosts => list(node, key)?.iter().try_for_each(|item| judge_value(item, key, Is::Host)),
        Is::Texts if text.is_some() => judge_value(node, key, Is::Text),
        Is::Texts => list(node, key)?.iter().try_for_each(|item| judge_value(item, key, Is::Text)),
        Is::Mapping => mapping(node, key).map(drop),
        Is::Keys(keys) => judge(node, key, &[keys]),
    }
}

/// Whether a text is one of YAML's words for true and false (netplan, src/parse.c, `handle_generic_bool`).
fn is_bool(text: &str) -> bool {
    ["true", "on", "yes", "y", "false", "off", "no", "n"].iter().any(|word| text.eq_ignore_ascii_case(word))
}
