//! `slipway-server status`: the state of each machine.

mod power;
mod transfer;
pub mod wait;

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use slipway_protocol::shared::printable::{self, line};
use slipway_protocol::{
    BootFetch, Flag, FlagKind, NodeState, NodeStatus, Progress, RunState, RunStatus, Severity, StepState, StepStatus,
};
use slipway_server::base::data::DataDir;
use slipway_server::base::time::{Millis, dated, now};
use slipway_server::keys::secure_boot::SecureBoot;
use slipway_server::node::status::{self, NODE_STATES};
use slipway_server::operate;
use slipway_server::rules::filter::{NodeFilter, is_pattern};
use slipway_server::rules::state;
use slipway_server::rules::trouble::GONE;
use slipway_server::site::presence;
use slipway_server::store::Store;
use slipway_server::store::servers::Server;

use power::{power, powered, task};
use transfer::{in_short, in_words};

use super::run::run_table;
use super::words::{cut_to, dash, duration, label, secure_boot, table, word};
use super::{boot_files::fetched, claims, host_keys, parse_duration, reports, server};
use wait::{Awaited, Wait};

/// Interval at which `--watch` looks for changes.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum width of the column "Last message", in characters. Terminals too narrow for that wrap lines.
const MESSAGE_WIDTH: usize = 30;
/// Columns to omit on a narrow terminal, in this order.
const SPARED: [&str; 3] = ["Total duration", "Action", "Last update"];
/// What stands before the command to run next.
const COMMAND: &str = " → ";
/// Fewest characters that must remain of what is said before a command.
const MIN_SAID: usize = 16;
/// What stands between the progress of a run and that of its step.
const OF_RUN: &str = " · ";
/// Moves the cursor to the top left and clears the screen (ECMA-48, CUP and ED).
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server status --watch
  slipway-server status web1
  slipway-server status 'web*' --site fra --state installing,failed
  slipway-server status web1 web2 --wait running --timeout 30m
  slipway-server status web1 --watch --json")]
pub struct Options {
    /// Show only these machines, by id, name or claim code, or by patterns of them: `*` stands for any characters, `?`
    /// for one.
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Show only machines at this site; may be given several times.
    #[arg(long = "site", visible_alias = "dc", value_name = "NAME")]
    sites: Vec<String>,
    /// Show only machines with this label; may be given several times.
    #[arg(long = "label", value_name = "KEY[=VALUE]", value_parser = label_filter)]
    labels: Vec<(String, Option<String>)>,
    /// Show only machines in these states.
    #[arg(long = "state", value_name = "STATE,...", value_delimiter = ',', value_parser = node_state)]
    states: Vec<NodeState>,
    /// Show only machines whose vendor and model contain this text.
    #[arg(long, value_name = "TEXT")]
    model: Option<String>,
    /// Show only machines with trouble.
    #[arg(long)]
    flagged: bool,
    /// Include machines that are out of service and, without --json and --watch, the runs of the last month.
    #[arg(long)]
    all: bool,
    /// With --all, show the runs that were started in this time.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30d",
        requires = "all",
        conflicts_with_all = ["json", "watch"],
        value_parser = parse_duration
    )]
    since: Millis,
    /// Print one JSON object per machine, each on its own line.
    #[arg(long)]
    json: bool,
    /// Keep running and show every change: with --json the machine that changed, otherwise the whole table.
    #[arg(long)]
    watch: bool,
    /// Wait until all these machines are in this state. The exit status is 3 if a run failed instead, and 4 if the time
    /// was over.
    #[arg(long, value_enum, value_name = "STATE")]
    wait: Option<Awaited>,
    /// How long to wait at most. Default: for ever.
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = parse_duration)]
    timeout: Option<Millis>,
}

impl Options {
    /// The one machine that is shown in full, if nothing but its name selects it.
    fn one(&self) -> Option<&str> {
        let by_name = NodeFilter { names: self.nodes.clone(), ..NodeFilter::default() };
        match self.nodes.as_slice() {
            [node] if !is_pattern(node) && self.filter() == by_name => Some(node),
            _ => None,
        }
    }

    fn filter(&self) -> NodeFilter {
        NodeFilter {
            names: self.nodes.clone(),
            sites: self.sites.clone(),
            labels: self.labels.clone(),
            states: self.states.clone(),
            model: self.model.clone(),
            flagged: self.flagged,
        }
    }
}

fn label_filter(text: &str) -> Result<(String, Option<String>), String> {
    Ok(match text.split_once('=') {
        Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
        None => (text.to_owned(), None),
    })
}

fn node_state(text: &str) -> Result<NodeState, String> {
    let state = NODE_STATES.into_iter().find(|state| word(state) == text);
    let all = || NODE_STATES.iter().map(word).collect::<Vec<_>>().join(", ");
    state.ok_or_else(|| format!("there is no such state; the states are {}", all()))
}

fn is_in_service(node: &NodeStatus) -> bool {
    node.state != NodeState::Decommissioned
}

/// What was shown last: nodes, boot files of strangers, trouble of the site, and the ids of other servers.
type Shown = (Vec<NodeStatus>, Vec<BootFetch>, Vec<Flag>, Vec<String>);

/// Context of errors on standard output.
const WRITING: &str = "writing to standard output";

pub async fn run(store: &Store, data: &DataDir, options: Options) -> anyhow::Result<()> {
    let own_key = SecureBoot::open(data)?.map(|keys| keys.platform_key());
    let mut shown: Option<Shown> = None;
    let mut written = String::new();
    let mut output = std::io::stdout();
    let redraws = options.watch && output.is_terminal();
    let (filter, began) = (options.filter(), Instant::now());
    // A wait is for the machines that are selected when it begins, in whatever state they are later.
    let mut awaited: Option<Vec<String>> = None;
    loop {
        let (servers, at) = other_servers(store, data).await?;
        // Another server of the site may run while the one of this folder does not.
        let stopped = data.stopped_at().filter(|_| servers.is_empty());
        let all_at = stopped.unwrap_or_else(now);
        let mut nodes = match (options.one(), &awaited) {
            (Some(node), _) => vec![operate::show_node(store, node).await?],
            (None, None) => selected(status::all_at(store, all_at).await?, &filter)?,
            (None, Some(ids)) => {
                let mut nodes = status::all_at(store, all_at).await?;
                nodes.retain(|node| ids.contains(&node.id));
                nodes
            }
        };
        if let Some(state) = options.wait.filter(|_| awaited.is_none()) {
            // Those that are out of service never get anywhere else.
            let may_get_there = |node: &&NodeStatus| state == Awaited::Decommissioned || is_in_service(node);
            let ids: Vec<String> = nodes.iter().filter(may_get_there).map(|node| node.id.clone()).collect();
            ensure!(!ids.is_empty(), "waiting for machines: none is selected; see `slipway-server status`");
            nodes.retain(|node| ids.contains(&node.id));
            awaited = Some(ids);
        }
        if stopped.is_some() && options.one().is_some() {
            // While no server runs, every machine would look silent.
            for node in &mut nodes {
                node.silent_since = None;
                node.flags.retain(|flag| !matches!(flag.kind, FlagKind::Silent | FlagKind::Stuck));
            }
        }
        let (strangers, site) = match filter == NodeFilter::default() {
            true => (status::strange_fetches(store).await?, operate::site_status(store).await?.flags),
            false => (Vec::new(), Vec::new()),
        };
        let current = (nodes, strangers, site, servers.iter().map(|server| server.id.clone()).collect());
        let (nodes, strangers, site, _) = &current;
        let before = shown.as_ref().map(|(nodes, ..)| nodes.as_slice()).unwrap_or_default();
        let waits = options.wait.map(|awaited| (awaited, wait::judge(awaited, nodes)));
        let timeout = options.timeout.map(Duration::from_millis);
        let is_late = timeout.is_some_and(|timeout| began.elapsed() >= timeout);
        let ended = waits.as_ref().and_then(|(awaited, wait)| wait::ended(*awaited, wait, is_late));
        let goes_on = match &waits {
            Some((_, Wait::Reached)) => false,
            Some(_) => ended.is_none(),
            None => options.watch,
        };
        if goes_on && !options.watch {
            // Only the last state is shown.
        } else if options.json {
            for node in nodes.iter().filter(|node| !before.contains(node)) {
                writeln!(output, "{}", printable::json(&serde_json::to_string(&dated(node)?)?)).context(WRITING)?;
            }
        } else if redraws || shown.as_ref() != Some(&current) {
            let table = match (options.one(), nodes.as_slice()) {
                (Some(_), [node]) => one(node, own_key.as_deref(), now()),
                _ => {
                    let strangers = fetched::strangers(strangers, now());
                    many(nodes, options.all, now()) + &strangers + &site_flags(site) + &sites(&servers, at)
                }
            };
            let text = stopped.map(|since| not_running(since, now())).unwrap_or_default() + &table;
            // A terminal is redrawn as time passes. Other output gets the table only when something changes.
            if !redraws || text != written {
                write!(output, "{}{}", if redraws { CLEAR } else { "" }, printable::lines(&text)).context(WRITING)?;
            }
            written = text;
        }
        output.flush().context(WRITING)?;
        if options.all && !goes_on && !options.json {
            let earlier = operate::runs_since(store, now().saturating_sub(options.since)).await?;
            write!(output, "{}", printable::lines(&earlier_runs(&earlier, nodes))).context(WRITING)?;
        }
        if let Some(ended) = ended {
            return Err(ended.into());
        }
        if !goes_on {
            return Ok(());
        }
        shown = Some(current);
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Returns the selected nodes. Refuses a name that no node has, so that a wait for it does not succeed.
fn selected(mut nodes: Vec<NodeStatus>, filter: &NodeFilter) -> anyhow::Result<Vec<NodeStatus>> {
    for name in &filter.names {
        let named = NodeFilter { names: vec![name.clone()], ..NodeFilter::default() };
        ensure!(nodes.iter().any(|node| named.matches(node)), "no node has the id, name or claim code {name:?}");
    }
    nodes.retain(|node| filter.matches(node));
    Ok(nodes)
}

/// A table of the runs of these nodes, newest first.
fn earlier_runs(runs: &[RunStatus], nodes: &[NodeStatus]) -> String {
    let labels: HashMap<&str, &str> = nodes.iter().map(|node| (node.id.as_str(), label(node))).collect();
    let runs: Vec<RunStatus> = runs.iter().rev().filter(|run| labels.contains_key(&*run.node)).cloned().collect();
    if runs.is_empty() {
        return String::new();
    }
    format!("\nRuns:\n{}", run_table(&runs, &labels))
}

/// Returns the servers that run, but not on this data folder, and the time by the clock of the database. With SQLite,
/// there can be none.
async fn other_servers(store: &Store, data: &DataDir) -> anyhow::Result<(Vec<Server>, Millis)> {
    if data.postgres().is_none() {
        return Ok((Vec::new(), now()));
    }
    let own = data.server_id()?;
    let (mut servers, at) = presence::live(store).await?;
    servers.retain(|server| !own.as_deref().is_some_and(|own| server.is_on(own)));
    Ok((servers, at))
}

/// Names trouble of the site, each with the command to run next, and what to do about it.
fn site_flags(flags: &[Flag]) -> String {
    let lines =
        |flag: &Flag| format!("{}{COMMAND}{}\n  {}\n", line(&flag.reason), line(&flag.command), line(&flag.cause));
    flags.iter().map(lines).collect()
}

/// Lists the other servers of the site, if there are any.
fn sites(others: &[Server], now: Millis) -> String {
    match others {
        [] => String::new(),
        others => format!("\nOther servers of this site:\n{}", server::servers_table(others, now)),
    }
}

/// Returns the first line of the output if no server runs. `since` is when the last one stopped.
fn not_running(since: Millis, now: Millis) -> String {
    let time = duration(now.saturating_sub(since));
    format!(
        "The server has not been running for {time}: no machine can report. Start it (`systemctl start \
         slipway-server`).\n"
    )
}

/// A table of machines. Unless `all` is set, machines out of service are counted instead of listed.
fn many(nodes: &[NodeStatus], all: bool, now: Millis) -> String {
    let in_service = |node: &&NodeStatus| all || node.state != NodeState::Decommissioned;
    let shown: Vec<&NodeStatus> = nodes.iter().filter(in_service).collect();
    let mut text = status_table(&shown, in_short, width(), now);
    let hidden = nodes.len() - shown.len();
    if hidden > 0 {
        text += &format!("not shown: {hidden} out of service (--all)\n");
    }
    text
}

/// Describes everything known about a machine. `own_key` is the site's platform key for Secure Boot.
fn one(node: &NodeStatus, own_key: Option<&str>, now: Millis) -> String {
    let table = status_table(&[node], in_words, width(), now);
    // A notice about another machine is a complete sentence and needs no subject.
    let is_its_own = claims::notice(node, now) != problem(node, now);
    let subject = if is_its_own { "The machine " } else { "" };
    let notice = problem(node, now).map(|problem| format!("\n{subject}{problem}\n")).unwrap_or_default();
    let flags = flags(node, now);
    let failure = failure(node).unwrap_or_default();
    let contacts = contacts(node, now).unwrap_or_default();
    let firmware = node.inventory.as_ref().map(|inventory| &inventory.firmware);
    // A failed run has its own advice.
    let advises = failure.is_empty();
    let secure_boot = firmware.and_then(|firmware| secure_boot(firmware, own_key, advises));
    let secure_boot = secure_boot.map(|state| format!("\nSecure Boot: {state}\n")).unwrap_or_default();
    let power = node.power.as_ref().map(|power| powered(power, now)).unwrap_or_default();
    let (fetched, reports) =
        (fetched::details(node, now), node.run.as_ref().map(|run| reports::of_run(run, now)).unwrap_or_default());
    format!(
        "{table}{notice}{flags}{fetched}{failure}{contacts}{secure_boot}{power}{reports}{}",
        claims::details(node, now)
    )
}

/// Returns the width in columns of the terminal, or else from the variable COLUMNS. Other output is not cut.
fn width() -> usize {
    let of_terminal = || rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let of_environment = || std::env::var("COLUMNS").ok()?.parse().ok();
    of_terminal().or_else(of_environment).filter(|columns| *columns > 0).unwrap_or(usize::MAX)
}

fn status_table(nodes: &[&NodeStatus], say: fn(&Progress) -> String, width: usize, now: Millis) -> String {
    let mut header = vec!["Machine", "State", "Action", "Progress", "Last update", "Total duration", "Last message"];
    let rows = nodes.iter().map(|node| {
        let run = node.run.as_ref();
        let step = run.filter(|run| run.state != RunState::Pending).and_then(current);
        let pending = run.filter(|run| run.state == RunState::Pending);
        vec![
            node.name.clone().unwrap_or_else(|| node.id.clone()),
            if node.mac_only { format!("{} (MAC only)", word(&node.state)) } else { word(&node.state) },
            step.filter(|(_, step)| !was_never_started(step)).map_or_else(dash, |(_, step)| step.action.clone()),
            match (pending, run.zip(step)) {
                (Some(run), _) => format!("0/{}", run.steps.len()),
                (None, Some((run, (index, step)))) => progress(run, index, step, say),
                (None, None) => dash(),
            },
            node.last_seen.map_or_else(dash, |seen| format!("{} ago", duration(now.saturating_sub(seen)))),
            run.map_or_else(dash, |run| total(run, now)),
            last_message(node, step.map(|(_, step)| step), now),
        ]
    });
    let mut rows: Vec<Vec<String>> = rows.collect();
    let others = |header: &[&str], rows: &[Vec<String>]| -> usize {
        let widest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        (0..header.len() - 1).map(|column| widest(column).max(header[column].len()) + 2).sum()
    };
    for title in SPARED {
        if others(&header, &rows) + MESSAGE_WIDTH > width
            && let Some(column) = header.iter().position(|known| *known == title)
        {
            header.remove(column);
            rows.iter_mut().for_each(|row| drop(row.remove(column)));
        }
    }
    if others(&header, &rows) + MESSAGE_WIDTH > width
        && let Some(column) = header.iter().position(|known| *known == "Progress")
    {
        rows.iter_mut().filter_map(|row| row.get_mut(column)).for_each(|cell| *cell = without_own(cell));
    }
    // The last column, the message, is cut to the remaining width.
    let room = width.saturating_sub(others(&header, &rows)).max(MESSAGE_WIDTH);
    rows.iter_mut().filter_map(|row| row.last_mut()).for_each(|message| *message = cut_message(message, room));
    table(&header, rows)
}

/// Cuts a message to its room: what is said rather than the command behind it.
fn cut_message(message: &str, room: usize) -> String {
    let Some((said, command)) = message.rsplit_once(COMMAND) else { return cut_to(message, room) };
    match room.saturating_sub(COMMAND.chars().count() + command.chars().count()) {
        left if left >= MIN_SAID => format!("{}{COMMAND}{command}", cut_to(said, left)),
        _ => cut_to(message, room),
    }
}

fn last_message(node: &NodeStatus, step: Option<&StepStatus>, now: Millis) -> String {
    // Why a run failed is more important than what happens to its machine afterwards.
    let is_worst = |flag: &&Flag| {
        node.state != NodeState::Failed || (flag.severity == Severity::Bad && flag.kind != FlagKind::Looping)
    };
    if let Some(flag) = node.flags.first().filter(is_worst)
        && !node.run.as_ref().is_some_and(|run| run.restored)
    {
        return flagged(node, flag, now);
    }
    let switched = power(node).filter(|_| !node.run.as_ref().is_some_and(|run| state::is_open(run.state)));
    let said =
        notice(node, now).or(switched).or_else(|| reports::newest(node)).unwrap_or_else(|| message(node, step, now));
    match claims::takeover(node, now) {
        Some(takeover) if said == dash() => takeover,
        Some(takeover) => format!("{said}; {takeover}"),
        None => said,
    }
}

/// Says what trouble there is, and the command to run next.
fn flagged(node: &NodeStatus, flag: &Flag, now: Millis) -> String {
    let said = match flag.kind {
        FlagKind::CameBack => Some(format!("{}: {}", flag.reason, flag.cause)),
        FlagKind::Contested => claims::notice(node, now),
        FlagKind::Silent | FlagKind::Stuck => fetched::notice(node, now).or_else(|| Some(lasting(flag, now))),
        _ => None,
    };
    format!("{}{COMMAND}{}", said.as_ref().unwrap_or(&flag.reason), flag.command)
}

/// Says for how long something has not happened.
fn lasting(flag: &Flag, now: Millis) -> String {
    format!("{} for {}", flag.reason, duration(now.saturating_sub(flag.since)))
}

/// Describes all trouble with a machine.
fn flags(node: &NodeStatus, now: Millis) -> String {
    let of_flag = |flag: &Flag| {
        let (kind, since) = (word(&flag.kind), duration(now.saturating_sub(flag.since)));
        format!(
            "\n{kind}, for {since}: the machine {}\n  likely cause: {}\n  next: {}\n",
            line(&flag.reason),
            line(&flag.cause),
            line(&flag.command)
        )
    };
    node.flags.iter().map(of_flag).collect()
}

/// Says what happened to a machine and does not appear in the machine's own reports.
fn notice(node: &NodeStatus, now: Millis) -> Option<String> {
    // Boot files are fetched when a machine starts, so anything else that is known is older.
    fetched::notice(node, now).or_else(|| problem(node, now))
}

fn problem(node: &NodeStatus, now: Millis) -> Option<String> {
    if node.run.as_ref().is_some_and(|run| run.restored) {
        let label = label(node);
        return Some(format!(
            "has a run restored from a backup: confirm it with `slipway-server run confirm {label}`, or end it with \
             `slipway-server run cancel {label}`"
        ));
    }
    let is_flagged = node.flags.iter().any(|flag| flag.kind == FlagKind::Silent);
    let silent = node.silent_since.filter(|_| !is_flagged);
    let silent = silent.map(|since| format!("has been silent for {}", duration(now.saturating_sub(since))));
    silent.or_else(|| claims::notice(node, now))
}

/// Describes the failure of a node's run, with all causes.
fn failure(node: &NodeStatus) -> Option<String> {
    let run = node.run.as_ref()?;
    let (index, step) = current(run)?;
    let failure = step.failure.as_ref()?;
    let (name, reason) = (line(&step.name), line(&failure.reason));
    let mut text = format!("\nStep {}/{} {name}: {reason}\n", index + 1, run.steps.len());
    failure.causes.iter().for_each(|cause| text += &format!("  because: {}\n", line(cause)));
    if !was_never_started(step) {
        text += &format!("  what changed since it went well: slipway-server run compare {}\n", line(label(node)));
    }
    Some(text)
}

/// Says when a node's installed system reported, and lists its host keys.
fn contacts(node: &NodeStatus, now: Millis) -> Option<String> {
    let run = node.run.as_ref()?;
    let ago = |at: Millis| duration(now.saturating_sub(at));
    let (first, last) = (ago(run.phoned_home_at?), ago(run.last_contact_at?));
    let keys = host_keys::lines(&run.phone_home);
    Some(format!("\nThe system first reported {first} ago and last reported {last} ago.\n{keys}"))
}

/// Returns the current step of a run with its index: the running or failed step, else the last that succeeded, else
/// the first.
fn current(run: &RunStatus) -> Option<(usize, &StepStatus)> {
    let steps = || run.steps.iter().enumerate();
    let now = |step: &StepStatus| matches!(step.state, StepState::Running | StepState::Failed | StepState::TimedOut);
    let done = || steps().rev().find(|(_, step)| step.state == StepState::Succeeded);
    steps().find(|(_, step)| now(step)).or_else(done).or_else(|| steps().next())
}

/// Whether a step failed without being started, because the run ended.
fn was_never_started(step: &StepStatus) -> bool {
    step.state == StepState::Failed && step.attempt == 0
}

fn progress(run: &RunStatus, index: usize, step: &StepStatus, say: fn(&Progress) -> String) -> String {
    let number = if was_never_started(step) { index } else { index + 1 };
    let of_run = if run.state == RunState::Running { format!("{} %{OF_RUN}", run.percent) } else { String::new() };
    let mut text = format!("{of_run}{number}/{}", run.steps.len());
    if let Some(progress) = step.progress.as_ref().filter(|_| step.state == StepState::Running) {
        text += &format!(" {}", say(progress));
    }
    if step.attempt > 1 {
        text += &format!(", attempt {}", step.attempt);
    }
    text
}

/// Returns the progress of a run without that of its step.
fn without_own(progress: &str) -> String {
    match progress.split_once(OF_RUN) {
        Some((of_run, step)) => format!("{of_run}{OF_RUN}{}", step.split([' ', ',']).next().unwrap_or_default()),
        None => progress.to_owned(),
    }
}

/// Whether the machine was in slipway a moment ago: it polls for work and has not left for an installed system.
fn is_in_slipway(node: &NodeStatus, now: Millis) -> bool {
    let has_left =
        matches!(node.state, NodeState::Booting | NodeState::Installed | NodeState::Running | NodeState::Draining);
    !has_left && node.last_seen.is_some_and(|seen| now.saturating_sub(seen) <= GONE)
}

fn message(node: &NodeStatus, step: Option<&StepStatus>, now: Millis) -> String {
    if let Some(held) = claims::held(node) {
        return held;
    }
    if node.run.as_ref().is_some_and(|run| run.state == RunState::Pending) {
        return match is_in_slipway(node, now) {
            true => "the machine is in slipway, and takes the run when it next asks".to_owned(),
            false => match power(node).or_else(|| task(node)) {
                Some(power) => format!("waiting for the machine to boot slipway; it {power}"),
                None => "waiting for the machine to boot slipway".to_owned(),
            },
        };
    }
    // The installer's last message is out of date once the machine has left slipway.
    if let Some(task) = task(node) {
        return format!("the machine {task}");
    }
    match node.state {
        NodeState::Draining => {
            return "the installed system is drained: it has no work until that is undone".to_owned();
        }
        NodeState::Booting => return "waiting for the installed system to report".to_owned(),
        NodeState::Running => return "the installed system has reported".to_owned(),
        _ => {}
    }
    let said = step.and_then(|step| {
        let failed = step.failure.as_ref().map(|failure| match failure.causes.last() {
            Some(cause) => format!("{}: {cause}", failure.reason),
            None => failure.reason.clone(),
        });
        failed.or_else(|| step.outcome.as_ref().map(|outcome| outcome.summary.clone())).or(step.notes.last().cloned())
    });
    said.filter(|said| !said.is_empty()).unwrap_or_else(dash)
}

/// Formats the time from the creation of the run to the first report of the installed system, or else to the end of the
/// run, or else until now.
fn total(run: &RunStatus, now: Millis) -> String {
    let end = run.phoned_home_at.or(run.finished_at).unwrap_or(now);
    duration(end.saturating_sub(run.created_at))
}

#[cfg(test)]
mod tests;
