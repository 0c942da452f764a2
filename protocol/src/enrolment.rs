//! How a machine becomes a node: `POST /v1/enrol`, and `POST /v1/node/renew` while it waits.

use serde::{Deserialize, Serialize};

use crate::{Identity, Inventory};

/// Body of `POST /v1/enrol`, the only request a machine sends unauthenticated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EnrolRequest {
    /// The keys the operator knows the machine by.
    pub identity: Identity,
    /// What is inside it.
    pub inventory: Inventory,
    /// PKCS #10 certificate request in PEM (RFC 2986, RFC 7468). The server keeps the public key and nothing else of it.
    pub csr: String,
    /// Version of the agent, for the operator.
    pub agent_version: String,
    /// `/proc/sys/kernel/random/boot_id`: a new one means the machine was power-cycled.
    pub boot_id: String,
    /// Single-use token that stands for the operator's consent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_token: Option<String>,
    /// How long the machine took to get here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<BootTiming>,
}

/// How long the machine took to reach the server, in milliseconds of its own monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BootTiming {
    /// From the start of the kernel to the start of PID 1.
    pub kernel_to_init: u64,
    /// From the start of PID 1 to this request.
    pub init_to_enrol: u64,
}

/// 200 of enrol and renew: the node's credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Enrolment {
    /// The node's id, also the common name of its certificate.
    pub node: String,
    /// Certificate chain in PEM, leaf first, for mutual TLS.
    pub certificate: String,
    /// JWT for the way through a TLS-terminating proxy, as `Authorization: Bearer`.
    pub jwt: String,
    /// Seconds from now until the first of the two expires. Renew at half of it.
    pub expires_in: u64,
}

/// Body of `POST /v1/node/renew`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// A new PKCS #10 request in PEM.
    pub csr: String,
}

/// 202 of enrol, with `Retry-After`: the machine must wait for an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Wait {
    /// What it waits for.
    pub reason: WaitReason,
    /// Short code shown on the console, by which the operator finds the machine.
    pub claim_code: String,
}

/// Why a machine waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WaitReason {
    /// Registered, and not yet released.
    NotReleased,
    /// Nobody registered it; it is held for approval.
    Unregistered,
}
