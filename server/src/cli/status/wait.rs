//! `status --wait`: until nodes are in a state.

use clap::ValueEnum;
use slipway_protocol::{NodeState, NodeStatus, RunState};

use crate::cli::words::label;

/// Exit status if a run failed while another state was awaited.
pub const FAILED: u8 = 3;
/// Exit status if the time was over first.
pub const TIMED_OUT: u8 = 4;

/// What is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Awaited {
    /// The installed system has reported that it is up.
    Running,
    /// The system is installed, whether or not it has reported.
    Installed,
    /// The run failed.
    Failed,
    /// The machine is out of service.
    Decommissioned,
}

impl Awaited {
    /// Returns whether a node is in the state.
    fn is_reached(self, node: &NodeStatus) -> bool {
        use NodeState as S;
        // While a newer run waits, and after that was withdrawn, the system that is there goes on, but is not what is
        // awaited.
        let is_done = node.run.as_ref().is_none_or(|run| run.state == RunState::Succeeded);
        match self {
            Awaited::Running => node.state == S::Running && is_done,
            Awaited::Installed => matches!(node.state, S::Installed | S::Booting | S::Running) && is_done,
            Awaited::Failed => has_failed(node),
            Awaited::Decommissioned => node.state == S::Decommissioned,
        }
    }
}

fn has_failed(node: &NodeStatus) -> bool {
    node.state == NodeState::Failed || node.run.as_ref().is_some_and(|run| run.state == RunState::Failed)
}

/// How the wait for nodes stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// All nodes are in the state.
    Reached,
    /// These have failed, and will not get there by themselves.
    Failed(Vec<String>),
    /// These are not in the state yet.
    Waits(Vec<String>),
}

/// Judges the wait for a state of all these nodes.
pub fn judge(awaited: Awaited, nodes: &[NodeStatus]) -> Wait {
    let labels = |nodes: Vec<&NodeStatus>| nodes.into_iter().map(|node| label(node).to_owned()).collect();
    let missing: Vec<&NodeStatus> = nodes.iter().filter(|node| !awaited.is_reached(node)).collect();
    let failed: Vec<&NodeStatus> = missing.iter().copied().filter(|node| has_failed(node)).collect();
    match (missing.is_empty(), failed.is_empty()) {
        (true, _) => Wait::Reached,
        (false, true) => Wait::Waits(labels(missing)),
        (false, false) => Wait::Failed(labels(failed)),
    }
}

/// The end of a wait without success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unreached {
    /// The exit status of the program.
    pub status: u8,
    message: String,
}

/// Returns the error for a wait that is over, or nothing if it goes on. `is_late` says whether the time is over.
pub fn ended(awaited: Awaited, wait: &Wait, is_late: bool) -> Option<Unreached> {
    let state = crate::cli::words::possible(&awaited);
    let (status, message) = match wait {
        Wait::Failed(failed) => {
            (FAILED, format!("waiting for {state}: the run failed on {}; `status NODE` says why", failed.join(", ")))
        }
        Wait::Waits(missing) if is_late => {
            (TIMED_OUT, format!("waiting for {state}: the time is over, and not there yet: {}", missing.join(", ")))
        }
        _ => return None,
    };
    Some(Unreached { status, message })
}

#[cfg(test)]
mod tests {
    use slipway_protocol::Identity;

    use super::*;

    #[test]
    fn a_wait_ends_when_all_nodes_are_there_or_one_cannot_get_there() {
        use NodeState as S;
        let node = |name: &str, state| NodeStatus {
            name: Some(name.to_owned()),
            ..NodeStatus::new(name.to_owned(), state, Identity::default())
        };
        let wait = |awaited, states: [S; 2]| judge(awaited, &[node("a", states[0]), node("b", states[1])]);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(wait(Awaited::Running, [S::Running, S::Running]), Wait::Reached);
        assert_eq!(wait(Awaited::Running, [S::Running, S::Booting]), Wait::Waits(names(&["b"])));
        assert_eq!(wait(Awaited::Installed, [S::Running, S::Booting]), Wait::Reached);
        assert_eq!(wait(Awaited::Installed, [S::Installing, S::Failed]), Wait::Failed(names(&["b"])));
        assert_eq!(wait(Awaited::Failed, [S::Failed, S::Failed]), Wait::Reached);
        assert_eq!(wait(Awaited::Decommissioned, [S::Decommissioned, S::Terminating]), Wait::Waits(names(&["b"])));
        assert_eq!(wait(Awaited::Decommissioned, [S::Decommissioned, S::Failed]), Wait::Failed(names(&["b"])));
        assert_eq!(wait(Awaited::Failed, [S::Failed, S::Running]), Wait::Waits(names(&["b"])));
        let late = ended(Awaited::Running, &Wait::Waits(names(&["b"])), true).map(|error| error.status);
        assert_eq!(late, Some(TIMED_OUT));
        assert_eq!(ended(Awaited::Running, &Wait::Waits(names(&["b"])), false), None);
        assert_eq!(
            ended(Awaited::Running, &Wait::Failed(names(&["b"])), false).map(|error| error.status),
            Some(FAILED)
        );
    }
}
