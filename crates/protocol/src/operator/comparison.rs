//! What changed between two runs: the answer of `GET /v1/operator/runs/{run}/compare`.

use serde::{Deserialize, Serialize};

use crate::operator::status::RunState;

/// A run beside another one, usually the last good one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Comparison {
    /// The run that is looked at.
    pub run: ComparedRun,
    /// The run that it is compared with.
    pub with: ComparedRun,
    /// Why it is compared with that one.
    pub chosen: Chosen,
    /// What is known of the two runs, differences first.
    pub facts: Vec<ComparedFact>,
}

/// A run of a comparison. Times are in milliseconds since 1970, by the server's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ComparedRun {
    /// The run's id.
    pub id: String,
    /// The node's id.
    pub node: String,
    /// The name of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The state of the run.
    pub state: RunState,
    /// The time when the operator started the run.
    pub created_at: u64,
}

/// Why a run is compared with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Chosen {
    /// It is the last run of the node before that succeeded.
    SameNode,
    /// The node has none. It is the last run before that succeeded on a machine of the same vendor and model, with the
    /// same operating system.
    SameModel,
    /// It was asked for.
    Given,
}

/// Something that is known of at least one of two runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ComparedFact {
    /// What it is, such as `firmware`, or a step of the workflow and its option.
    pub what: String,
    /// What it was in the run that is compared with. Absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<String>,
    /// What it is in the run that is looked at. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<String>,
    /// Whether the two differ.
    pub differs: bool,
}
