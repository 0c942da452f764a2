//! What operators do to a node: what it is called, whether it is possible, and what it means.

use slipway_protocol::shared::printable::line;
use slipway_protocol::{AgentAct, AgentStatus, ErrorCode, NodeState, NodeStatus, PowerMode, RunState};

use crate::base::error::Error;
use crate::node::status::is_stranger;
use crate::operate;
use crate::page::rows::reference;
use crate::rules::state;

/// Something that operators do to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Start a run that installs an operating system.
    Start,
    /// End the run.
    Cancel,
    /// Confirm a run of a restored backup.
    Confirm,
    /// Let the machine in.
    Release,
    /// Take the node out of service.
    Decommission,
    /// Erase all disks of the machine, and then take the node out of service.
    Erase,
    /// Put it back into service.
    Recommission,
    /// Remove the node with all that is stored of it.
    Remove,
    /// Set where the node is, and its labels.
    Label,
}

impl Act {
    /// All, in the order of the buttons.
    pub const ALL: [Self; 9] = [
        Self::Start,
        Self::Cancel,
        Self::Confirm,
        Self::Release,
        Self::Label,
        Self::Decommission,
        Self::Erase,
        Self::Recommission,
        Self::Remove,
    ];
    /// What the table of nodes offers for many of them.
    pub const OF_MANY: [Self; 6] =
        [Self::Start, Self::Cancel, Self::Release, Self::Label, Self::Decommission, Self::Erase];

    /// Its name in URLs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Cancel => "cancel",
            Self::Confirm => "confirm",
            Self::Release => "release",
            Self::Decommission => "decommission",
            Self::Erase => "erase",
            Self::Recommission => "recommission",
            Self::Remove => "remove",
            Self::Label => "label",
        }
    }

    /// Returns the act of this name.
    pub fn from_word(word: &str) -> Result<Self, Error> {
        let unknown = || Error::refused(ErrorCode::NotFound, "there is nothing at this path");
        Self::ALL.into_iter().find(|act| act.word() == word).ok_or_else(unknown)
    }

    /// What the button says.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Start => "Start run",
            Self::Cancel => "Cancel run",
            Self::Confirm => "Confirm run",
            Self::Release => "Release",
            Self::Decommission => "Decommission",
            Self::Erase => "Erase and decommission",
            Self::Recommission => "Recommission",
            Self::Remove => "Remove",
            Self::Label => "Set site and labels",
        }
    }

    /// How the form refers to a node: by the claim code of the machine that the operator saw, if one is to be let in,
    /// so that no other machine is.
    pub fn reference(self, node: &NodeStatus) -> String {
        match &node.claim_code {
            Some(code) if self == Self::Release => code.clone(),
            _ => reference(node),
        }
    }

    /// Whether data is lost, so that the operator has to type what is meant.
    pub fn loses_data(self) -> bool {
        matches!(self, Self::Start | Self::Erase | Self::Remove)
    }

    /// Says why this cannot be done to a node. `None` if it can.
    pub fn obstacle(self, node: &NodeStatus) -> Option<String> {
        let run = node.run.as_ref();
        let waits = node.claims.iter().any(|claim| node.claim_code.as_ref() == Some(&claim.code));
        let stranger = || is_stranger(node).then(|| "it is not a node yet: release it first".to_owned());
        let out = || (node.state == NodeState::Decommissioned).then(|| "the node is out of service".to_owned());
        match self {
            Self::Start | Self::Erase => stranger().or_else(out),
            Self::Cancel => stranger().or_else(|| (!has_open_run(node)).then(|| "no run is in progress".to_owned())),
            Self::Confirm => {
                let held = run.is_some_and(|run| run.restored);
                (!held).then(|| "no run of a restored backup waits".to_owned())
            }
            Self::Release if waits => None,
            Self::Release => out().or_else(|| node.released.then(|| "it is released already".to_owned())),
            Self::Decommission => stranger().or_else(out).or_else(|| {
                operate::erasure(node, None, false).map(|_| {
                    "the node is ephemeral: erase and decommission it, or keep its disks (`node decommission \
                     --keep-disks`)"
                        .to_owned()
                })
            }),
            Self::Recommission => {
                (node.state != NodeState::Decommissioned).then(|| "the node is in service".to_owned())
            }
            Self::Label => stranger(),
            Self::Remove => {
                let may = matches!(node.state, NodeState::Registered | NodeState::Held | NodeState::Decommissioned);
                (!may).then(|| "the node is in service: decommission it first".to_owned())
            }
        }
    }

    /// Says what this will do, apart from disks.
    pub fn effect(self, node: &NodeStatus) -> String {
        match self {
            Self::Start => {
                format!("Installs the operating system at the machine's next poll, {}.", boots(node))
            }
            Self::Cancel if node.run.as_ref().is_some_and(|run| run.state == RunState::Pending) => {
                "Ends the run as failed. The machine has not fetched it, so nothing else changes.".to_owned()
            }
            Self::Cancel => "Ends the run as failed. The machine stops where it is, and waits in slipway; a disk that \
                             was being written does not boot."
                .to_owned(),
            Self::Confirm => "The machine gets the run, which came from a backup, and does all its steps.".to_owned(),
            Self::Release => match node.claims.iter().find(|claim| node.claim_code.as_ref() == Some(&claim.code)) {
                Some(claim) => format!("Lets the machine at {} in, with its key and no other.", claim.address),
                None => "Lets in the first machine that has the node's identifiers.".to_owned(),
            },
            Self::Decommission => "Its credentials are refused from now on, and its run ends as failed. The installed \
                                   system and its disks stay as they are."
                .to_owned(),
            Self::Erase => {
                let when = boots(node);
                format!(
                    "Erases all disks at the machine's next poll, {when}: each by its own erase command, or else with \
                     zeros. When that succeeded, takes the machine out of service."
                )
            }
            Self::Recommission => "Registers it again, with its name, settings and history. Its machine enrols again, \
                                   and waits to be released."
                .to_owned(),
            Self::Label => {
                let labels = node.labels.iter().map(|(key, value)| format!("{key}={value}"));
                let site = node.site.as_ref().map(|site| format!("site {site}"));
                let now = site.into_iter().chain(labels).collect::<Vec<_>>().join(", ");
                if now.is_empty() { "Has neither yet.".to_owned() } else { line(&format!("Has {now}.")).into_owned() }
            }
            Self::Remove if is_stranger(node) => "Forgets the machine until it asks again.".to_owned(),
            Self::Remove => "Removes the node with its runs and logs from this server. The machine's disks stay as \
                             they are."
                .to_owned(),
        }
    }
}

/// Says how a machine comes to slipway for a run, if it does not poll.
fn boots(node: &NodeStatus) -> &'static str {
    if is_rebooted(node) {
        return "or else has the agent of its running system restart it into slipway, which ends that system";
    }
    match is_switched(node) {
        true => "or else switches the machine on, or off and on again, to boot slipway",
        false => "or when it boots slipway",
    }
}

/// Whether the agent of a node's running system may restart the machine into slipway. The server looks again whether it
/// was heard from.
pub fn is_rebooted(node: &NodeStatus) -> bool {
    let runs_system = matches!(node.state, NodeState::Booting | NodeState::Running | NodeState::Draining);
    let may = |agent: &AgentStatus| agent.tasks.iter().any(|task| task == AgentAct::BootSlipway.name());
    runs_system && node.agent.as_ref().is_some_and(may)
}

/// Whether something switches the machine of a node.
pub fn is_switched(node: &NodeStatus) -> bool {
    node.power.as_ref().is_some_and(|power| power.mode != PowerMode::Disabled)
}

/// Whether a node has a run that has not ended.
pub fn has_open_run(node: &NodeStatus) -> bool {
    node.run.as_ref().is_some_and(|run| state::is_open(run.state))
}
