//! `slipway-server node agent`, `drain`, `reboot` and `task`.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use slipway_protocol::shared::duration;
use slipway_protocol::shared::printable::{line, lines};
use slipway_protocol::workflow::agent::DRAIN;
use slipway_protocol::{NodeStatus, TaskOptions, TaskState, TaskStatus};
use slipway_server::base::time::utc;
use slipway_server::operate::{self, NewTask, Reboot};
use slipway_server::store::Store;

use super::ask::{self, Yes};
use super::words::{label, word};
use super::{print, print_json, print_line};

/// Interval at which is looked how far a task is.
const LOOK_EVERY: Duration = Duration::from_millis(300);

#[derive(Args)]
pub struct AgentArguments {
    /// Id, name or claim code.
    node: String,
    /// Print the tasks as JSON, with all that is known of them.
    #[arg(long)]
    json: bool,
    /// Remove the agent: its credentials end, and it removes itself from the system.
    #[arg(long, conflicts_with = "json")]
    remove: bool,
    #[command(flatten)]
    yes: Yes,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server node drain web1 --timeout 10m
  slipway-server node drain web1 --force --yes
  slipway-server node drain web1 --undo")]
pub struct DrainArguments {
    /// Id, name or claim code.
    node: String,
    /// Time after which it is stopped, such as 600 or 10m. What still runs is said then, and goes on.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "600")]
    timeout: Duration,
    /// Only take no new work; what runs goes on.
    #[arg(long)]
    cordon_only: bool,
    /// Go on where something fails, and end by force what still runs at the limit.
    #[arg(long)]
    force: bool,
    /// Give the machine work again.
    #[arg(long, conflicts_with_all = ["cordon_only", "force"])]
    undo: bool,
    /// Do not wait until it is done.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    yes: Yes,
}

#[derive(Args)]
pub struct RebootArguments {
    /// Id, name or claim code.
    node: String,
    /// Do not wait until the agent has restarted it.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    yes: Yes,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server node task web1 logs
  slipway-server node task web1 rotate-keys --timeout 2m --yes
  slipway-server node task web1 --cancel")]
#[command(group(clap::ArgGroup::new("what").required(true)))]
pub struct TaskArguments {
    /// Id, name or claim code.
    node: String,
    /// Name of the task; `node agent NODE` shows what the agent may do.
    #[arg(group = "what")]
    task: Option<String>,
    /// Stop what the agent does or is to do. What was done stays done.
    #[arg(long, group = "what")]
    cancel: bool,
    /// Time after which it is stopped, such as 600 or 10m.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "600")]
    timeout: Duration,
    /// Do not wait until it is done.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    yes: Yes,
}

/// Shows the agent of a machine, or removes it.
pub async fn agent(store: &Store, arguments: AgentArguments) -> anyhow::Result<()> {
    let node = operate::show_node(store, &arguments.node).await?;
    if arguments.remove {
        let means = "removes the agent from its system: it does not say any more that it runs, and cannot be drained, \
                     rebooted or reinstalled by it";
        arguments.yes.ask("removing the agent", &[ask::machine(&node), means.to_owned()])?;
        operate::remove_agent(store, &node.id).await?;
        return print_line(&format!("the agent of {} is removed", label(&node)));
    }
    let tasks = operate::list_tasks(store, &node.id).await?;
    if arguments.json { print_json(&tasks) } else { print(&shown(&node, &tasks)) }
}

/// Drains a machine.
pub async fn drain(store: &Store, arguments: DrainArguments) -> anyhow::Result<()> {
    let DrainArguments { node, timeout, cordon_only, force, undo, no_wait, yes } = arguments;
    let known = operate::show_node(store, &node).await?;
    let what = match (undo, cordon_only, force) {
        (true, ..) => None,
        (_, true, _) => Some("takes no new work from now on"),
        (_, _, true) => Some("loses its work, by force where that does not end by itself"),
        _ => Some("loses its work: the drain command of its operating system takes it away"),
    };
    let means: Vec<String> = what.iter().flat_map(|what| [ask::machine(&known), (*what).to_owned()]).collect();
    yes.ask("draining the machine", &means)?;
    let how = TaskOptions { cordon_only, force, undo };
    follow(store, &known, new_task(DRAIN, timeout, how), no_wait).await
}

/// Reboots a machine into its installed system.
pub async fn reboot(store: &Store, arguments: RebootArguments) -> anyhow::Result<()> {
    let RebootArguments { node, no_wait, yes } = arguments;
    let known = operate::show_node(store, &node).await?;
    let by_agent = operate::reboots_by_agent(store, &known.id).await?;
    let means = match by_agent {
        true => vec![ask::machine(&known), "has the agent of its system reboot it".to_owned()],
        false => ask::power_off(&known, " and on again"),
    };
    yes.ask("rebooting the machine", &means)?;
    let name = label(&known);
    match operate::reboot(store, &known.id, Some(by_agent)).await? {
        Reboot::Task(task) => wait(store, &known, &task.id, no_wait).await,
        Reboot::Power(_) => print_line(&format!("a server does so; `node power show {name}` says how far it is")),
    }
}

/// Has the agent of a machine do a task.
pub async fn task(store: &Store, arguments: TaskArguments) -> anyhow::Result<()> {
    let TaskArguments { node, task, timeout, no_wait, yes, .. } = arguments;
    let known = operate::show_node(store, &node).await?;
    let Some(task) = task else {
        let cancelled = operate::cancel_task(store, &known.id).await?;
        return print_line(&format!("{} {}", label(&known), cancelled.in_words()));
    };
    if task != "logs" {
        yes.ask("working on the running system", &[ask::machine(&known), format!("has its agent do {task}")])?;
    }
    follow(store, &known, new_task(&task, timeout, TaskOptions::default()), no_wait).await
}

fn new_task(name: &str, timeout: Duration, how: TaskOptions) -> NewTask {
    let limit_seconds = Some(u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
    NewTask { name: name.to_owned(), limit_seconds, how }
}

async fn follow(store: &Store, node: &NodeStatus, new: NewTask, no_wait: bool) -> anyhow::Result<()> {
    let asked = operate::ask_task(store, &node.id, new).await?;
    wait(store, node, &asked.id, no_wait).await
}

/// Waits until a task is over, and prints each line that it reports meanwhile.
async fn wait(store: &Store, node: &NodeStatus, id: &str, no_wait: bool) -> anyhow::Result<()> {
    let name = label(node);
    if no_wait {
        return print_line(&format!("its agent does so; `node agent {name}` says how far it is"));
    }
    let mut told = None;
    loop {
        let tasks = operate::list_tasks(store, &node.id).await?;
        let Some(task) = tasks.into_iter().find(|task| task.id == id) else {
            bail!("{name} has done so much meanwhile that the task is not kept any more");
        };
        match task.state {
            TaskState::Succeeded => return print_line(&format!("{name} {}", line(&task.in_words()))),
            TaskState::Failed | TaskState::Withdrawn => {
                bail!("{name} {}; `node agent {name}` shows what it printed", line(&task.in_words()))
            }
            TaskState::Asked | TaskState::Running => {}
        }
        if told.as_ref() != Some(&task.line)
            && let Some(text) = &task.line
        {
            eprintln!("{}", line(text));
            told = Some(task.line.clone());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn shown(node: &NodeStatus, tasks: &[TaskStatus]) -> String {
    let mut rows = vec![("Machine", label(node).to_owned()), ("State", word(&node.state))];
    match &node.agent {
        None => rows.push(("Agent", "none that reports".to_owned())),
        Some(agent) => {
            rows.extend(node.last_seen.map(|at| ("Heard", utc(at))));
            rows.push(("Up since", utc(agent.up_since)));
            rows.extend(agent.system_state.iter().map(|state| ("System", line(state).into_owned())));
            if !agent.failed_units.is_empty() {
                rows.push(("Failed", line(&agent.failed_units.join(", ")).into_owned()));
            }
            rows.extend(agent.image.iter().map(|image| ("Image", image.to_string())));
            rows.push(("Version", line(&agent.version).into_owned()));
            rows.push(("May do", line(&agent.tasks.join(", ")).into_owned()));
        }
    }
    let rows: String = rows.into_iter().map(|(key, value)| format!("{:<10}{value}\n", format!("{key}:"))).collect();
    let of_task = |task: &TaskStatus| {
        let at = utc(task.ended_at.or(task.started_at).unwrap_or(task.asked_at));
        format!("{at}  {:<10} {}\n", word(&task.state), line(&task.in_words()))
    };
    let history: String = tasks.iter().map(of_task).collect();
    let output = tasks.first().and_then(|task| task.output.as_ref()).filter(|output| !output.is_empty());
    let output =
        output.map(|output| format!("\nThe newest printed:\n{}\n", lines(output.trim_end()))).unwrap_or_default();
    let blank = if history.is_empty() { "" } else { "\n" };
    format!("{rows}{blank}{history}{output}")
}

/// Reads a named command: `NAME=COMMAND`.
pub fn command(text: &str) -> Result<(String, String), String> {
    let (name, command) =
        text.split_once('=').ok_or("a task is given as NAME=COMMAND, such as cleanup='rm -rf /srv/x'")?;
    Ok((name.to_owned(), command.to_owned()))
}
