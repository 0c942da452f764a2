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
    /// What the machine with this key proved.
    pub proof: Proof,
    /// How it became the node's key.
    pub origin: KeyOrigin,
    /// When it became the node's key, in milliseconds since 1970.
    pub since: u64,
    /// The address that the machine sent the key from.
    pub address: String,
}

/// How a key was assigned to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum KeyOrigin {
    /// The node had no key yet.
    First,
    /// The machine with the previous key had left for the system that it installed.
    AfterInstallation,
    /// The machine with the previous key had been silent, most likely because it was restarted.
    AfterSilence,
    /// An operator released the machine by its claim code.
    Operator,
    /// The machine has the TPM that the node is known by.
    Attested,
}

/// The TPM that a node is known by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeTpm {
    /// SHA-256 of each endorsement key that the TPM may have (SubjectPublicKeyInfo in DER, RFC 5280), as `sha256:` and
    /// hexadecimal. A TPM may have one endorsement key for each algorithm.
    pub ek: Vec<String>,
    /// How the TPM became the node's.
    pub origin: TpmOrigin,
    /// SHA-256 of the TPM's attestation key (the name of the key, TPM 2.0 Library, Part 1, section 16). The key changes
    /// when the TPM is cleared. Absent until a machine has proved to have the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ak: Option<String>,
    /// What the certificate of the endorsement key says. Absent until a machine has proved to have the TPM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<EkCertificate>,
    /// Whether the machine sent an event log. If so, it must send one each time.
    #[serde(default)]
    pub has_event_log: bool,
    /// When a machine last proved to have the TPM, in milliseconds since 1970. Absent if none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proved_at: Option<u64>,
}

impl NodeTpm {
    /// Makes a TPM with these endorsement keys that no machine has proved to have yet.
    pub fn unproved(ek: Vec<String>, origin: TpmOrigin) -> Self {
        Self { ek, origin, ak: None, certificate: None, has_event_log: false, proved_at: None }
    }

    /// Whether a machine must have this TPM. False if a machine that was released by its claim code only claimed to
    /// have the TPM, and never proved it.
    pub fn is_required(&self) -> bool {
        self.origin == TpmOrigin::Registered || self.proved_at.is_some()
    }
}

/// How a TPM was assigned to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum TpmOrigin {
    /// An operator registered the TPM's endorsement key.
    Registered,
    /// A manufacturer that the site trusts certifies the TPM, and the machine had the identifiers of the node.
    Certificate,
    /// The first machine of the node had the TPM, or a machine that an operator released by its claim code.
    Release,
}

/// What the certificate of an endorsement key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EkCertificate {
    /// The TPM has no certificate.
    None,
    /// The certificate's issuer is not among the manufacturers that the site trusts.
    UnknownIssuer,
    /// The certificate is damaged, out of date, for another key, or not signed by its issuer.
    Bad,
    /// A manufacturer that the site trusts certifies that the key is in a TPM.
    Verified,
}

/// What a waiting machine reports about its TPM, without proof.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimedTpm {
    /// SHA-256 of the TPM's endorsement key, as in [`NodeTpm::ek`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ek: Option<String>,
    /// What the certificate of this key says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<EkCertificate>,
    /// What is wrong with the TPM. Absent if nothing is.
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
    /// The address of the machine's last request.
    pub address: String,
    /// The identifiers that the machine sent.
    pub identity: Identity,
    /// The machine's identifiers that another machine has sent too, such as `uuid UUID`. Several machines probably
    /// share them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<String>,
    /// What the machine reports about its TPM. Absent if the machine has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<ClaimedTpm>,
    /// The time of the machine's first request.
    pub first_asked: u64,
    /// The time of the machine's last request.
    pub last_asked: u64,
}

/// Why a machine is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ClaimReason {
    /// No node is registered with any identifier of the machine.
    Unregistered,
    /// A node has some of its identifiers, but others are missing or differ.
    IdentifiersDiffer,
    /// Several nodes are registered with the machine's identifiers.
    SeveralNodes,
    /// The machine has the identifiers of a node that is not released.
    NotReleased,
    /// The machine has the identifiers of a node that has nothing to do.
    NothingToDo,
    /// The machine has the identifiers of a node whose machine was heard from a moment ago.
    KeyInUse,
    /// The machine has the identifiers of a node, but another key, and the site asks an operator each time.
    KeyChanged,
    /// The machine has the identifiers of a node, but did not prove what the node, the operating system or the site
    /// requires.
    ProofMissing,
    /// The machine has the identifiers of a node that is known by its TPM, but has none, or cannot use it.
    TpmMissing,
    /// The machine has the identifiers of a node, but another TPM.
    TpmReplaced,
    /// The machine has the identifiers of a node, and claims, without proof, to have the node's TPM, which was cleared.
    TpmCleared,
    /// The machine has the identifiers of a node, but its report about its TPM or its boot differs from what the TPM
    /// signed.
    TpmRefused,
    /// The machine has the identifiers and the TPM of a node, but its firmware's event log is missing.
    EventLogMissing,
    /// The machine must prove that it has a TPM, and the certificate of its endorsement key is bad.
    EkCertificateBad,
    /// The machine has the identifiers of a node, and the TPM of another.
    TpmOfAnotherNode,
    /// The machine has the identifiers and the TPM of a node that must be attested, but did not start boot files of the
    /// site.
    BootFilesUnknown,
}

impl ClaimReason {
    /// Returns why the machine is not let in, in words.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Unregistered => "no node has its identifiers",
            Self::IdentifiersDiffer => "it has some identifiers of a node, but not all",
            Self::SeveralNodes => "it has identifiers of several nodes",
            Self::NotReleased => "waits to be released",
            Self::NothingToDo => "waits for work: there is no run for it",
            Self::KeyInUse => "the node's current machine was heard from a moment ago",
            Self::KeyChanged => "it has another key, and this site requires an operator's decision each time",
            Self::ProofMissing => "it did not send the required proof",
            Self::TpmMissing => "it has no TPM",
            Self::TpmReplaced => "its TPM is not this node's",
            Self::TpmCleared => "it claims to have this node's TPM, with its keys cleared",
            Self::TpmRefused => "its TPM proof is not valid",
            Self::EventLogMissing => "it sent no log of what it booted",
            Self::EkCertificateBad => "its TPM's certificate is not valid",
            Self::TpmOfAnotherNode => "it claims to have another node's TPM",
            Self::BootFilesUnknown => "it did not boot this site's boot files",
        }
    }

    /// Whether the machine has all identifiers of its node.
    pub fn identifiers_match(self) -> bool {
        !matches!(self, Self::Unregistered | Self::IdentifiersDiffer | Self::SeveralNodes)
    }
}
