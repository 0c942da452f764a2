//! The network of a node's installed system. Operators write it as YAML.

mod addresses;
mod boot;
mod problems;

use serde::{Deserialize, Serialize};

pub use self::addresses::prefixed;
pub use self::boot::boot_problems;
pub use self::problems::problems;

/// The network of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// The interfaces: hardware, bonds and VLANs. At least one, at most 256.
    pub interfaces: Vec<Interface>,
    /// The addresses of the name servers. The first is asked first. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The domains in which names without a dot are looked up. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
}

/// One interface: hardware with its MAC address, a bond, or a VLAN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// The interface's name in the installed system.
    pub name: String,
    /// The MAC address of the hardware. Give exactly one of `mac`, `bond` and `vlan`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The interfaces that form this bond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bond: Option<Bond>,
    /// The VLAN that this interface carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Vlan>,
    /// Asks for an IPv4 address. Default: `false`.
    #[serde(default)]
    pub dhcp4: bool,
    /// Asks for an IPv6 address. Default: `false`.
    #[serde(default)]
    pub dhcp6: bool,
    /// The addresses, with the length of their prefix, such as `192.0.2.5/24` and `2001:db8::5/64`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// The routers for all other networks: at most one IPv4 address and one IPv6 address. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<String>,
    /// The size of the largest packet, in bytes: 576 to 65535. IPv6 needs at least 1280. A VLAN cannot have larger
    /// packets than the interface it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 576, maximum = 65_535))]
    pub mtu: Option<u32>,
}

/// Interfaces that work as one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Bond {
    /// The names of the interfaces in the bond, at least two.
    pub of: Vec<String>,
    /// How the interfaces share the work. Default: `active-backup`.
    #[serde(default)]
    pub mode: BondMode,
}

/// How bonded interfaces share the work (kernel documentation, networking/bonding, "mode").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum BondMode {
    /// One interface works. Another one takes over when it fails. This is the only mode that works with every switch.
    #[default]
    #[serde(rename = "active-backup")]
    ActiveBackup,
    /// LACP. The switch must be configured for it.
    #[serde(rename = "802.3ad")]
    Lacp,
    /// The interfaces take turns.
    #[serde(rename = "balance-rr")]
    BalanceRr,
    /// A hash of the packet's source and destination selects the interface.
    #[serde(rename = "balance-xor")]
    BalanceXor,
    /// Every interface sends everything.
    #[serde(rename = "broadcast")]
    Broadcast,
    /// The load selects the interface for sent packets.
    #[serde(rename = "balance-tlb")]
    BalanceTlb,
    /// The load selects the interface for sent and received packets.
    #[serde(rename = "balance-alb")]
    BalanceAlb,
}

/// A VLAN on another interface (IEEE 802.1Q).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Vlan {
    /// The name of the interface that the VLAN is on.
    pub of: String,
    /// The number of the VLAN, 1 to 4094.
    pub id: u32,
}

impl Interface {
    /// Returns whether the interface gets an address.
    pub fn is_addressed(&self) -> bool {
        self.dhcp4 || self.dhcp6 || !self.addresses.is_empty()
    }
}
