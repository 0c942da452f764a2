//! The state that the server shows to operators: the types of `slipway-server status --json` and `/v1/operator`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::node::boot_report::BootStatus;
use crate::node::enrolment::{BootTiming, Proof};
use crate::node::event::{Failure, Outcome, Progress};
use crate::node::external_step::ExternalStep;
use crate::node::state::NodeState;
use crate::operator::admission::{Claim, NodeKey, NodeTpm};
use crate::operator::agent::{AgentStatus, TaskStatus};
use crate::operator::boot_fetch::BootFilesFetched;
use crate::operator::flag::Flag;
use crate::operator::node_class::NodeClass;
use crate::operator::power::NodePower;
use crate::shared::digest::Digest;
use crate::shared::identity::Identity;
use crate::shared::inventory::Inventory;
use crate::shared::network::Network;
use crate::workflow::disk::DiskHints;

/// A node, as operators see it. Times are in milliseconds since 1970, by the server's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeStatus {
    /// The node's id.
    pub id: String,
    /// The name that the operator gave the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The state of the node.
    pub state: NodeState,
    /// How long the node and its system are meant to live.
    #[serde(default)]
    pub class: NodeClass,
    /// Whether an operator has released the node.
    pub released: bool,
    /// The code on the machine's console. Present if exactly one machine waits to become this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_code: Option<String>,
    /// The machines that claim to be this node and are not let in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Claim>,
    /// The key of the node's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<NodeKey>,
    /// The keys that the node had before, newest first. Left out of lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_keys: Vec<NodeKey>,
    /// The TPM that the node is known by. A machine without it is not let in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<NodeTpm>,
    /// What the machine of the node must prove, in addition to what its operating system and the site require.
    #[serde(default)]
    pub require: Proof,
    /// Whether an operator accepted that the node is known by nothing but MAC addresses.
    #[serde(default)]
    pub mac_only: bool,
    /// The identifiers of the node: UUID, serial number and MAC addresses.
    pub identity: Identity,
    /// The hardware that discovery found. Absent until the node enrols.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<Inventory>,
    /// The version of slipway that the machine last enrolled with. The installed system has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// The id of the boot in which the machine last enrolled. Its log has the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The time of the last message from the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<u64>,
    /// The time when the node first enrolled in its current boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enrolled_at: Option<u64>,
    /// The time of the last message from the node. Present if the node works on a run and has been silent for longer
    /// than it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<u64>,
    /// The time when the node came back to slipway. Present if it should have started the system that its run
    /// installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub came_back_at: Option<u64>,
    /// The boot files that the node fetched since it was last heard from. Present if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_files_fetched: Option<BootFilesFetched>,
    /// Trouble with the node, the worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<Flag>,
    /// How long the node took to boot, as it reported when it enrolled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<BootTiming>,
    /// The network of the node's installed system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// The SSH public keys that give access to the node's installed system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// Selects the disk for the node's operating systems, in place of the hints that an operating system has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskHints>,
    /// Where the machine is, by the operators' name for the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// What operators noted about the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// How the node's power is switched, and whether it is on. Absent if nothing switches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<NodePower>,
    /// The agent of the node's installed system. Absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
    /// The newest task of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskStatus>,
    /// The system on the node's disk. Absent if the server did not install one, or a later run failed after it had
    /// begun to write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed: Option<Installed>,
    /// The node's newest run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunStatus>,
}

/// A system that a run installed on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Installed {
    /// The id of the run.
    pub run: String,
    /// The name of the operating system that the run was started with. Absent for a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// The digest of the image.
    pub image: Digest,
    /// When the run was done.
    pub since: u64,
    /// Whether the operating system has another image by now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub behind: bool,
}

impl NodeStatus {
    /// Makes the status of a node about which nothing else is known.
    pub fn new(id: String, state: NodeState, identity: Identity) -> Self {
        Self {
            id,
            name: None,
            state,
            class: NodeClass::default(),
            released: false,
            claim_code: None,
            claims: Vec::new(),
            key: None,
            earlier_keys: Vec::new(),
            tpm: None,
            require: Proof::default(),
            mac_only: false,
            identity,
            inventory: None,
            agent_version: None,
            boot_id: None,
            last_seen: None,
            enrolled_at: None,
            silent_since: None,
            came_back_at: None,
            boot_files_fetched: None,
            flags: Vec::new(),
            timing: None,
            network: None,
            ssh_keys: Vec::new(),
            disk: None,
            site: None,
            labels: BTreeMap::new(),
            power: None,
            agent: None,
            task: None,
            installed: None,
            run: None,
        }
    }
}

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// The node has not fetched the run yet.
    Pending,
    /// The node works on the run.
    Running,
    /// Every step succeeded.
    Succeeded,
    /// A step failed.
    Failed,
}

/// A run, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunStatus {
    /// The run's id.
    pub id: String,
    /// The node's id.
    pub node: String,
    /// The state of the run.
    pub state: RunState,
    /// How much of the run is done, in per cent. Each step counts by how long it usually takes. It is 100 only if the
    /// run succeeded.
    #[serde(default)]
    pub percent: u8,
    /// The time when the operator started the run.
    pub created_at: u64,
    /// The time when the node fetched the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<u64>,
    /// Whether the run came unfinished from a backup. The node does not get it until an operator confirms it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restored: bool,
    /// The time when the last step ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<u64>,
    /// The time of the installed system's first report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phoned_home_at: Option<u64>,
    /// The time of the installed system's last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_contact_at: Option<u64>,
    /// How often a machine began the run from its first step: more than once if it was power-cycled in between.
    #[serde(default)]
    pub begins: u32,
    /// The values that cloud-init posted the first time: host keys, instance id, host names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub phone_home: BTreeMap<String, String>,
    /// The name of the operating system that the run installs. Absent for a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// The digest of the image that the run installs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Digest>,
    /// What becomes of the node once the run succeeded. Absent if it stays in service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub afterwards: Option<Afterwards>,
    /// How many of the steps were done by the failed run that this one goes on with.
    #[serde(default, skip_serializing_if = "crate::workflow::is_zero")]
    pub done: u32,
    /// The steps, in order.
    pub steps: Vec<StepStatus>,
    /// The external steps that were reported, in the order to show them. They do not change the state of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub external_steps: Vec<ExternalStep>,
    /// The reports of the installed system's boot reporter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootStatus>,
}

/// What becomes of a node once its run succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Afterwards {
    /// It goes out of service.
    Decommission,
    /// It goes out of service, and its machine is switched off.
    DecommissionAndPowerOff,
}

impl Afterwards {
    /// Returns what becomes of a node that goes out of service.
    pub fn decommission(power_off: bool) -> Self {
        if power_off { Self::DecommissionAndPowerOff } else { Self::Decommission }
    }

    /// What becomes of the node, for people: `the node goes out of service`.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Decommission => "the node goes out of service",
            Self::DecommissionAndPowerOff => "the node goes out of service and its machine is switched off",
        }
    }
}

/// The state of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StepState {
    /// The step's turn has not come.
    Pending,
    /// The machine works on the step.
    Running,
    /// The step is done.
    Succeeded,
    /// The step failed for good.
    Failed,
    /// The step took longer than allowed.
    TimedOut,
    /// The step was not run, because an earlier step failed.
    Skipped,
}

/// A step, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepStatus {
    /// The name of the step in the workflow.
    pub name: String,
    /// The name of the action.
    pub action: String,
    /// The state of the step.
    pub state: StepState,
    /// The number of the current attempt, from 1. It is 0 before the first attempt.
    pub attempt: u32,
    /// The time when the server heard that the first attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<u64>,
    /// The time when the server heard that the step ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<u64>,
    /// The time when the server last heard that the step got on: bytes moved, or an attempt began or wrote a note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progressed_at: Option<u64>,
    /// How the step usually goes, as it was known when the run was fetched. Absent if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usual: Option<UsualStep>,
    /// The newest progress of the current attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The notes of the step, oldest first.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The result of the step, if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The reason why the step failed, or why its last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// How a step usually goes: medians over the last runs with the same image, on all machines of the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsualStep {
    /// How long it takes, in milliseconds.
    pub millis: u64,
    /// The bytes that it moves in a second. Absent if it moves none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
}
