//! How a machine proves to be a node, and the machines that ask to be let in.

use serde::{Deserialize, Serialize};

use crate::node::enrolment::Proof;
use crate::shared::identity::Identity;

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

/// How a key was assigned to a node.
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
    /// Its machine has the TPM that the node is known by.
    Attested,
}

/// The TPM that a node is known by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeTpm {
    /// SHA-256 of each endorsement key that it may have (SubjectPublicKeyInfo in DER, RFC 5280), as `sha256:` and
    /// hexadecimal. Several, because a TPM may have one for each algorithm.
    pub ek: Vec<String>,
    /// How it became the node's.
    pub origin: TpmOrigin,
    /// SHA-256 of its attestation key (the name of the key, TPM 2.0 Library, Part 1, section 16), once it was proved.
    /// It changes when the TPM is cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ak: Option<String>,
    /// What the certificate of the endorsement key says, once the machine showed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<EkCertificate>,
    /// Whether the machine sent an event log. It must do so again.
    #[serde(default)]
    pub has_event_log: bool,
    /// When the machine last proved to have it, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proved_at: Option<u64>,
}

impl NodeTpm {
    /// A TPM with these endorsement keys that was not proved yet.
    pub fn unproved(ek: Vec<String>, origin: TpmOrigin) -> Self {
        Self { ek, origin, ak: None, certificate: None, has_event_log: false, proved_at: None }
    }

    /// Whether a machine must have it. Not if it is only claimed by a machine that was released by its claim code, and
    /// was never proved.
    pub fn is_required(&self) -> bool {
        self.origin == TpmOrigin::Registered || self.proved_at.is_some()
    }
}

/// How a TPM was assigned to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum TpmOrigin {
    /// An operator registered its endorsement key.
    Registered,
    /// A manufacturer that the site trusts certifies it, and the machine had the identifiers of the node.
    Certificate,
    /// The first machine of the node had it, or a machine that an operator released by its claim code.
    Release,
}

/// What the certificate of an endorsement key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EkCertificate {
    /// The TPM has none.
    None,
    /// Its issuer is not among the manufacturers that the site trusts.
    UnknownIssuer,
    /// It is damaged, out of date, for another key, or not signed by its issuer.
    Bad,
    /// A manufacturer that the site trusts certifies that the key is in a TPM.
    Verified,
}

/// What a waiting machine reports about its TPM, without proof.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimedTpm {
    /// SHA-256 of its endorsement key, as in [`NodeTpm::ek`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ek: Option<String>,
    /// What the certificate of this key says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<EkCertificate>,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
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
    /// Its identifiers that another machine has too, such as `uuid UUID`. Several machines probably share them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<String>,
    /// What it reports about its TPM. Absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<ClaimedTpm>,
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
    /// It has the identifiers of a node that is known by its TPM, but has none, or cannot use it.
    TpmMissing,
    /// It has the identifiers of a node, but another TPM.
    TpmReplaced,
    /// It has the identifiers of a node, and claims, without proof, to have the node's TPM, which was cleared.
    TpmCleared,
    /// It has the identifiers of a node, but its report about its TPM or its boot differs from what the TPM signed.
    TpmRefused,
    /// It has the identifiers and the TPM of a node, but its firmware's event log is missing.
    EventLogMissing,
    /// It must prove that it has a TPM, and the certificate of its endorsement key is bad.
    EkCertificateBad,
    /// It has the identifiers of a node, and the TPM of another.
    TpmOfAnotherNode,
    /// It has the identifiers and the TPM of a node that must be attested, but did not start boot files of the site.
    BootFilesUnknown,
}

impl ClaimReason {
    /// Whether the machine has all identifiers of its node.
    pub fn identifiers_match(self) -> bool {
        !matches!(self, Self::Unregistered | Self::IdentifiersDiffer | Self::SeveralNodes)
    }
}
