//! A node as a row of the table.

use serde::Serialize;
use slipway_protocol::shared::printable::line;
use slipway_protocol::{Digest, FlagKind, NodeState, NodeStatus, RunState, StepState};

use crate::base::time::Millis;
use crate::node::status::{asks_to_be_let_in, is_stranger};
use crate::page::reasons::{self, Reason};
use crate::page::words::{self, Tone};
use crate::rules::progress;
use crate::store::to_word;

/// What a row shows. Nothing in it is HTML, and nothing in it changes merely because time passes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Id of the node, or of a waiting machine.
    pub id: String,
    /// The name, else an identifier, else the id.
    pub name: String,
    /// The state in its word.
    pub state: String,
    /// How the state looks.
    pub tone: Tone,
    /// The shape before the state.
    pub mark: &'static str,
    /// Since when it is in this state, in milliseconds since 1970.
    pub since: Option<Millis>,
    /// The step, such as `3/6 stream-image`.
    pub step: String,
    /// How much of the step is done.
    pub percent: Option<u8>,
    /// The operating system that it has, or gets, with the start of the digest of the image.
    pub system: String,
    /// The site of the machine.
    pub site: String,
    /// Vendor and model.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Address of the machine, without the prefix length.
    pub address: String,
    /// Why it needs an operator, or what it does. Empty if its state says it all.
    pub reason: String,
    /// How bad that is.
    pub reason_tone: Tone,
    /// Since when, in milliseconds since 1970.
    pub reason_since: Option<Millis>,
    /// The likely cause, and what to do about it. Empty if there is none.
    pub cause: String,
    /// The command to run next. Empty if there is none.
    pub command: String,
    /// Path of the page where something can be done about it. Empty if there is none.
    pub act: String,
    /// What can be done there.
    pub act_text: &'static str,
    /// What else a search finds: kinds and values of identifiers, and labels as `label` and `key=value`.
    #[serde(skip)]
    pub identifiers: Vec<(String, String)>,
    /// How the page and commands name it: by id, or by claim code if it is a waiting machine.
    #[serde(skip)]
    pub reference: String,
    /// Whether it waits to be let in.
    #[serde(skip)]
    pub waits: bool,
}

impl Row {
    /// Makes the row of a node.
    pub fn of(node: &NodeStatus) -> Self {
        let run = node.run.as_ref();
        let reason = reasons::first(node);
        let tone = match &reason {
            Some(reason) if reason.is_flag() => reason.tone,
            _ => words::of_node(node.state),
        };
        let current = run.filter(|run| run.started_at.is_some()).and_then(reasons::current);
        let step = match (run, current) {
            (Some(run), Some((index, step))) => {
                let number = if step.attempt == 0 { index } else { index + 1 };
                let again = if step.attempt > 1 { format!(", attempt {}", step.attempt) } else { String::new() };
                let of_run = match run.state {
                    RunState::Running => format!(", {} % of the run", run.percent),
                    _ => String::new(),
                };
                format!("{number}/{} {}{again}{of_run}", run.steps.len(), line(&step.name))
            }
            (Some(run), None) => format!("0/{}", run.steps.len()),
            (None, _) => String::new(),
        };
        let moved = current.filter(|(_, step)| step.state == StepState::Running);
        let moved = moved.and_then(|(_, step)| step.progress.as_ref());
        // Progress is told where there is nothing more important.
        let reason = reason.or_else(|| {
            let text = words::pace(moved?);
            Some(Reason::new(Tone::Quiet, text))
        });
        let reason = reason.unwrap_or_else(|| Reason::new(Tone::Quiet, ""));
        let Reason { tone: reason_tone, text: reason, cause, since: reason_since, command } = reason;
        let command = command.unwrap_or_default();
        let (act, act_text) = act(node, reason_tone).unwrap_or_default();
        Self {
            act,
            act_text,
            id: node.id.clone(),
            name: name(node),
            state: to_word(&node.state),
            tone,
            mark: tone.mark(),
            since: since(node),
            step,
            percent: moved.and_then(progress::of_step),
            system: system(node),
            site: node.site.as_deref().map(|site| line(site).into_owned()).unwrap_or_default(),
            model: model(node),
            serial: node.identity.serial.as_deref().map(|serial| line(serial).into_owned()).unwrap_or_default(),
            address: address(node),
            reason,
            reason_tone,
            reason_since,
            // A row is text, which has no code.
            cause: cause.replace('`', ""),
            command,
            identifiers: node.identity.values().map(identifier).chain(node.labels.iter().map(label)).collect(),
            reference: reference(node),
            waits: asks_to_be_let_in(node),
        }
    }

    /// Whether an operator should look at it.
    pub fn is_flagged(&self) -> bool {
        matches!(self.tone, Tone::Warn | Tone::Bad)
    }

    /// Whether it is in service.
    pub fn is_here(&self) -> bool {
        self.state != "decommissioned"
    }
}

/// What an operator most likely does next, by its page.
fn act(node: &NodeStatus, tone: Tone) -> Option<(String, &'static str)> {
    let reference = reference(node);
    match node.state {
        NodeState::Held if !node.claims.is_empty() => Some((path("release", &reference), "Release…")),
        NodeState::Failed if tone == Tone::Bad => Some((format!("/nodes/{reference}/retry"), "Retry…")),
        _ => {
            let first = node.flags.first().filter(|flag| flag.kind == FlagKind::Contested);
            first.map(|_| (format!("/nodes/{reference}"), "Compare"))
        }
    }
}

/// Path of the page that asks before something is done to a node.
pub fn path(act: &str, reference: &str) -> String {
    let reference: String = form_urlencoded::byte_serialize(reference.as_bytes()).collect();
    format!("/act/{act}?node={reference}")
}

fn identifier((kind, value): (&str, &str)) -> (String, String) {
    (kind.to_owned(), value.to_lowercase())
}

fn label((key, value): (&String, &String)) -> (String, String) {
    ("label".to_owned(), format!("{key}={value}").to_lowercase())
}

/// The operating system that a node gets or has: `debian-12 @a41f`. Empty if there is none.
fn system(node: &NodeStatus) -> String {
    let short = |image: &Digest| image.hex().chars().take(4).collect::<String>();
    let open = node.run.as_ref().filter(|run| matches!(run.state, RunState::Pending | RunState::Running));
    let (os, image, mark) = match (open, &node.installed) {
        (Some(run), _) if run.image.is_some() => (&run.os, run.image.as_ref(), ""),
        (_, Some(installed)) => (&installed.os, Some(&installed.image), if installed.behind { ", behind" } else { "" }),
        _ => return String::new(),
    };
    let image = image.map(short).unwrap_or_default();
    line(&format!("{} @{image}{mark}", os.as_deref().unwrap_or("workflow"))).into_owned()
}

/// The name of a node for people.
pub fn name(node: &NodeStatus) -> String {
    let name = node.name.as_ref().or(node.identity.serial.as_ref()).or(node.identity.macs.first());
    line(name.unwrap_or(&node.id)).into_owned()
}

/// How the page and commands name it: by id, or by claim code if it is a waiting machine.
pub fn reference(node: &NodeStatus) -> String {
    match &node.claim_code {
        Some(code) if is_stranger(node) => code.clone(),
        _ => node.id.clone(),
    }
}

/// Vendor and model. Empty if they are not known.
pub fn model(node: &NodeStatus) -> String {
    let Some(inventory) = &node.inventory else { return String::new() };
    let words = [&inventory.system.vendor, &inventory.system.model].into_iter().flatten();
    words.map(|word| line(word).into_owned()).collect::<Vec<_>>().join(" ")
}

/// The address that a machine was last known by. Empty if none is known.
fn address(node: &NodeStatus) -> String {
    let of_nic = || node.inventory.as_ref()?.nics.iter().find_map(|nic| nic.addresses.first());
    let address = of_nic().map(|address| address.split('/').next().unwrap_or_default());
    let claimed = || node.claims.first().map(|claim| claim.address.as_str());
    line(address.or_else(claimed).or(node.key.as_ref().map(|key| key.address.as_str())).unwrap_or_default())
        .into_owned()
}

/// When the node came into its state, as far as it is known.
fn since(node: &NodeStatus) -> Option<Millis> {
    let run = node.run.as_ref();
    match node.state {
        NodeState::Registered | NodeState::Decommissioned => None,
        NodeState::Held => node.claims.iter().map(|claim| claim.first_asked).min(),
        NodeState::Enrolled => node.enrolled_at,
        NodeState::Installing | NodeState::Terminating => run.and_then(|run| run.started_at),
        NodeState::Failed => run.and_then(|run| run.finished_at),
        // The newest run may be one that waits, or that was withdrawn.
        NodeState::Installed | NodeState::Booting => node.installed.as_ref().map(|installed| installed.since),
        NodeState::Running => {
            run.and_then(|run| run.phoned_home_at).or(node.installed.as_ref().map(|installed| installed.since))
        }
        NodeState::Draining => node.task.as_ref().map(|task| task.asked_at),
    }
}
