//! How a machine becomes a node: `POST /v1/enrol`. While it waits, it uses `POST /v1/node/renew`.

use serde::{Deserialize, Serialize};

use crate::node::attestation::Tpm;
use crate::shared::identity::Identity;
use crate::shared::inventory::Inventory;

/// How a machine proves to be a node, weakest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Proof {
    /// It has the identifiers that were registered. Anybody on its network can read and repeat them.
    #[default]
    #[cfg_attr(
        feature = "clap",
        value(help = "The registered identifiers. Anybody on the machine's network can read and repeat them")
    )]
    Registered,
    /// It has a bootstrap token that was made for this node.
    #[cfg_attr(feature = "clap", value(help = "A bootstrap token made for the node"))]
    Token,
    /// It has the TPM that the node is known by, or one that the site trusts. A TPM cannot be copied.
    #[cfg_attr(feature = "clap", value(help = "The node's TPM"))]
    Attested,
}

impl Proof {
    /// All proofs, weakest first.
    pub const ALL: [Self; 3] = [Self::Registered, Self::Token, Self::Attested];

    /// Returns the name of the proof in JSON, in options and in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Token => "token",
            Self::Attested => "attested",
        }
    }
}

/// The body of `POST /v1/enrol`. This is the only request that a machine sends without authentication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EnrolRequest {
    /// The keys that the operator knows the machine by.
    pub identity: Identity,
    /// The hardware of the machine.
    pub inventory: Inventory,
    /// A PKCS #10 certificate request in PEM (RFC 2986, RFC 7468). The server uses only its public key.
    pub csr: String,
    /// The version of the agent, for the operator.
    pub agent_version: String,
    /// The value of `/proc/sys/kernel/random/boot_id`. A new value means that the machine was power-cycled.
    pub boot_id: String,
    /// A bootstrap token: an operator's consent, or the proof that the machine is a certain node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_token: Option<String>,
    /// The TPM of the machine. Absent if the agent does not look for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<Tpm>,
    /// How long the machine took to reach the server. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<BootTiming>,
}

/// How long the machine took to reach the server, in milliseconds of its own monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BootTiming {
    /// The time from the start of the kernel to the start of PID 1.
    pub kernel_to_init: u64,
    /// The time from the start of PID 1 until the interface that reached the server got its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_to_lease: Option<u64>,
    /// The time from the start of PID 1 to this request.
    pub init_to_enrol: u64,
}

/// The answer (200) to enrol and renew: the node's credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Enrolment {
    /// The node's id. It is also the common name of the node's certificate.
    pub node: String,
    /// The node's name, for the machine's own screen. Absent if the node has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The certificate chain in PEM, leaf first, for mutual TLS.
    pub certificate: String,
    /// A JWT for connections through a proxy that terminates TLS. Send it as `Authorization: Bearer`.
    pub jwt: String,
    /// The seconds from now until the first of the two credentials expires. Renew after half of this time.
    pub expires_in: u64,
}

/// The body of `POST /v1/node/renew`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// A PKCS #10 certificate request in PEM, for the key that the node enrolled with.
    pub csr: String,
}

/// The answer (202) to enrol, with `Retry-After`: the machine must wait until an operator lets it in, or gives its node
/// something to do. The answer says nothing about nodes, because anybody may send the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Wait {
    /// A short code derived from the machine's key, for the console. With it, an operator lets in the machine that has
    /// this key.
    pub claim_code: String,
}
