//! Reads what trouble with nodes is derived from, beside their status.

use std::collections::{BTreeMap, HashMap, HashSet};

use slipway_protocol::{Flag, NodeStatus, RunState, StepState};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::rules::limits::{Changes, Limits};
use crate::rules::trouble::{self, GONE, Known, Usual, WINDOW};
use crate::store::step_times::{self, Kind};
use crate::store::{Connection, boot_fetches, clock, flags, history, limits, nodes, servers, systems};

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
    /// How running steps usually go.
    usual: HashMap<Kind, Usual>,
    /// Limits that the site changed.
    site: Changes,
    /// Limits that operating systems change, by their names.
    systems: BTreeMap<String, Changes>,
}

impl Facts {
    /// Reads what is known of one node, or of all if `node` is `None`.
    pub async fn load(connection: &mut Connection, node: Option<&str>, now: Millis) -> Result<Self, Error> {
        let servers = servers::all(connection).await?;
        // The servers' times are of the clock of the database, which may differ from this host's.
        let at = clock::now(connection).await?;
        let live = servers.iter().filter(|server| server.is_live(at)).map(|server| server.started_at);
        let since = live.min().map(|since| now.saturating_sub(at.saturating_sub(since)));
        let mut noticed: HashMap<String, Vec<Flag>> = HashMap::new();
        for (node, flag) in flags::all(connection, node).await? {
            noticed.entry(node).or_default().push(flag);
        }
        let systems = systems::all(connection).await?.into_iter();
        Ok(Self {
            heard_since: since.unwrap_or_default(),
            left: HashSet::new(),
            often: history::of_the_hour(connection, node, now.saturating_sub(WINDOW)).await?,
            noticed,
            usual: HashMap::new(),
            site: limits::read(connection).await?,
            systems: systems.map(|system| (system.name, system.limits)).collect(),
        })
    }

    /// Adds what follows from the status of nodes: how their steps go on other machines. `left` are the ids of nodes
    /// whose machines said that they leave for their installed system.
    pub async fn of(
        mut self,
        connection: &mut Connection,
        nodes: &[NodeStatus],
        left: HashSet<String>,
    ) -> Result<Self, Error> {
        self.left = left;
        for kind in nodes.iter().filter_map(running).collect::<HashSet<_>>() {
            let times = step_times::of(connection, &kind).await?;
            self.usual.extend(trouble::usual(&times).map(|usual| (kind, usual)));
        }
        Ok(self)
    }

    /// Returns the ids of the nodes with which something may be wrong.
    pub async fn suspects(&self, connection: &mut Connection, now: Millis) -> Result<Vec<String>, Error> {
        let shortest = |limits: Limits| limits.millis("silent.waiting").min(limits.millis("silent.agent"));
        let of_systems =
            self.systems.values().map(|system| shortest(Limits { site: self.site.clone(), system: system.clone() }));
        let of_site = shortest(Limits { site: self.site.clone(), ..Limits::default() });
        let idle = of_systems.chain([of_site]).min().unwrap_or(of_site);
        let before = |age: Millis| now.saturating_sub(age);
        let (here, fetched) = (before(GONE), before(boot_fetches::REMEMBERED));
        let mut found: HashSet<String> =
            nodes::suspects(connection, before(idle) + 1, here, fetched).await?.into_iter().collect();
        found.extend(self.often.keys().cloned());
        Ok(found.into_iter().collect())
    }

    /// Since when servers have been able to hear nodes.
    pub fn heard_since(&self) -> Millis {
        self.heard_since
    }

    /// Lets no silence count that began before a time.
    #[must_use]
    pub fn hearing_since(self, at: Millis) -> Self {
        Self { heard_since: self.heard_since.max(at), ..self }
    }

    /// Returns the trouble with a node, the worst first.
    pub fn flags(&self, node: &NodeStatus, now: Millis) -> Vec<Flag> {
        let (noticed, known, limits) = (self.noticed(&node.id), self.known(node), self.limits(node));
        let is_noticed = |flag: &Flag| noticed.iter().any(|before| before.is_same(flag));
        let mut flags = trouble::flags(node, &known, &limits, now);
        if !noticed.is_empty() {
            // What was noticed before a server started is not over because of that.
            let older = trouble::flags(node, &Known { heard_since: 0, ..known }, &limits, now);
            let is_missing = |flag: &Flag| is_noticed(flag) && !flags.iter().any(|known| known.is_same(flag));
            let missing: Vec<Flag> = older.into_iter().filter(is_missing).collect();
            flags.extend(missing);
            trouble::sort(&mut flags);
        }
        for flag in &mut flags {
            // It began when it was noticed first, also if it is told in other words by now.
            if let Some(before) = noticed.iter().find(|before| before.is_same(flag)) {
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

    fn known(&self, node: &NodeStatus) -> Known {
        Known {
            heard_since: self.heard_since,
            has_left: self.left.contains(&node.id),
            usual: running(node).and_then(|kind| self.usual.get(&kind).copied()),
            ..self.often.get(&node.id).cloned().unwrap_or_default()
        }
    }

    fn limits(&self, node: &NodeStatus) -> Limits {
        let os = node.run.as_ref().and_then(|run| run.os.as_ref());
        let system = os.and_then(|os| self.systems.get(os)).cloned().unwrap_or_default();
        Limits { site: self.site.clone(), system }
    }
}

/// Returns the kind of the step that a node is in.
fn running(node: &NodeStatus) -> Option<Kind> {
    let run = node.run.as_ref().filter(|run| run.state == RunState::Running)?;
    let step = run.steps.iter().find(|step| step.state == StepState::Running)?;
    Some(Kind::of(run.image.as_ref(), step))
}
