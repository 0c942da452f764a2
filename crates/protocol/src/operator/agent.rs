//! The agent of an installed system and its tasks, as operators see them. Times are in milliseconds since 1970, by the
//! server's clock.

use serde::{Deserialize, Serialize};

use crate::node::agent::TaskOptions;
use crate::shared::digest::Digest;
use crate::workflow::agent::{AgentAct, DRAIN};

/// The agent of a node's installed system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentStatus {
    /// The id of the run that installed it.
    pub run: String,
    /// The version of the agent.
    pub version: String,
    /// The id of the system's current boot.
    pub boot_id: String,
    /// When the system started.
    pub up_since: u64,
    /// When the first heartbeat of this boot arrived.
    pub boot_seen_at: u64,
    /// The digest of the image that was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Digest>,
    /// The state of the service manager, such as `running` or `degraded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_state: Option<String>,
    /// The names of the failed units.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_units: Vec<String>,
    /// When the failed units or the state of the service manager changed.
    pub changed_at: u64,
    /// The names of the tasks that the agent may do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<String>,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum TaskState {
    /// The agent has not begun it.
    Asked,
    /// The agent does it.
    Running,
    /// It is done.
    Succeeded,
    /// It failed.
    Failed,
    /// It was not done, or not to its end, because it is not wanted any more.
    Withdrawn,
}

impl TaskState {
    /// Whether the agent has yet to do something.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Asked | Self::Running)
    }
}

/// A task of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskStatus {
    /// The id of the task.
    pub id: String,
    /// Its name, such as `drain`.
    pub name: String,
    /// How it is done.
    #[serde(flatten)]
    pub how: TaskOptions,
    /// Where it stands.
    pub state: TaskState,
    /// The seconds after which it is stopped.
    pub limit_seconds: u32,
    /// When it was asked for.
    pub asked_at: u64,
    /// When the agent began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<u64>,
    /// The id of the boot in which the agent began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// The id of the run that the machine is to fetch. Present if the start of a run asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The line that it printed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// Why it failed or was withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it printed, from its end back. Left out of lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl TaskStatus {
    /// Returns what the agent does by itself, if the task is such.
    fn act(&self) -> Option<AgentAct> {
        AgentAct::ALL.into_iter().find(|act| act.name() == self.name)
    }

    /// Says what the task does, as it is done to the machine: `drained`.
    pub fn done_in_words(&self) -> String {
        let done = match (self.act(), self.how) {
            (Some(AgentAct::Reboot), _) => "rebooted",
            (Some(AgentAct::BootSlipway), _) => "restarted into slipway",
            (Some(AgentAct::Logs), _) => "asked for its log",
            (None, _) if self.name != DRAIN => return format!("told to do {}", self.name),
            (None, TaskOptions { undo: true, .. }) => "put back to work",
            (None, TaskOptions { cordon_only: true, .. }) => "cordoned",
            (None, _) => "drained",
        };
        done.to_owned()
    }

    /// Says where it stands, with the machine as the subject: `is being drained: still runs: app.service`.
    pub fn in_words(&self) -> String {
        let done = self.done_in_words();
        let told = |text: &Option<String>| text.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
        let is_named = self.act().is_none() && self.name != DRAIN;
        match self.state {
            TaskState::Failed if is_named => format!("failed to do {}{}", self.name, told(&self.reason)),
            TaskState::Withdrawn if self.started_at.is_some() => {
                format!("was not {done} to the end{}", told(&self.reason))
            }
            TaskState::Asked => format!("is to be {done} by its agent"),
            TaskState::Running => format!("is being {done}{}", told(&self.line)),
            TaskState::Succeeded => format!("was {done}{}", told(&self.line)),
            TaskState::Failed => format!("could not be {done}{}", told(&self.reason)),
            TaskState::Withdrawn => format!("was not {done}{}", told(&self.reason)),
        }
    }
}
