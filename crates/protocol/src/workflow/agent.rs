//! The agent: the boot reporter that stays in the installed system.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::shared::digest::Digest;

/// The most commands of an agent.
const MAX_TASKS: usize = 16;
/// The greatest length of a command, in bytes. The service manager is given it as one argument.
const MAX_COMMAND_BYTES: usize = 16 << 10;
/// The greatest length of the name of a task, in bytes.
pub const MAX_TASK_NAME_BYTES: usize = 32;
/// Names that mean something else where tasks are asked for.
const RESERVED: [&str; 2] = ["cancel", "remove"];
/// The name of the command that takes the machine's work away before it is rebooted or reinstalled.
pub const DRAIN: &str = "drain";

/// What an agent can do by itself, without a command of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum AgentAct {
    /// Send the log of the current boot.
    Logs,
    /// Restart the machine into its installed system.
    Reboot,
    /// Restart the machine into slipway, once.
    BootSlipway,
}

impl AgentAct {
    /// All acts.
    pub const ALL: [Self; 3] = [Self::Logs, Self::Reboot, Self::BootSlipway];

    /// Returns the name of the task.
    pub fn name(self) -> &'static str {
        match self {
            Self::Logs => "logs",
            Self::Reboot => "reboot",
            Self::BootSlipway => "boot-slipway",
        }
    }
}

/// What the agent of an installed system may do, beside telling the server that the system runs. It does nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// What it may do by itself. Default: everything.
    #[serde(default = "everything")]
    pub may: BTreeSet<AgentAct>,
    /// The commands that it may run, by the names of their tasks. A shell runs them as root.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(schema_with = commands, required = false))]
    pub tasks: BTreeMap<String, String>,
    /// The digest of the image that is installed. In a run, the server fills it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Digest>,
}

/// Returns the schema of the commands, as [`Agent::validate`] requires them.
#[cfg(feature = "openapi")]
fn commands() -> utoipa::openapi::schema::Schema {
    use utoipa::openapi::schema::{ObjectBuilder, Type};
    let text = |pattern: &str| ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
    let command = text("^[^\\x00]*[^\\x00\\s][^\\x00]*$").max_length(Some(MAX_COMMAND_BYTES));
    let commands = ObjectBuilder::new().schema_type(Type::Object).max_properties(Some(MAX_TASKS));
    commands.property_names(Some(text("^[a-z0-9][a-z0-9-]{0,31}$"))).additional_properties(Some(command)).build().into()
}

fn everything() -> BTreeSet<AgentAct> {
    AgentAct::ALL.into()
}

impl Default for Agent {
    fn default() -> Self {
        Self { may: everything(), tasks: BTreeMap::new(), image: None }
    }
}

/// Whether a text can be the name of a task: small letters, digits and hyphens.
pub fn is_task_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_TASK_NAME_BYTES).contains(&text.len()) && text.bytes().all(is_plain) && !text.starts_with('-')
}

impl Agent {
    /// Returns the names of all tasks that the agent may do.
    pub fn names(&self) -> Vec<String> {
        let acts = self.may.iter().map(|act| act.name().to_owned());
        acts.chain(self.tasks.keys().cloned()).collect()
    }

    /// Returns the problems of these settings. Each completes a sentence that begins with the name of the step, or with
    /// "the agent".
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.tasks.len() > MAX_TASKS {
            problems.push(format!("has {} commands for the agent: give at most {MAX_TASKS}", self.tasks.len()));
        }
        for (name, command) in &self.tasks {
            if !is_task_name(name) {
                problems.push(format!(
                    "has a command of the name {name:?}: use 1 to {MAX_TASK_NAME_BYTES} small letters, digits and \
                     hyphens"
                ));
            }
            if AgentAct::ALL.iter().any(|act| act.name() == name) || RESERVED.contains(&name.as_str()) {
                problems.push(format!("has a command of the name {name:?}, which means something else"));
            }
            if command.trim().is_empty() || command.contains('\0') || command.len() > MAX_COMMAND_BYTES {
                problems.push(format!(
                    "has no usable command for the task {name:?}: give 1 to {MAX_COMMAND_BYTES} bytes of text"
                ));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_has_named_commands_and_may_do_all_by_itself_unless_told() {
        let agent: Agent = serde_json::from_str(r#"{"tasks": {"drain": "systemctl stop app"}}"#).expect("an agent");
        assert_eq!(agent.names(), ["logs", "reboot", "boot-slipway", "drain"]);
        assert_eq!(agent.validate(), [""; 0]);
        let agent: Agent = serde_json::from_str(r#"{"may": ["logs"]}"#).expect("an agent");
        assert_eq!(agent.names(), ["logs"]);
    }

    #[test]
    fn commands_without_a_name_or_a_text_are_refused() {
        for (name, command) in
            [("", "true"), ("A", "true"), ("-a", "true"), ("reboot", "true"), ("a", " "), ("a", "a\0b")]
        {
            let tasks = BTreeMap::from([(name.to_owned(), command.to_owned())]);
            assert_eq!(Agent { tasks, ..Agent::default() }.validate().len(), 1, "{name:?} {command:?}");
        }
        let tasks = (0..17).map(|n| (format!("t{n}"), "true".to_owned())).collect();
        assert_eq!(Agent { tasks, ..Agent::default() }.validate().len(), 1);
    }
}
