//! Shows reports from outside of workflows, and prints the snippets that send such reports (`slipway-server snippet`).

use anyhow::Context;
use clap::{Args, ValueEnum};
use slipway_protocol::node::boot_report::{MAINTENANCE, MAX_FAILED_UNITS};
use slipway_protocol::{
    BootReport, BootStatus, ExternalStep, ExternalStepStatus, NodeState, NodeStatus, RunState, RunStatus,
};
use slipway_server::base::data::DataDir;
use slipway_server::base::time::Millis;
use slipway_server::keys::ca;
use slipway_server::operate;
use slipway_server::rules::snippet::{self, Surrounding};
use slipway_server::store::Store;
use slipway_server::store::run_tokens::Purpose;

use super::words::{cut_to, dash, duration, table, word};

/// Maximum length of a text in the table of steps, in characters.
const CELL: usize = 60;
/// Maximum number of failed units named in a list of nodes.
const NAMED: usize = 3;

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server snippet --for shell --node web1 > report.sh
  slipway-server snippet --for kickstart --node web1")]
pub struct SnippetOptions {
    /// Installer or shell that the snippet is for.
    #[arg(long = "for", value_enum)]
    surrounding: For,
    /// Id, name or claim code of the machine whose newest run it reports to.
    #[arg(long)]
    node: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum For {
    /// Anaconda's %pre, %post and %onerror sections.
    Kickstart,
    /// The Debian installer's late_command.
    Preseed,
    /// Ubuntu's early-, late- and error-commands.
    Autoinstall,
    /// Any POSIX shell.
    Shell,
}

pub async fn snippet(store: &Store, data: &DataDir, options: SnippetOptions) -> anyhow::Result<()> {
    let surrounding = match options.surrounding {
        For::Kickstart => Surrounding::Kickstart,
        For::Preseed => Surrounding::Preseed,
        For::Autoinstall => Surrounding::Autoinstall,
        For::Shell => Surrounding::Shell,
    };
    let ca = ca::anchors(data)?;
    let (token, server) = operate::add_run_token(store, &options.node, Purpose::Steps).await?;
    let url = format!("{server}/v1/report");
    super::print(&snippet::text(surrounding, &url, &token, &ca)).context("printing the snippet")
}

/// Describes the newest report from outside of a node's workflow. `None` if the workflow's state is newer, or if the
/// workflow has failed.
pub fn newest(node: &NodeStatus) -> Option<String> {
    let run = node.run.as_ref().filter(|run| run.state != RunState::Failed)?;
    let since = run.finished_at.or(run.started_at).unwrap_or(run.created_at);
    let step =
        run.external_steps.iter().max_by_key(|step| step.updated_at).map(|step| (step.updated_at, sentence(step)));
    // How far the system has started is not news any more once it has phoned home.
    let is_news = |boot: &&BootStatus| node.state != NodeState::Running || Some(boot.at) > run.last_contact_at;
    let boot = run.boot.as_ref().filter(is_news).map(|boot| (boot.at, boot_sentence(boot, NAMED)));
    let (_, said) = step.into_iter().chain(boot).filter(|(at, _)| *at >= since).max_by_key(|(at, _)| *at)?;
    Some(said)
}

fn sentence(step: &ExternalStep) -> String {
    let percent = step.percent.map(|percent| format!(" {percent} %")).unwrap_or_default();
    let status = step.status.map(|status| format!(" {}", status.word())).unwrap_or_default();
    let label = step.label.as_ref().map(|label| format!(": {label}")).unwrap_or_default();
    format!("{}{percent}{status}{label}", step.name)
}

/// Says how far an installed system has booted. Names at most `most` failed units.
fn boot_sentence(boot: &BootStatus, most: usize) -> String {
    let BootReport { stage, system_state, failed_units, .. } = &boot.report;
    let state = match system_state.as_deref() {
        Some(MAINTENANCE) => ", stopped in the emergency or rescue shell".to_owned(),
        Some(state) => format!(", systemd is {state}"),
        None => String::new(),
    };
    let named = failed_units.iter().take(most).map(String::as_str).collect::<Vec<_>>().join(", ");
    let failed = match failed_units.len().saturating_sub(most) {
        _ if failed_units.is_empty() => String::new(),
        0 => format!("; failed: {named}"),
        more => format!("; failed: {named} and {more} more"),
    };
    format!("the system is {} in boot {}{state}{failed}", word(stage), boot.boots)
}

/// All reports from outside of the workflow of a run, as text for people. Empty if there are none.
pub fn of_run(run: &RunStatus, now: Millis) -> String {
    let ago = |at: Millis| format!("{} ago", duration(now.saturating_sub(at)));
    let mut text = String::new();
    if let Some(boot) = &run.boot {
        text += &format!("\nBoot reporter: {}, reported {}\n", boot_sentence(boot, MAX_FAILED_UNITS), ago(boot.at));
    }
    if run.external_steps.is_empty() {
        return text;
    }
    let header = ["External step", "Status", "Progress", "Last update", "Label", "Last log line"];
    let rows = run.external_steps.iter().map(|step| {
        let name = if step.unknown { format!("{} (unknown name)", step.name) } else { step.name.clone() };
        vec![
            name,
            step.status.map_or_else(dash, |status| status_of(step, status)),
            step.percent.map_or_else(dash, |percent| format!("{percent} %")),
            ago(step.updated_at),
            step.label.as_deref().map_or_else(dash, |label| cut_to(label, CELL)),
            step.logs.lines().last().map_or_else(dash, |line| cut_to(&line.replace('\t', " "), CELL)),
        ]
    });
    format!("{text}\n{}", table(&header, rows.collect()))
}

/// The status of an external step, and how often it began if that is more than once.
fn status_of(step: &ExternalStep, status: ExternalStepStatus) -> String {
    let times = if step.begins > 1 { format!(", began {} times", step.begins) } else { String::new() };
    format!("{}{times}", status.word())
}

#[cfg(test)]
mod tests {
    use slipway_protocol::{BootStage, Identity};

    use super::*;

    fn step(name: &str, unknown: bool, updated_at: Millis) -> ExternalStep {
        ExternalStep {
            name: name.to_owned(),
            label: Some("Packages".to_owned()),
            priority: 100,
            status: Some(ExternalStepStatus::Init),
            percent: Some(40),
            unknown,
            reports: 1,
            begins: 1,
            first_at: 1,
            updated_at,
            logs: "one\ntwo\t2\n".to_owned(),
        }
    }

    fn node(state: RunState, external_steps: Vec<ExternalStep>, boot_at: Option<Millis>) -> NodeStatus {
        let report = BootReport {
            stage: BootStage::Restarted,
            boot_id: "b".to_owned(),
            system_state: Some("starting".to_owned()),
            failed_units: Vec::new(),
        };
        NodeStatus {
            released: true,
            run: Some(RunStatus {
                last_contact_at: None,
                begins: 1,
                id: "r".to_owned(),
                node: "0123".to_owned(),
                state,
                percent: 0,
                created_at: 10,
                restored: false,
                started_at: Some(20),
                finished_at: None,
                phoned_home_at: None,
                phone_home: Default::default(),
                os: None,
                afterwards: None,
                done: 0,
                image: None,
                steps: Vec::new(),
                external_steps,
                boot: boot_at.map(|at| BootStatus { report, boots: 2, first_at: 1, at }),
            }),
            ..NodeStatus::new("0123".to_owned(), NodeState::Booting, Identity::default())
        }
    }

    #[test]
    fn the_newest_report_is_the_last_message_unless_the_workflow_failed() {
        let check = |node: NodeStatus, expect: Option<&str>| assert_eq!(newest(&node).as_deref(), expect, "{node:?}");
        let steps = || vec![step("packages", false, 30), step("kernel", false, 25)];
        check(node(RunState::Running, Vec::new(), None), None);
        check(node(RunState::Running, steps(), None), Some("packages 40 % init: Packages"));
        check(node(RunState::Running, vec![step("packages", false, 15)], None), None);
        let booting = "the system is restarted in boot 2, systemd is starting";
        check(node(RunState::Succeeded, steps(), Some(40)), Some(booting));
        check(node(RunState::Failed, steps(), None), None);
    }

    #[test]
    fn failed_units_and_the_emergency_shell_are_told() {
        let boot = |state: &str, failed: &[&str]| BootStatus {
            report: BootReport {
                stage: BootStage::Running,
                boot_id: "b".to_owned(),
                system_state: Some(state.to_owned()),
                failed_units: failed.iter().map(|unit| (*unit).to_owned()).collect(),
            },
            boots: 1,
            first_at: 1,
            at: 1,
        };
        let check = |state, failed: &[&str], expect: &str| {
            assert_eq!(
                boot_sentence(&boot(state, failed), NAMED),
                format!("the system is running in boot 1, {expect}")
            );
        };
        check("running", &[], "systemd is running");
        check("degraded", &["a.service"], "systemd is degraded; failed: a.service");
        let four = ["a.service", "b.mount", "c.socket", "d.timer"];
        check("degraded", &four, "systemd is degraded; failed: a.service, b.mount, c.socket and 1 more");
        check("maintenance", &["b.mount"], "stopped in the emergency or rescue shell; failed: b.mount");
    }

    #[test]
    fn one_machine_is_shown_with_all_that_was_reported() {
        let node = node(RunState::Running, vec![step("packages", true, 1_000)], Some(4_000));
        let text = of_run(node.run.as_ref().unwrap(), 5_000);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        assert_eq!(
            lines[1],
            ["Boot reporter: the system is restarted in boot 2, systemd is starting, reported 1 s ago"]
        );
        assert_eq!(lines[4], ["packages (unknown name)", "init", "40 %", "4 s ago", "Packages", "two 2"]);
    }
}
