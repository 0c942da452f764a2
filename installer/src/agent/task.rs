//! The agent's tasks. A command runs in a unit of its own, so that it has the rights of root and outlives the agent.

use std::fs::{self, File};
use std::io::{Read, Seek as _, SeekFrom};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use slipway_protocol::node::agent::{MAX_TASK_LINE_BYTES, MAX_TASK_OUTPUT_BYTES};
use slipway_protocol::{Agent, AgentAct, BootReport, BootStage, Failure, Task, TaskProgress, TaskReport};
use tracing::{info, warn};

use super::files::{Files, replace};
use crate::boot_report::Surroundings;
use crate::boot_report::collect::{self, output};
use crate::server::client::Client;

/// Seconds that a command has beyond its limit to say what it could not do, before it is ended.
const GRACE: u32 = 30;
/// The most that a command may print, in bytes. It is kept in memory.
const MAX_OUTPUT: u64 = 16 << 20;
/// Largest answer of systemctl, in bytes.
const ANSWER: usize = 16 << 10;
/// Name of the file with the task, in the folder that is lost when the system restarts.
const STATE: &str = "task.json";
/// Name of the file with what the task printed.
const OUTPUT: &str = "task.out";

/// The task that the agent does or did last, as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Current {
    task: Task,
    progress: TaskProgress,
    reason: Option<String>,
    /// Seconds since the system started at which the task was begun.
    begun_at: u64,
}

/// The tasks of an agent: one at a time.
pub(super) struct Tasks<'a> {
    surroundings: &'a Surroundings,
    settings: &'a Agent,
    current: Option<Current>,
}

/// What a unit is.
enum Unit {
    Runs,
    Ended(Result<(), String>),
}

impl<'a> Tasks<'a> {
    /// Goes on with what the agent did before it was started again, in the same boot.
    pub(super) fn resume(surroundings: &'a Surroundings, settings: &'a Agent) -> Self {
        let text = fs::read(surroundings.state.join(STATE)).unwrap_or_default();
        Self { surroundings, settings, current: serde_json::from_slice(&text).ok() }
    }

    /// Returns how far the task is that the server is to know of.
    pub(super) fn report(&self) -> Option<TaskReport> {
        let current = self.current.as_ref()?;
        let is_over = matches!(current.progress, TaskProgress::Succeeded | TaskProgress::Failed);
        let printed = self.printed();
        let last = printed.lines().rev().map(str::trim).find(|line| !line.is_empty());
        Some(TaskReport {
            id: current.task.id.clone(),
            progress: current.progress,
            line: last.map(|line| cut(line, MAX_TASK_LINE_BYTES)),
            reason: current.reason.as_deref().map(|reason| cut(reason, MAX_TASK_LINE_BYTES)),
            output: is_over.then_some(printed),
        })
    }

    /// Looks how far the task is.
    pub(super) async fn look(&mut self, client: &Client) {
        let Some(current) = self.current.as_ref().filter(|current| current.progress == TaskProgress::Running) else {
            return;
        };
        let task = current.task.clone();
        let is_late = collect::uptime(&self.surroundings.root).saturating_sub(current.begun_at)
            > u64::from(task.limit_seconds.saturating_add(2 * GRACE));
        let ended = match act(&task) {
            Some(AgentAct::Logs) => Some(self.send_log(client).await),
            Some(AgentAct::Reboot) => is_late.then(|| Err("the system has not shut down".to_owned())),
            Some(AgentAct::BootSlipway) => match self.unit(&task).await {
                Unit::Ended(Err(reason)) => Some(Err(reason)),
                _ => is_late.then(|| Err("the system has not shut down".to_owned())),
            },
            None => match self.unit(&task).await {
                Unit::Runs => None,
                Unit::Ended(result) => Some(result),
            },
        };
        match ended {
            None => {}
            Some(Ok(())) => self.end(TaskProgress::Succeeded, None).await,
            Some(Err(reason)) => self.end(TaskProgress::Failed, Some(reason)).await,
        }
    }

    /// Takes what the server wants done. Returns whether something was begun or accepted, of which the server is to
    /// know at once.
    pub(super) async fn told(&mut self, wanted: Option<Task>) -> bool {
        let is_same = match (&self.current, &wanted) {
            (Some(current), Some(task)) => current.task.id == task.id,
            _ => false,
        };
        if !is_same {
            self.forget().await;
            let Some(task) = wanted else { return false };
            // The server has to know before anything is done, so that nothing is done twice.
            self.current = Some(Current { task, progress: TaskProgress::Accepted, reason: None, begun_at: 0 });
            return self.store();
        }
        if self.current.as_ref().is_some_and(|current| current.progress == TaskProgress::Accepted) {
            self.begin().await;
            return true;
        }
        false
    }

    /// Begins the task that the server knows to be accepted.
    async fn begin(&mut self) {
        let begun_at = collect::uptime(&self.surroundings.root);
        let Some(current) = &mut self.current else { return };
        (current.progress, current.begun_at) = (TaskProgress::Running, begun_at);
        let task = current.task.clone();
        info!("doing {}, as the server asks", task.name);
        _ = fs::remove_file(self.output_file());
        if !self.store() {
            let reason = "the agent cannot store what it does".to_owned();
            return self.end(TaskProgress::Failed, Some(reason)).await;
        }
        let is_named = match act(&task) {
            Some(act) => self.settings.may.contains(&act),
            None => self.settings.tasks.contains_key(&task.name),
        };
        let begun = match act(&task) {
            _ if !is_named => Err("the settings of the agent on this machine do not name this task".to_owned()),
            Some(AgentAct::Logs) => Ok(()),
            Some(AgentAct::Reboot) => self.systemctl(&["--no-wall", "reboot"]).await,
            Some(AgentAct::BootSlipway) => {
                let program = Files::of(self.surroundings).program();
                self.start(&task, &[&program.to_string_lossy(), "boot-slipway"]).await
            }
            None => {
                // The service manager expands $NAME in arguments, and $$ is a dollar sign (systemd.service(5)).
                let command = self.settings.tasks.get(&task.name).map(|command| command.replace('$', "$$"));
                let command = command.unwrap_or_default();
                self.start(&task, &["/bin/sh", "-c", &command, "slipway"]).await
            }
        };
        if let Err(reason) = begun {
            self.end(TaskProgress::Failed, Some(reason)).await;
        }
    }

    /// Starts a command in a unit of its own.
    async fn start(&self, task: &Task, command: &[&str]) -> Result<(), String> {
        let set = |name: &str, value: bool| format!("--setenv={name}={}", u8::from(value));
        let printed = self.output_file().display().to_string();
        let arguments = [
            format!("--unit={}", unit(task)),
            format!("--description=slipway: {}", task.name),
            "--remain-after-exit".to_owned(),
            "--no-block".to_owned(),
            "--quiet".to_owned(),
            format!("--property=RuntimeMaxSec={}", task.limit_seconds.saturating_add(GRACE)),
            "--property=TimeoutStopSec=5".to_owned(),
            format!("--property=StandardOutput=file:{printed}"),
            format!("--property=StandardError=file:{printed}"),
            format!("--setenv=SLIPWAY_SECONDS={}", task.limit_seconds),
            set("SLIPWAY_CORDON_ONLY", task.how.cordon_only),
            set("SLIPWAY_FORCE", task.how.force),
            set("SLIPWAY_UNDO", task.how.undo),
            "--setenv=LC_ALL=C.UTF-8".to_owned(),
            "--".to_owned(),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(command.iter().copied()).collect();
        collect::succeeds(self.surroundings, "systemd-run", &arguments).await
    }

    async fn systemctl(&self, arguments: &[&str]) -> Result<(), String> {
        collect::succeeds(self.surroundings, "systemctl", arguments).await
    }

    /// Looks at the unit of a task.
    async fn unit(&self, task: &Task) -> Unit {
        let unit = unit(task);
        let properties = "--property=LoadState,ActiveState,SubState,Result,ExecMainStatus,Job";
        let Ok(shown) = output(self.surroundings, "systemctl", &["show", properties, &unit], ANSWER).await else {
            return Unit::Runs;
        };
        let shown = String::from_utf8_lossy(&shown).into_owned();
        let value =
            |key: &str| shown.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default();
        if fs::metadata(self.output_file()).is_ok_and(|file| file.len() > MAX_OUTPUT) {
            return Unit::Ended(Err(format!(
                "it printed more than {} MiB, which the machine has to keep",
                MAX_OUTPUT >> 20
            )));
        }
        let last = self.report().and_then(|report| report.line).map(|line| format!(": {line}")).unwrap_or_default();
        match (value("LoadState"), value("ActiveState"), value("SubState"), value("Result")) {
            ("", ..) => Unit::Runs,
            // It is queued, as early in a boot. A job that does not exist is empty or 0.
            _ if !matches!(value("Job"), "" | "0") => Unit::Runs,
            ("not-found", ..) => Unit::Ended(Err("its unit was removed".to_owned())),
            (_, "active", "exited", _) => Unit::Ended(Ok(())),
            (_, "failed" | "inactive", _, "timeout") => {
                Unit::Ended(Err(format!("it was ended after {} s{last}", task.limit_seconds)))
            }
            (_, "failed" | "inactive", _, "exit-code") => {
                Unit::Ended(Err(format!("it ended with status {}{last}", value("ExecMainStatus"))))
            }
            (_, "failed" | "inactive", _, result) => Unit::Ended(Err(format!("it ended: {result}{last}"))),
            _ => Unit::Runs,
        }
    }

    async fn send_log(&self, client: &Client) -> Result<(), String> {
        let boot_id = collect::boot_id(&self.surroundings.root);
        let system_state = collect::system_state(self.surroundings).await;
        let report = BootReport { stage: BootStage::Running, boot_id, system_state, failed_units: Vec::new() };
        let log = collect::log(self.surroundings, &report).await;
        client.agent_log(&report.boot_id, &log).await.map_err(|error| Failure::of(&error).in_one_line())
    }

    async fn end(&mut self, progress: TaskProgress, reason: Option<String>) {
        let Some(current) = &mut self.current else { return };
        (current.progress, current.reason) = (progress, reason);
        let task = current.task.clone();
        self.store();
        self.remove_unit(&task).await;
    }

    /// Ends what is not wanted any more.
    async fn forget(&mut self) {
        let Some(current) = self.current.take() else { return };
        if current.progress == TaskProgress::Running {
            warn!("stopping {}, which is not wanted any more", current.task.name);
            self.remove_unit(&current.task).await;
        }
        for file in [STATE, OUTPUT] {
            _ = fs::remove_file(self.surroundings.state.join(file));
        }
    }

    /// Stops and removes the unit of a task, if it has one.
    async fn remove_unit(&self, task: &Task) {
        if matches!(act(task), Some(AgentAct::Logs | AgentAct::Reboot)) {
            return;
        }
        let unit = unit(task);
        // A unit that succeeded is stopped, and one that failed is reset. Each fails for the other.
        _ = self.systemctl(&["stop", &unit]).await;
        _ = self.systemctl(&["reset-failed", &unit]).await;
    }

    /// Stores the task. Returns whether that succeeded.
    fn store(&self) -> bool {
        let text = serde_json::to_vec(&self.current).unwrap_or_default();
        let stored = replace(&self.surroundings.state.join(STATE), &text);
        stored.inspect_err(|error| warn!("storing the task: {error}")).is_ok()
    }

    fn output_file(&self) -> PathBuf {
        self.surroundings.state.join(OUTPUT)
    }

    /// Returns the end of what the task printed.
    fn printed(&self) -> String {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(self.output_file())?;
            let size = file.metadata()?.len();
            file.seek(SeekFrom::Start(size.saturating_sub(MAX_TASK_OUTPUT_BYTES as u64)))?;
            let mut text = Vec::new();
            file.take(MAX_TASK_OUTPUT_BYTES as u64).read_to_end(&mut text)?;
            Ok(text)
        };
        // Each byte becomes one character at most. In JSON, control characters would need six bytes each, which would
        // be more than a heartbeat may have.
        let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
        text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), "\u{fffd}")
    }
}

/// Returns what the agent does by itself, if the task is such.
fn act(task: &Task) -> Option<AgentAct> {
    AgentAct::ALL.into_iter().find(|act| act.name() == task.name)
}

/// Returns the name of a task's unit. Its id comes from the server, and is made safe.
fn unit(task: &Task) -> String {
    let id: String = task.id.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
    format!("slipway-task-{id}.service")
}

/// Returns the beginning of a text, of at most so many bytes.
fn cut(text: &str, most: usize) -> String {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text[..end].to_owned()
}
