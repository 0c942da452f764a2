//! The messages between the agent of an installed system and the server, under `/v1/agent`.

use serde::{Deserialize, Serialize};

use crate::shared::digest::Digest;
use crate::shared::secret::Secret;

/// The greatest length of a line that a task printed last, and of the reason why it failed, in bytes.
pub const MAX_TASK_LINE_BYTES: usize = 400;
/// The most output of a task that is kept, in bytes. What was printed last is kept.
pub const MAX_TASK_OUTPUT_BYTES: usize = 16 << 10;
/// The most names of tasks in a heartbeat.
pub const MAX_TASK_NAMES: usize = 32;
/// The greatest length of the agent's version, in bytes.
pub const MAX_VERSION_BYTES: usize = 32;

/// The answer (200) to `POST /v1/agent`: the credentials of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentCredentials {
    /// The token for the agent's requests. It takes the place of the run's token.
    pub token: Secret,
}

/// The body of `POST /v1/agent/heartbeat`: the installed system runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The id of the current boot, from `/proc/sys/kernel/random/boot_id`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9A-Za-z-]{1,64}$"))]
    pub boot_id: String,
    /// The version of the agent.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9A-Za-z.+-]{1,32}$"))]
    pub version: String,
    /// How long the system has been up, in seconds.
    pub uptime_seconds: u64,
    /// The digest of the image that was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Digest>,
    /// The output of `systemctl is-system-running`, such as `running` or `degraded`. Absent if the agent could not ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9A-Za-z-]{1,64}$"))]
    pub system_state: Option<String>,
    /// The names of the units that failed, in the order of `systemctl list-units`. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 32, value_type = Vec<crate::node::boot_report::UnitName>))]
    pub failed_units: Vec<String>,
    /// The names of the tasks that the agent may do, as its settings on the machine have them. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 32, schema_with = names))]
    pub tasks: Vec<String>,
    /// The SHA-256 of the certificates in PEM that the agent verifies the server with.
    pub ca: Digest,
    /// The task that the agent does, or did last. The server may not know yet how far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskReport>,
}

/// Returns the schema of names of tasks.
#[cfg(feature = "openapi")]
fn names() -> utoipa::openapi::schema::Schema {
    use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Type};
    let name = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[a-z0-9][a-z0-9-]{0,31}$"));
    ArrayBuilder::new().items(name).max_items(Some(MAX_TASK_NAMES)).build().into()
}

/// How far a task is, by the agent that does it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TaskReport {
    /// The id of the task.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9a-f]{1,64}$"))]
    pub id: String,
    /// Whether it is done.
    pub progress: TaskProgress,
    /// The line that it printed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 400))]
    pub line: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 400))]
    pub reason: Option<String>,
    /// What it printed, from its end back. Present once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 16384))]
    pub output: Option<String>,
}

/// Whether a task is done, by the agent that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum TaskProgress {
    /// The agent begins it once the server knows.
    Accepted,
    /// The agent does it.
    Running,
    /// It is done.
    Succeeded,
    /// It failed.
    Failed,
}

/// The answer (200) to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatAnswer {
    /// When the next heartbeat is due, in seconds.
    pub every_seconds: u32,
    /// The task that the agent is to do. Absent if there is none: what it does by then is not wanted any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// A new token, which takes the place of the one that was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// The certificates in PEM that may sign the server's certificate from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

/// Work for a running system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Task {
    /// The id of the task.
    pub id: String,
    /// Its name: one that the agent's settings on the machine have.
    pub name: String,
    /// How it is to be done.
    #[serde(default)]
    pub how: TaskOptions,
    /// The seconds after which it is stopped.
    pub limit_seconds: u32,
}

/// How a task is to be done. The agent tells the command by variables of its environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TaskOptions {
    /// Take no new work, and leave what runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cordon_only: bool,
    /// Go on where something fails, and stop what does not stop by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Take work again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undo: bool,
}

/// The answer (200) to `GET /v1/agent/boot`: what the machine starts to be in slipway. The paths are below the server's
/// URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentBoot {
    /// The path of the kernel.
    pub kernel: String,
    /// The path of the initramfs.
    pub initramfs: String,
    /// The kernel's command line.
    pub cmdline: String,
}
