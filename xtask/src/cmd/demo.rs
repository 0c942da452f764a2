//! `cargo xtask demo`: a complete installation, shown on the terminal.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use slipway_protocol::shared::printable::size as bytes;
use slipway_protocol::{Failure, NodeState, NodeStatus, Progress, StepState, StepStatus};
use xtask::build::prepare;
use xtask::host::workspace;
use xtask::lab::demo::{self, NAME};
use xtask::lab::qemu::Machine;
use xtask::lab::server::Lab;

/// Interval of progress lines if the output is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Install a real Debian on an empty machine, from power-on to its report that it runs.
#[derive(Args)]
pub struct Demo {
    /// Leave server and machine running, and show how to inspect them
    #[arg(long)]
    keep: bool,
}

/// The last line of the demo's output, in JSON.
#[derive(Serialize)]
struct Summary {
    node: String,
    state: NodeState,
    /// Seconds of each phase, by name.
    seconds: BTreeMap<String, f64>,
    initramfs_bytes: u64,
    peak_memory_bytes: Option<u64>,
}

impl Demo {
    pub fn run(self) -> Result<()> {
        let parts = [prepare::BINARY, prepare::SERVER, prepare::BOOT_IMAGE, prepare::TARGET_IMAGE, prepare::MACHINES];
        prepare::prepare("cargo xtask demo", &parts, Duration::from_secs(150))?;
        let folder = workspace::root().join("target/slipway/demo");
        let demo = demo::Demo::prepare(&folder, self.keep, &say)?;
        let mut machine = demo.power_on()?;
        say(&format!("power on: UEFI firmware, iPXE, boot image; console in {}", machine.console_log().display()));
        let mut screen = Screen::new();
        let status = demo.watch(&mut machine, |status| screen.show(status))?;
        let summary = summary(&status, demo.initramfs_bytes);
        if self.keep {
            keep(demo.lab, machine, &folder);
        }
        println!("{}", serde_json::to_string(&summary)?);
        ensure!(status.state == NodeState::Running, "the node is {:?}, not running", status.state);
        Ok(())
    }
}

/// What the terminal shows. Remembers what was printed, so that nothing is printed twice.
struct Screen {
    redraws: bool,
    began: Instant,
    state: Option<NodeState>,
    steps: Vec<(StepState, u32, usize)>,
    next_line: Instant,
    open_line: bool,
}

impl Screen {
    fn new() -> Self {
        let now = Instant::now();
        let redraws = std::io::stdout().is_terminal();
        Self { redraws, began: now, state: None, steps: Vec::new(), next_line: now, open_line: false }
    }

    fn show(&mut self, status: &NodeStatus) {
        // While the state is "installing", it is printed before the messages of the steps; any other state is printed
        // after them.
        if status.state == NodeState::Installing {
            self.show_state(status.state);
        }
        if let Some(run) = &status.run {
            self.steps.resize(run.steps.len(), (StepState::Pending, 0, 0));
            for (index, step) in run.steps.iter().enumerate() {
                self.show_step(index, run.steps.len(), step);
            }
        }
        self.show_state(status.state);
    }

    fn show_state(&mut self, state: NodeState) {
        if self.state.replace(state) != Some(state) {
            self.line(&format!("node is {}", word(state)));
        }
    }

    fn show_step(&mut self, index: usize, count: usize, step: &StepStatus) {
        let place = format!("step {}/{count} {}", index + 1, step.name);
        let Some((state, attempt, notes)) = self.steps.get(index).copied() else { return };
        if step.attempt != attempt && step.state == StepState::Running {
            let again = if step.attempt > 1 { format!(", attempt {}", step.attempt) } else { String::new() };
            self.line(&format!("{place}: started{again}"));
        }
        for note in step.notes.iter().skip(notes) {
            self.line(&format!("{place}: {note}"));
        }
        if step.state != state {
            match (step.state, &step.outcome, &step.failure) {
                (StepState::Succeeded, Some(outcome), _) => {
                    self.line(&format!("{place}: done in {:.1} s: {}", seconds(step), outcome.summary));
                    for warning in &outcome.warnings {
                        self.line(&format!("{place}: warning: {warning}"));
                    }
                }
                (StepState::Failed | StepState::TimedOut, _, Some(failure)) => self.failure(&place, failure),
                _ => {}
            }
        }
        if step.state == StepState::Running
            && let Some(progress) = &step.progress
        {
            self.progress(&place, progress);
        }
        if let Some(told) = self.steps.get_mut(index) {
            *told = (step.state, step.attempt, step.notes.len());
        }
    }

    fn failure(&mut self, place: &str, failure: &Failure) {
        self.line(&format!("{place}: failed: {}", failure.reason));
        for cause in &failure.causes {
            self.line(&format!("{place}:   because: {cause}"));
        }
        for line in &failure.log_tail {
            self.line(&format!("{place}:   {line}"));
        }
    }

    fn progress(&mut self, place: &str, progress: &Progress) {
        let total = progress.total.map(|total| format!(" of {}", bytes(total))).unwrap_or_default();
        let stage = progress.waiting_for.map(|stage| format!(", waiting for {}", stage.in_words()));
        let (rate, stage) = (bytes(progress.rate), stage.unwrap_or_default());
        let text = format!("{place}: {}{total} at {rate}/s{stage}", bytes(progress.bytes));
        if self.redraws {
            print!("\r\x1b[K{:7.1} {text}", self.began.elapsed().as_secs_f64());
            // A failed write to the screen must not stop the demo.
            let _ = std::io::stdout().flush();
            self.open_line = true;
        } else if Instant::now() >= self.next_line {
            self.next_line = Instant::now() + LINE_EVERY;
            self.line(&text);
        }
    }

    fn line(&mut self, text: &str) {
        if std::mem::take(&mut self.open_line) {
            print!("\r\x1b[K");
        }
        println!("{:7.1} {text}", self.began.elapsed().as_secs_f64());
    }
}

fn summary(status: &NodeStatus, initramfs_bytes: u64) -> Summary {
    let mut phases = BTreeMap::new();
    if let Some(timing) = status.timing {
        phases.insert("1 kernel to pid 1".to_owned(), timing.kernel_to_init as f64 / 1000.0);
        phases.insert("2 pid 1 to enrolled".to_owned(), timing.init_to_enrol as f64 / 1000.0);
    }
    let mut peak_memory_bytes = None;
    if let Some(run) = &status.run {
        for (index, step) in run.steps.iter().enumerate() {
            phases.insert(format!("3.{} {}", index + 1, step.name), seconds(step));
            peak_memory_bytes = peak_memory_bytes.max(step.outcome.as_ref().and_then(|outcome| outcome.peak_memory));
        }
        if let (Some(left), Some(home)) = (run.finished_at, run.phoned_home_at) {
            phases.insert("4 reboot to phone-home".to_owned(), home.saturating_sub(left) as f64 / 1000.0);
        }
    }
    Summary { node: status.id.clone(), state: status.state, seconds: phases, initramfs_bytes, peak_memory_bytes }
}

fn keep(mut lab: Lab, machine: Machine, folder: &Path) {
    let data = folder.join("data");
    println!("the server and the machine keep running:");
    println!("  console   tail -f {}", machine.console_log().display());
    println!("  status    {} --data {} status", lab.program().display(), data.display());
    println!("  node      {} --data {} node show {NAME}", lab.program().display(), data.display());
    println!("  log       {} --data {} node log {NAME}", lab.program().display(), data.display());
    let (machine, server) = (machine.keep(), lab.keep_server());
    println!("  end       kill {machine} {}", server.map(|pid| pid.to_string()).unwrap_or_default());
}

fn say(text: &str) {
    println!("        {text}");
}

fn seconds(step: &StepStatus) -> f64 {
    let ended = step.finished_at.zip(step.started_at);
    ended.map_or(0.0, |(end, start)| end.saturating_sub(start) as f64 / 1000.0)
}

fn word(state: NodeState) -> String {
    format!("{state:?}").to_lowercase()
}
