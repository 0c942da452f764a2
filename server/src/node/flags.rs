//! Reads what trouble with nodes is derived from, beside their status.

use std::collections::{BTreeMap, HashMap, HashSet};

use slipway_protocol::{Flag, NodeStatus, RunState, StepState};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::rules::limits::{Changes, Limits};
use crate::rules::trouble::{self, Known, Usual, WINDOW};
use crate::store::{Connection, flags, history, limits, nodes, servers, step_times, systems};

/// What is known of nodes beside their status.
#[derive(Debug)]
pub struct Facts {
    /// Since when servers have been able to hear nodes.
    heard_since: Millis,
    /// Nodes whose machines said that they leave for their installed system.
    left: HashSet<String>,
    /// What happened in the last hour, by node.
    often: HashMap<String, Known>,
    /// What was noticed before, by node.
    noticed: HashMap<String, Vec<Flag>>,
    /// How running steps usually go, by image and action.
    usual: HashMap<(String, String), Usual>,
    /// Limits that the site changed.
    site: Changes,
    /// Limits that operating systems change, by their names.
    systems: BTreeMap<String, Changes>,
}

impl Facts {
    /// Reads what is known of these nodes. If it is one, its id is `node`.
    pub async fn load(
        connection: &mut Connection,
        nodes: &[NodeStatus],
        node: Option<&str>,
        now: Millis,
    ) -> Result<Self, Error> {
        let servers = servers::all(connection).await?;
        let live = servers.iter().filter(|server| server.is_live(now)).map(|server| server.started_at);
        let mut noticed: HashMap<String, Vec<Flag>> = HashMap::new();
        for (node, flag) in flags::all(connection, node).await? {
            noticed.entry(node).or_default().push(flag);
        }
        let mut usual = HashMap::new();
        for pair in nodes.iter().filter_map(running).collect::<HashSet<_>>() {
            let times = step_times::of(connection, &pair.0, &pair.1).await?;
            usual.extend(trouble::usual(&times).map(|usual| (pair, usual)));
        }
        let systems = systems::all(connection).await?.into_iter();
        Ok(Self {
            heard_since: live.min().unwrap_or_default(),
            left: nodes::left(connection, node).await?.into_iter().collect(),
            often: history::of_the_hour(connection, node, now.saturating_sub(WINDOW)).await?,
            noticed,
            usual,
            site: limits::read(connection).await?,
            systems: systems.map(|system| (system.name, system.limits)).collect(),
        })
    }

    /// Lets no silence count that began before a time.
    #[must_use]
    pub fn hearing_since(self, at: Millis) -> Self {
        Self { heard_since: self.heard_since.max(at), ..self }
    }

    /// Returns the trouble with a node, the worst first.
    pub fn flags(&self, node: &NodeStatus, now: Millis) -> Vec<Flag> {
        let noticed = self.noticed(&node.id);
        let mut flags = trouble::flags(node, &self.known(node), &self.limits(node), now);
        for flag in &mut flags {
            // It began when it was noticed first, also if it is told in other words by now.
            if let Some(before) = noticed.iter().find(|before| is_same(before, flag)) {
                flag.since = before.since;
            }
        }
        flags
    }

    /// Says why the run of a node is to end, if a limit has it end.
    pub fn end(&self, node: &NodeStatus, now: Millis) -> Option<String> {
        trouble::end(node, &self.known(node), &self.limits(node), now)
    }

    /// Returns what was noticed of a node before.
    pub fn noticed(&self, node: &str) -> &[Flag] {
        self.noticed.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the ids of all nodes of which something was noticed before.
    pub fn noticed_nodes(&self) -> impl Iterator<Item = &str> {
        self.noticed.keys().map(String::as_str)
    }

    fn known(&self, node: &NodeStatus) -> Known {
        Known {
            heard_since: self.heard_since,
            has_left: self.left.contains(&node.id),
            usual: running(node).and_then(|pair| self.usual.get(&pair).copied()),
            ..self.often.get(&node.id).cloned().unwrap_or_default()
        }
    }

    fn limits(&self, node: &NodeStatus) -> Limits {
        let os = node.run.as_ref().and_then(|run| run.os.as_ref());
        let system = os.and_then(|os| self.systems.get(os)).cloned().unwrap_or_default();
        Limits { site: self.site.clone(), system }
    }
}

/// Whether two flags are about the same trouble.
pub fn is_same(one: &Flag, other: &Flag) -> bool {
    (one.kind, &one.step) == (other.kind, &other.step)
}

/// Returns the image and the action of the step that a node is in.
fn running(node: &NodeStatus) -> Option<(String, String)> {
    let run = node.run.as_ref().filter(|run| run.state == RunState::Running)?;
    let step = run.steps.iter().find(|step| step.state == StepState::Running)?;
    Some((run.image.as_ref().map(ToString::to_string).unwrap_or_default(), step.action.clone()))
}
