//! Asks before data or access is lost, and says of which machine and which disk.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Context, bail, ensure};
use clap::Args;
use slipway_protocol::shared::printable::{line, size};
use slipway_protocol::{Disk, NodeState, NodeStatus, PowerState, RunState, RunStatus, StepState};
use slipway_server::Error;
use slipway_server::node::status::is_stranger;
use slipway_server::operate::{BootsBy, Destroyed, Plan};
use slipway_server::rules::state;
use slipway_server::run::foresee::{Erased, erased};
use slipway_server::store::Store;
use slipway_server::store::images::Image;
use slipway_server::store::systems::{self, System};

use super::words::{label, word};

/// Whether a command asks before it does what cannot be undone.
#[derive(Args, Clone, Copy, Debug)]
pub struct Yes {
    /// Do not ask before; for scripts.
    #[arg(long)]
    yes: bool,
}

impl Yes {
    /// Shows what will be done, and asks if there is anything. Fails if the answer is no, or if standard input is not a
    /// terminal, because nobody can answer then.
    pub fn ask(self, doing: &str, consequences: &[String]) -> anyhow::Result<()> {
        if self.yes || consequences.is_empty() {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() {
            bail!("{doing}: standard input is not a terminal; give --yes to continue without asking");
        }
        let lines: String = consequences.iter().map(|text| format!("{}\n", line(text))).collect();
        let mut stderr = std::io::stderr();
        write!(stderr, "{lines}type \"yes\" to continue: ").context("asking for confirmation")?;
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer).context("reading the answer")?;
        ensure!(answer.trim() == "yes", "{doing}: nothing was done");
        Ok(())
    }

    /// Asks like [`Self::ask`] before a run. Fails if the run would do something else by the time of the answer.
    pub async fn ask_for_run(self, doing: &str, plan: impl AsyncFn() -> Result<Plan, Error>) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        let asked = plan().await?;
        self.ask(doing, &run(&asked))?;
        let is_same = plan().await?.does_the_same(&asked);
        ensure!(is_same, "{doing}: nothing was done: the run would do something else by now; try again");
        Ok(())
    }
}

/// Describes a machine: `web1 is running: Dell PowerEdge R640, serial number 7CZ1234`.
pub fn machine(node: &NodeStatus) -> String {
    let identity = &node.identity;
    let serial = identity.serial.as_ref().map(|serial| format!("serial number {serial}"));
    let other = identity.uuid.as_ref().map(|uuid| format!("UUID {uuid}"));
    let other = other.or_else(|| identity.macs.first().map(|mac| format!("MAC address {mac}")));
    let system = node.inventory.as_ref().map(|inventory| &inventory.system);
    let model: Vec<&str> =
        system.iter().flat_map(|system| [&system.vendor, &system.model]).flatten().map(String::as_str).collect();
    let model = (!model.is_empty()).then(|| model.join(" "));
    let words: Vec<String> = [model, serial.or(other)].into_iter().flatten().collect();
    let known = if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) };
    format!("{} is {}{known}", label(node), word(&node.state))
}

/// Describes what a run would do. Empty if it destroys nothing.
pub fn run(plan: &Plan) -> Vec<String> {
    if plan.destroyed.is_empty()
        && plan.goes_on.is_none()
        && plan.replaced.is_none()
        && plan.boots.is_none()
        && plan.afterwards.is_none()
    {
        return Vec::new();
    }
    let replaced = plan.replaced.iter().map(|run| format!("ends run {run}, which is not over, as failed"));
    let disks = plan.node.inventory.as_ref().map(|inventory| inventory.disks.as_slice()).unwrap_or_default();
    let erased = plan.destroyed.iter().flat_map(|destroyed| erases(destroyed, disks));
    let booted = plan.boots.map(|by| booted(&plan.node, by));
    let then =
        plan.afterwards.map(|then| format!("when it succeeded, {}: its credentials are refused", then.in_words()));
    let goes_on = plan.goes_on.iter().flat_map(|goes_on| {
        let from = format!(
            "goes on with step {}; if the machine is restarted before the end, the run begins with its first step:",
            goes_on.from
        );
        std::iter::once(from).chain(goes_on.again.iter().flat_map(|destroyed| erases(destroyed, disks)))
    });
    std::iter::once(machine(&plan.node))
        .chain(erased)
        .chain(goes_on)
        .chain(replaced)
        .chain(booted)
        .chain(then)
        .collect()
}

fn booted(node: &NodeStatus, by: BootsBy) -> String {
    if by == BootsBy::Agent {
        return "has the agent of its running system restart the machine into slipway, which ends that system"
            .to_owned();
    }
    match node.power.as_ref().and_then(|power| power.state) {
        Some(PowerState::Off) => "switches the machine on, to boot slipway",
        Some(PowerState::On) => "switches the machine off and on again, to boot slipway",
        None => "switches the machine on, to boot slipway, and off before if its hook says that it is on",
    }
    .to_owned()
}

/// Describes what it means to switch a machine off.
pub fn power_off(node: &NodeStatus, then: &str) -> Vec<String> {
    let run = node.run.as_ref().filter(|run| run.state == RunState::Running);
    let run = run.map(|run| format!("run {} goes on with it, and a disk that is half written does not boot", run.id));
    let stops = format!("switches the machine off{then}, without telling its operating system");
    [Some(machine(node)), Some(stops), run].into_iter().flatten().collect()
}

fn erases(destroyed: &Destroyed, disks: &[Disk]) -> Vec<String> {
    let steps = destroyed.steps.join(", ");
    let first = match erased(&destroyed.hints, disks) {
        Erased::Unknown => format!("erases the disk that the machine chooses ({steps}): its disks are not known yet"),
        Erased::Path(path) => format!("erases {path}, which the machine has not reported ({steps})"),
        Erased::None => format!(
            "erases nothing ({steps}): none of its disks, as last seen, fits the hints, so the run would fail before \
             it writes"
        ),
        Erased::One(disk) => format!("erases {}, as last seen ({steps})", disk.in_words()),
        Erased::Several(which, disks) => {
            let first = format!("erases {which} ({steps}); as last seen:");
            return std::iter::once(first).chain(disks.iter().map(|disk| format!("  {}", disk.in_words()))).collect();
        }
    };
    vec![first]
}

/// Describes what it means to end a run. Empty if the run is over.
pub fn cancel(node: &NodeStatus, run: &RunStatus) -> Vec<String> {
    if !state::is_open(run.state) {
        return Vec::new();
    }
    let os = run.os.as_ref().map(|os| format!(" of {os}")).unwrap_or_default();
    let current = run.steps.iter().find(|step| step.state == StepState::Running);
    let stops = current.map_or_else(
        || "no step is running".to_owned(),
        |step| format!("step {} stops where it is; a disk that it is writing does not boot", step.name),
    );
    // A step that destroys says on which disk before it does.
    let notes = current.iter().flat_map(|step| &step.notes).cloned();
    [machine(node), format!("ends run {}{os} as failed; {stops}", run.id)].into_iter().chain(notes).collect()
}

/// Describes what it means to take a machine out of service. Empty if nothing changes.
pub fn decommission(node: &NodeStatus, power_off: bool) -> Vec<String> {
    if node.state == NodeState::Decommissioned && !power_off {
        return Vec::new();
    }
    let run = node.run.as_ref().filter(|run| state::is_open(run.state));
    let ends = run.map(|run| format!("ends run {}, which is not over, as failed", run.id));
    let stays = "refuses its credentials from now on; its system and its disks stay as they are".to_owned();
    let off = power_off.then(|| "switches the machine off, without telling its operating system".to_owned());
    [Some(machine(node)), ends, Some(stays), off].into_iter().flatten().collect()
}

/// Describes what it means to remove a machine. Empty if nothing is lost: a machine in service is not removed, and a
/// waiting one may ask again.
pub fn remove(node: &NodeStatus) -> Vec<String> {
    let may = matches!(node.state, NodeState::Registered | NodeState::Held | NodeState::Decommissioned);
    if !may || is_stranger(node) {
        return Vec::new();
    }
    vec![machine(node), "removes its runs and logs from this server; its disks stay as they are".to_owned()]
}

/// Describes what it means to remove an image.
pub fn image(image: &Image) -> Vec<String> {
    vec![format!("removes {} ({}, {}) and its file", image.file_name, size(image.size), image.digest)]
}

/// Describes what it means to remove an operating system. Empty if there is none of this name.
pub async fn system(store: &Store, name: &str) -> anyhow::Result<Vec<String>> {
    let known = systems::get_by_name(&mut *store.read().await?, name).await?;
    let describe = |system: System| {
        format!("removes the settings of {}, which has the image {}; the image stays", system.name, system.image)
    };
    Ok(known.map(describe).into_iter().collect())
}
