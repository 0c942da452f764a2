//! How a machine proves to be a node, and the machines that ask to be let in.

use serde::{Deserialize, Serialize};

use crate::Identity;

/// How a machine proves to be a node, weakest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Proof {
    /// It has the identifiers that were registered. Anybody on its network can read and repeat them.
    #[default]
    Registered,
    /// It has a bootstrap token that was made for this node.
    Token,
}

/// The key of a node's machine, and how it became the node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeKey {
    /// SHA-256 of the public key (SubjectPublicKeyInfo in DER, RFC 5280), in hexadecimal.
    pub fingerprint: String,
    /// What its machine proved.
    pub proof: Proof,
    /// How it became the node's key.
    pub origin: KeyOrigin,
    /// When it became the node's key, in milliseconds since 1970.
    pub since: u64,
    /// The address that it came from.
    pub address: String,
}

/// How a key became that of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum KeyOrigin {
    /// The node had no key yet.
    First,
    /// The machine with the key before had left for the system that it installed.
    AfterInstallation,
    /// The machine with the key before had been silent, most likely because it was restarted.
    AfterSilence,
    /// An operator released it by its claim code.
    Operator,
}

/// A machine that asks to be let in, and is not. Times are in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Claim {
    /// The code on the console of the machine. It belongs to the key of the machine.
    pub code: String,
    /// Why the machine is not let in.
    pub reason: ClaimReason,
    /// The name, else the id, of the node that has identifiers of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The address that it asked from last.
    pub address: String,
    /// The identifiers that it sent.
    pub identity: Identity,
    /// The time when it asked first.
    pub first_asked: u64,
    /// The time when it asked last.
    pub last_asked: u64,
}

/// Why a machine is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ClaimReason {
    /// No node is registered with any of its identifiers.
    Unregistered,
    /// A node has some of its identifiers, but others are missing or differ.
    IdentifiersDiffer,
    /// Several nodes are registered with its identifiers.
    SeveralNodes,
    /// It has the identifiers of a node that is not released.
    NotReleased,
    /// It has the identifiers of a node that has nothing to do.
    NothingToDo,
    /// It has the identifiers of a node whose machine was heard from a moment ago.
    KeyInUse,
    /// It has the identifiers of a node, but another key, and the site asks an operator each time.
    KeyChanged,
    /// It has the identifiers of a node, but did not prove what the node, the operating system or the site requires.
    ProofMissing,
}

impl ClaimReason {
    /// Whether the machine has all identifiers of its node.
    pub fn identifiers_match(self) -> bool {
        !matches!(self, Self::Unregistered | Self::IdentifiersDiffer | Self::SeveralNodes)
    }
}
