//! `cargo xtask demo`: the main job, end to end, with nothing pretended.

use std::collections::BTreeMap;
use std::fs;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use slipway_protocol::{Failure, NodeState, NodeStatus, Progress, StepState, StepStatus};
use xtask::lab::Lab;
use xtask::qemu::{Boot, Disk, Machine, MachineConfig, Nic, create_disk};
use xtask::{target_image, workspace};

/// The machine the operator registers and the rack powers on.
const UUID: &str = "5b1c6f6e-90e9-4a0f-8c1e-2d6f0f6e1a01";
const NAME: &str = "demo";
const DISK_SIZE: u64 = 4 << 30;
/// The smallest machine the demo is promised to work in.
const MEMORY_MIB: u32 = 512;
/// Emulated processors are slow; a demo that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// How often progress is told where nobody's screen can be redrawn.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Install a real Debian in an empty machine, from power-on to its report that it runs.
#[derive(Args)]
pub struct Demo {
    /// Leave server and machine running, and say how to look at them
    #[arg(long)]
    keep: bool,
}

/// The last line of the demo.
#[derive(Serialize)]
struct Summary {
    node: String,
    state: NodeState,
    /// Seconds of each phase, in the order they happen.
    seconds: BTreeMap<String, f64>,
    initramfs_bytes: u64,
    peak_memory_bytes: Option<u64>,
}

impl Demo {
    pub fn run(self) -> Result<()> {
        let folder = workspace::root().join("target/slipway/demo");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
        }
        say("building the target image (kept for the next time)");
        let image = target_image::build()?;
        say("building slipway and its server (kept for the next time)");
        let mut lab = Lab::new(&folder)?;
        lab.start_server()?;
        let boot = lab.make_boot_files()?;
        let initramfs_bytes = fs::metadata(&boot.initramfs)?.len();
        say(&format!("server at {}, initramfs of {}", lab.url(), bytes(initramfs_bytes)));

        let digest = lab.operator(&["image", "add", path(&image.path)?])?.trim().to_owned();
        let (size, raw_digest) = (image.raw_size.to_string(), format!("sha256:{}", image.raw_sha256));
        let system = ["os", "add", "debian-12", "--image", &digest, "--raw-size", &size, "--raw-digest", &raw_digest];
        lab.operator(&[&system[..], &["--phone-home", "--kernel-arg", "slipway.demo=1"]].concat())?;
        let node = lab.operator(&["node", "add", "--name", NAME, "--uuid", UUID, "--release"])?.trim().to_owned();
        lab.operator(&["run", "start", NAME, "--os", "debian-12"])?;
        say(&format!("node {node} is registered by its UUID and has a run that installs debian-12"));

        let disk = folder.join("disk.raw");
        create_disk(&disk, DISK_SIZE)?;
        let config = MachineConfig {
            boot: Boot::Uefi { uri: Some(lab.loader_url()) },
            memory_mib: MEMORY_MIB,
            uuid: UUID.to_owned(),
            serial: "DEMO0001".to_owned(),
            disks: vec![Disk { path: disk, serial: "demo-disk-1".to_owned() }],
            nics: vec![Nic { mac: "52:54:00:5b:1c:01".to_owned(), bootfile: Some(lab.script_url()) }],
            extra: Vec::new(),
        };
        let mut machine = Machine::start(&config, &folder.join("machine"))?;
        say(&format!("power on: UEFI firmware, iPXE, micro-OS; console in {}", machine.console_log().display()));
        let status = watch(&lab, &mut machine)?;
        let summary = summary(&status, initramfs_bytes);
        if self.keep {
            keep(lab, machine, &folder);
        }
        println!("{}", serde_json::to_string(&summary)?);
        if status.state != NodeState::Running {
            bail!("the node is {:?} and not running", status.state);
        }
        Ok(())
    }
}

/// Shows what happens until the node runs, has failed, or takes too long.
fn watch(lab: &Lab, machine: &mut Machine) -> Result<NodeStatus> {
    let changes = lab.watch(NAME)?;
    let mut screen = Screen::new();
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = changes.next(Duration::from_secs(1))? {
            screen.show(&status);
            if matches!(status.state, NodeState::Running | NodeState::Failed) {
                return Ok(status);
            }
        }
        let log = machine.console_log().display().to_string();
        if !machine.is_running()? {
            bail!("watching the machine: QEMU has ended; its console is in {log}");
        }
        if Instant::now() > deadline {
            bail!("watching the machine: not running after {} minutes; its console is in {log}", LIMIT.as_secs() / 60);
        }
    }
}

/// What was told, so that nothing is told twice.
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
        if self.state != Some(status.state) {
            self.state = Some(status.state);
            self.line(&format!("node is {}", word(status.state)));
        }
        let Some(run) = &status.run else { return };
        self.steps.resize(run.steps.len(), (StepState::Pending, 0, 0));
        for (index, step) in run.steps.iter().enumerate() {
            self.show_step(index, run.steps.len(), step);
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
        let stage = progress.waiting_for.map(|stage| format!(", waiting for {stage:?}").to_lowercase());
        let (rate, stage) = (bytes(progress.rate), stage.unwrap_or_default());
        let text = format!("{place}: {}{total} at {rate}/s{stage}", bytes(progress.bytes));
        if self.redraws {
            print!("\r\x1b[K{:7.1} {text}", self.began.elapsed().as_secs_f64());
            // A screen that cannot be written to shows nothing, which is no reason to stop.
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
    println!("the server and the machine go on running:");
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

fn bytes(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}
