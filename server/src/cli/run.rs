//! `slipway-server run`.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use slipway_protocol::shared::printable::line;
use slipway_protocol::{
    Chosen, ComparedRun, Comparison, DiskErasure, RunState, RunStatus, Step, StepState, StepStatus,
};
use slipway_server::base::data::DataDir;
use slipway_server::base::time::{now, utc};
use slipway_server::keys::ca;
use slipway_server::operate::{self, NewRun, Task};
use slipway_server::rules::phone_home_settings::PostKeys;
use slipway_server::rules::state::is_cancelled;
use slipway_server::store::{Store, nodes};

use super::ask::{self, Yes};
use super::disk::DiskOptions;
use super::os::Reports;
use super::words::{cut_to, dash, duration, table, word};
use super::{print, print_json, print_line, read, read_user_data, reports};

/// Most characters of a value in a comparison. JSON has all of it.
const MAX_VALUE: usize = 60;

#[derive(Subcommand)]
pub enum RunCommand {
    /// Start a run on a machine; prints the run's id.
    Start(Box<RunStart>),
    /// List the runs of all machines or of one, oldest first.
    List {
        /// Id, name or claim code of the machine.
        node: Option<String>,
        /// Print a JSON array instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Show a run: its steps with their options, without tokens and passwords, and what each reported.
    Show {
        /// Id of the run; or id, name or claim code of a machine, to show its newest run.
        #[arg(value_name = "NODE|RUN")]
        run: String,
        /// Print JSON instead of lines.
        #[arg(long)]
        json: bool,
    },
    /// Show what changed since the last good run: image, settings, slipway, firmware, hardware, disk and address.
    #[command(after_help = "\
Examples:
  slipway-server run compare web1
  slipway-server run compare web1 web2")]
    Compare {
        /// Id of the run; or id, name or claim code of a machine, to compare its newest run.
        #[arg(value_name = "NODE|RUN")]
        run: String,
        /// The other run. Default: the last good run of the same machine, or else of one of the same model.
        #[arg(value_name = "RUN")]
        with: Option<String>,
        /// Print JSON instead of tables.
        #[arg(long)]
        json: bool,
    },
    /// Confirm an unfinished run from a backup. Until then, its machine does not get it.
    Confirm {
        /// Id of the run; or id, name or claim code of a machine, to confirm its newest run.
        #[arg(value_name = "NODE|RUN")]
        run: String,
    },
    /// Try a failed run again, with what it was asked for; prints the new run's id.
    #[command(after_help = "\
Examples:
  slipway-server run retry web1
  slipway-server run retry web1 --from seed-cloud-init
  slipway-server run retry 8b1f44ad0c7e2a90")]
    Retry {
        /// Id of the run; or id, name or claim code of a machine, whose newest run is meant.
        #[arg(value_name = "NODE|RUN")]
        run: String,
        /// Step to begin with, by its name or number; the steps before it are not done again. Only as long as the
        /// machine was not restarted since.
        #[arg(long, value_name = "STEP")]
        from: Option<String>,
        #[command(flatten)]
        yes: Yes,
    },
    /// End a run as failed. The machine stops and waits for another run.
    Cancel {
        /// Id of the run; or id, name or claim code of a machine, to end its newest run.
        #[arg(value_name = "NODE|RUN")]
        run: String,
        #[command(flatten)]
        yes: Yes,
    },
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server run start web1 --os debian-12
  slipway-server run start web1 --os debian-12 --user-data web1.yaml --replace
  slipway-server run start web1 --os debian-12 --disk-serial S4EVNF0M
  slipway-server run start web1 --workflow erase.yaml
  slipway-server run start web1 --secure-boot")]
#[command(group(clap::ArgGroup::new("task").required(true)))]
pub struct RunStart {
    /// Id, name or claim code of the machine.
    node: String,
    /// Install this operating system.
    #[arg(long, value_name = "OS", group = "task")]
    os: Option<String>,
    /// Run the steps in this YAML file.
    #[arg(long, value_name = "FILE", group = "task")]
    workflow: Option<PathBuf>,
    /// Enrol the site's Secure Boot keys in the firmware, which must be in Setup Mode, and restart the machine.
    #[arg(long, group = "task")]
    secure_boot: bool,
    /// File with user-data to use instead of the operating system's, plain or compressed with gzip.
    #[arg(long, conflicts_with_all = ["workflow", "secure_boot"])]
    user_data: Option<PathBuf>,
    /// Whether the installed system reports that it has booted; overrides the operating system or the workflow.
    #[arg(long, value_name = "BOOL")]
    phone_home: Option<bool>,
    #[command(flatten)]
    reports: Reports,
    #[command(flatten)]
    disk: DiskOptions,
    /// Name of an expected external step, used instead of the names from the operating system or the workflow; may be
    /// given several times.
    #[arg(long = "known-step", value_name = "NAME")]
    known_steps: Vec<String>,
    /// End the machine's unfinished run, if it has one, as failed.
    #[arg(long)]
    replace: bool,
    /// Do not switch the machine on. By default, a machine that does not run slipway is switched on, or off and on
    /// again, if the server can do so.
    #[arg(long)]
    no_power: bool,
    #[command(flatten)]
    yes: Yes,
}

/// Runs a command about runs.
pub async fn run(store: &Store, data: &DataDir, command: RunCommand) -> anyhow::Result<()> {
    match command {
        RunCommand::Start(options) => start(store, data, *options).await,
        RunCommand::List { node, json: true } => print_json(&operate::list_runs(store, node.as_deref()).await?),
        RunCommand::List { node, json: false } => {
            let runs = operate::list_runs(store, node.as_deref()).await?;
            let nodes = nodes::all(&mut *store.read().await?).await?;
            print(&run_table(&runs, &nodes.iter().map(|node| (node.id.as_str(), node.label())).collect()))
        }
        RunCommand::Show { run, json } => {
            let (run, workflow) = operate::show_run(store, &run).await?;
            if json {
                print_json(&Shown { run: &run, workflow: &workflow })
            } else {
                let node = nodes::get_by_id(&mut *store.read().await?, &run.node).await?;
                let name = node.as_ref().map_or(&*run.node, |node| node.label());
                print(&(run_lines(&run, name, &workflow) + &reports::of_run(&run, now())))
            }
        }
        RunCommand::Compare { run, with, json } => {
            let comparison = operate::compare_runs(store, &run, with.as_deref()).await?;
            if json { print_json(&comparison) } else { print(&comparison_lines(&comparison)) }
        }
        RunCommand::Confirm { run } => {
            print_line(&format!("run {} is confirmed", operate::confirm_run(store, &run).await?.id))
        }
        RunCommand::Retry { run, from, yes } => {
            let mut retry = operate::retry_of(store, &run).await?;
            retry.from = from;
            retry.new = retry.new.with_keys(store, data).await?;
            let ca = ca::anchors(data)?;
            yes.ask_for_run("retrying the run", async || operate::plan_retry(store, &ca, retry.clone()).await).await?;
            print_line(&operate::retry_run(store, &ca, retry).await?.id)
        }
        RunCommand::Cancel { run, yes } => {
            let (known, _) = operate::show_run(store, &run).await?;
            yes.ask("cancelling the run", &ask::cancel(&operate::show_node(store, &known.node).await?, &known))?;
            print_line(&format!("run {} is cancelled", operate::cancel_run(store, &known.id).await?.id))
        }
    }
}

/// A run as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    run: &'a RunStatus,
    workflow: &'a [Step],
}

/// The state of a run, where a cancelled one is not a failed one.
fn state_word(run: &RunStatus) -> String {
    if is_cancelled(&run.steps) { "cancelled".to_owned() } else { word(&run.state) }
}

/// Formats a run of the node with this name, and its steps.
fn run_lines(run: &RunStatus, node: &str, workflow: &[Step]) -> String {
    let time = |at: Option<u64>| at.map_or_else(dash, utc);
    let state = match run.state {
        RunState::Running | RunState::Failed => format!("{}, {} % done", state_word(run), run.percent),
        RunState::Pending | RunState::Succeeded => state_word(run),
    };
    let facts = [
        ("Run", run.id.clone()),
        ("Machine", node.to_owned()),
        ("State", state),
        ("System", run.os.clone().unwrap_or_else(dash)),
        ("Image", run.image.as_ref().map_or_else(dash, ToString::to_string)),
        ("Created", utc(run.created_at)),
        ("Fetched", time(run.started_at)),
        ("Ended", time(run.finished_at)),
    ];
    let then = run.afterwards.map(|then| ("Afterwards", then.in_words().to_owned()));
    let mut text: String =
        facts.iter().chain(&then).map(|(name, value)| format!("{name:<10}  {}\n", line(value))).collect();
    for (number, (step, status)) in (1..).zip(workflow.iter().zip(&run.steps)) {
        text += &format!("\n{number} {} ({}): {}", line(&step.name), step.action.name(), word(&status.state));
        if let (Some(began), Some(ended)) = (status.started_at, status.finished_at) {
            text += &format!(" after {}", duration(ended.saturating_sub(began)));
        }
        if let Some(usual) = status.usual {
            text += &format!(", usually {}", duration(usual.millis));
        }
        text += &if status.attempt > 1 { format!(", attempt {}\n", status.attempt) } else { "\n".to_owned() };
        text += &options(step);
        let said = status.outcome.iter().map(|outcome| outcome.summary.clone());
        let said = said.chain(status.failure.iter().map(|failure| failure.in_one_line()));
        let disks = status.outcome.iter().flat_map(|outcome| &outcome.disks).map(DiskErasure::in_words);
        said.chain(disks).filter(|said| !said.is_empty()).for_each(|said| text += &format!("    -> {}\n", line(&said)));
    }
    text
}

/// Formats what two runs had, differences first.
fn comparison_lines(comparison: &Comparison) -> String {
    let run = |run: &ComparedRun| {
        let (node, state) = (run.name.as_ref().unwrap_or(&run.node), word(&run.state));
        format!("run {} of {}, {state}, started {}", run.id, line(node), utc(run.created_at))
    };
    let why = match comparison.chosen {
        Chosen::SameNode => "the last good run of this machine",
        Chosen::SameModel => "the last good run of a machine of this model with the same operating system",
        Chosen::Given => "as asked for",
    };
    let mut text = format!("Now:  {}\nThen: {}, {why}\n\n", run(&comparison.run), run(&comparison.with));
    let value = |value: &Option<String>| value.as_ref().map_or_else(dash, |value| cut_to(value, MAX_VALUE));
    let (differing, same): (Vec<_>, Vec<_>) = comparison.facts.iter().partition(|fact| fact.differs);
    if differing.is_empty() {
        text += "Nothing that the server knows of them differs.\n";
    } else {
        let rows = differing.iter().map(|fact| vec![fact.what.clone(), value(&fact.then), value(&fact.now)]);
        text += &table(&["What changed", "Then", "Now"], rows.collect());
    }
    if !same.is_empty() {
        let rows = same.iter().map(|fact| vec![fact.what.clone(), value(&fact.now)]);
        text += &format!("\n{}", table(&["The same", "Then and now"], rows.collect()));
    }
    text
}

/// The options of a step, one on each line. A text of several lines is indented below its name.
fn options(step: &Step) -> String {
    let action = serde_json::to_value(&step.action).unwrap_or_default();
    let all = action.as_object().and_then(|action| action.values().next()).and_then(Value::as_object);
    let of_option = |(name, value): (&String, &Value)| match value.as_str() {
        Some(text) if text.contains('\n') => {
            let lines = text.lines().map(|text| format!("        {}\n", line(text)));
            format!("    {name}:\n{}", lines.collect::<String>())
        }
        Some(text) => format!("    {name}: {}\n", line(text)),
        None => format!("    {name}: {}\n", line(&value.to_string())),
    };
    all.into_iter().flatten().map(of_option).collect()
}

pub fn run_table(runs: &[RunStatus], labels: &HashMap<&str, &str>) -> String {
    let rows = runs.iter().map(|run| {
        let done = run.steps.iter().filter(|step| step.state == StepState::Succeeded).count();
        let failed = |step: &StepStatus| matches!(step.state, StepState::Failed | StepState::TimedOut);
        let failure = run.steps.iter().find(|step| failed(step)).and_then(|step| step.failure.as_ref());
        vec![
            run.id.clone(),
            labels.get(&*run.node).map_or_else(|| run.node.clone(), |label| (*label).to_owned()),
            if run.restored { format!("{} (restored)", state_word(run)) } else { state_word(run) },
            format!("{done}/{}", run.steps.len()),
            utc(run.created_at),
            run.finished_at.map_or_else(dash, utc),
            failure.map_or_else(dash, |failure| failure.reason.clone()),
        ]
    });
    table(&["Run", "Machine", "State", "Steps done", "Created", "Ended", "Reason"], rows.collect())
}

async fn start(store: &Store, data: &DataDir, start: RunStart) -> anyhow::Result<()> {
    let new = match (start.os, start.workflow) {
        (Some(os), None) => NewRun::new(Task::Os(os)),
        (None, Some(file)) => {
            let yaml = read(&file)?;
            NewRun::new(Task::Workflow(operate::parse_workflow(&yaml).with_context(|| format!("reading {file:?}"))?))
        }
        (None, None) if start.secure_boot => NewRun::enrolling_keys(),
        _ => bail!("give one of --os, --workflow and --secure-boot"),
    };
    let ca = ca::anchors(data)?;
    let new = NewRun {
        user_data: read_user_data(start.user_data.as_deref())?,
        phone_home: start.phone_home,
        phone_home_post: start.reports.phone_home_post.map(PostKeys),
        phone_home_tries: start.reports.phone_home_tries,
        known_steps: start.known_steps,
        disk: start.disk.hints(),
        replace: start.replace,
        no_power: start.no_power,
        ..new
    };
    let new = new.with_keys(store, data).await?;
    let plan = async || operate::plan_run(store, &ca, &start.node, new.clone()).await;
    start.yes.ask_for_run("starting the run", plan).await?;
    print_line(&operate::start_run(store, &ca, &start.node, new).await?.id)
}
