//! What the server tells operators: the shapes behind `slipway-server status --json` and `/v1/operator`.

use serde::{Deserialize, Serialize};

use crate::{BootStatus, BootTiming, DiskHints, Failure, Identity, Inventory, LooseStep, Network, Outcome, Progress};

/// Where a node stands. Stored; silent, stuck and looping are derived from times and counts and never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// An operator registered it; it has not been seen.
    Registered,
    /// Seen, and waiting for an operator.
    Held,
    /// Has credentials; nothing to do, or a run of which no step has begun.
    Enrolled,
    /// A run is in progress.
    Installing,
    /// The run is done; the machine was not asked to report from its system.
    Installed,
    /// The run is done; the installed system has not reported yet.
    Booting,
    /// The installed system has reported.
    Running,
    /// The last run failed; the machine holds and polls.
    Failed,
    /// Being emptied before it leaves.
    Draining,
    /// Out of service.
    Decommissioned,
}

/// A node as operators see it. Times in milliseconds since 1970, by the server's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeStatus {
    /// The node's id.
    pub id: String,
    /// Name the operator gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it stands.
    pub state: NodeState,
    /// Whether the operator let it in.
    pub released: bool,
    /// Code on its console while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_code: Option<String>,
    /// The keys it is known by.
    pub identity: Identity,
    /// What discovery found, once it enrolled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<Inventory>,
    /// When it last said anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<u64>,
    /// When it first enrolled in the boot it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enrolled_at: Option<u64>,
    /// When it was heard last, if it works on a run and has said nothing for longer than it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<u64>,
    /// When it came back to slipway, if it should have started the system that its run installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub came_back_at: Option<u64>,
    /// How long it took to boot, as it said when it enrolled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<BootTiming>,
    /// How its installed system is on the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Public keys of SSH that let into its installed system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// Which disk its operating systems go to, whatever they say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskHints>,
    /// Its newest run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunStatus>,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// The node has not fetched it.
    Pending,
    /// The node works on it.
    Running,
    /// Every step succeeded.
    Succeeded,
    /// A step failed.
    Failed,
}

/// A run as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunStatus {
    /// The run's id.
    pub id: String,
    /// The node's id.
    pub node: String,
    /// Where it stands.
    pub state: RunState,
    /// When the operator started it.
    pub created_at: u64,
    /// When the node fetched it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<u64>,
    /// When its last step ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<u64>,
    /// When the installed system reported for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phoned_home_at: Option<u64>,
    /// When it reported last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_contact_at: Option<u64>,
    /// What cloud-init posted the first time: host keys, instance id, host names.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub phone_home: std::collections::BTreeMap<String, String>,
    /// Its steps in order.
    pub steps: Vec<StepStatus>,
    /// What was reported beside them, in the order it is to be shown. It changes nothing of how the run stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loose_steps: Vec<LooseStep>,
    /// What the boot reporter of the installed system said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootStatus>,
}

/// Where a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StepState {
    /// Its turn has not come.
    Pending,
    /// Being worked on.
    Running,
    /// Done.
    Succeeded,
    /// Failed for good.
    Failed,
    /// Took longer than allowed.
    TimedOut,
    /// Not run, because an earlier one failed.
    Skipped,
}

/// A step as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepStatus {
    /// Name in the workflow.
    pub name: String,
    /// Name of the action.
    pub action: String,
    /// Where it stands.
    pub state: StepState,
    /// The attempt it is in, from 1; 0 before the first.
    pub attempt: u32,
    /// When the server heard that the first attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<u64>,
    /// When the server heard that it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<u64>,
    /// Newest progress of the attempt it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// What it said on the way, oldest first.
    #[serde(default)]
    pub notes: Vec<String>,
    /// How it went, when it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Why it failed, or why the last attempt did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}
