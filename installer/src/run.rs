//! A run: executes the steps of a workflow in order and reports every attempt.

mod capture;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slipway_actions::{Cancel, Done, Machine, Next, Report};
use slipway_protocol::shared::duration;
use slipway_protocol::{Action, EventKind, Failure, Step, Workflow, workflow};
use slipway_user_data::seed;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::enrol::Session;
use crate::files;
use crate::report::log_book::LogBook;
use crate::report::reporter::Reporter;
use crate::run::capture::ServerMachine;
use crate::screen::{self, Doing, Screen};
use crate::server::backoff::Backoff;
use tracing::{error, info, warn};

/// How long a cancelled action may take to release the disk before it is reported as stuck.
const LET_GO: Duration = Duration::from_secs(60);

/// Time limit for checking all steps before a run, which a disk or server that hardly answers must not delay for long.
const FORESEE_LIMIT: Duration = Duration::from_secs(60);

/// Interval at which the disks that steps name are looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Makes the machine for one attempt of a step. Cancelling the handle stops the attempt.
pub type MakeMachine = Arc<dyn Fn(&Cancel) -> Box<dyn Machine + Send> + Send + Sync>;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every step succeeded, and the machine stays as it is.
    Done,
    /// A step failed.
    Failed,
    /// Every step succeeded, and the machine is to be restarted.
    Reboot,
    /// Every step succeeded, and the loaded kernel is to be started.
    Kexec,
}

/// What every run needs.
pub struct Runner {
    /// Access to the server, for captured disks and recovery keys.
    pub session: Session,
    /// Sends the reports.
    pub reporter: Reporter,
    /// The log, for the last lines in a failure report.
    pub log: LogBook,
    /// File with the step in progress, so that a restarted installer knows what was interrupted. Its folder must be
    /// lost when the machine restarts.
    pub note: PathBuf,
    /// What happens after a failed run, appended to log messages.
    pub after_failure: &'static str,
    /// How the previous installer in this boot ended, if there was one.
    pub previous_exit: Option<String>,
    /// Makes the machine for an attempt.
    pub machine: MakeMachine,
    /// Shows the step to the person at the machine.
    pub screen: Screen,
    /// Becomes true once the list of disks seems complete.
    pub disks_settled: watch::Receiver<bool>,
}

#[derive(Debug, Serialize, Deserialize)]
struct InProgress {
    run: String,
    step: u32,
    attempt: u32,
}

/// Why a step did not succeed.
enum Unsuccessful {
    Failed {
        failure: Failure,
        is_transient: bool,
    },
    TimedOut(Failure),
    /// The server accepts no more reports for this run, for this reason.
    Over(String),
}

impl Runner {
    /// Waits until the list of disks is complete, because a rule such as "smallest disk" needs the whole list. Returns
    /// earlier if each step names a disk that is present and no other disk can match.
    pub async fn wait_for_disks(&self, steps: &[Step]) {
        tokio::select! {
            biased;
            () = self.all_disks() => {}
            () = self.named_disks(steps) => info!("each step names a disk that is present; not waiting for others"),
        }
    }

    async fn all_disks(&self) {
        // The sender lives as long as the machine. An error means there is nothing to wait for.
        let _ = self.disks_settled.clone().wait_for(|settled| *settled).await;
    }

    async fn named_disks(&self, steps: &[Step]) {
        loop {
            let (make, steps) = (Arc::clone(&self.machine), steps.to_vec());
            let look = move || slipway_actions::names_present_disks(&steps, &*make(&Cancel::default()));
            let looked = tokio::task::spawn_blocking(look).await;
            if looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
                return;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Runs a workflow, which the reporter has begun, to its end. Returns once every event is queued. The caller must
    /// then flush the reporter, before the machine restarts or starts another kernel.
    pub async fn run(&self, workflow: &Workflow) -> End {
        if let Some(interrupted) = self.interrupted(&workflow.run) {
            return self.report_interruption(workflow, &interrupted);
        }
        let mut problems = workflow::validate(&workflow.steps);
        problems.extend(seed::problems(&workflow.steps));
        if !problems.is_empty() {
            let failure =
                Failure { reason: "reading the workflow".to_owned(), causes: problems, log_tail: self.log.tail() };
            return self.fail(workflow, workflow.done, 1, EventKind::Failed(failure));
        }
        if let Some(failure) = self.foresee(workflow).await {
            error!("{}", failure.in_one_line());
            return self.fail(workflow, workflow.done, 0, EventKind::Failed(failure));
        }
        let done = if workflow.done > 0 { format!(", of which {} are done", workflow.done) } else { String::new() };
        info!("run {} has {} steps{done}", workflow.run, workflow.steps.len());
        for (index, step) in (0u32..).zip(&workflow.steps).skip(workflow.done as usize) {
            match self.run_step(workflow, index, step).await {
                Ok(Next::Continue) => {}
                Ok(Next::Reboot) => return End::Reboot,
                Ok(Next::Kexec) => return End::Kexec,
                Err(()) => return End::Failed,
            }
        }
        self.forget();
        End::Done
    }

    /// Checks all steps before the first one destroys anything. Returns why a step is known to fail.
    async fn foresee(&self, workflow: &Workflow) -> Option<Failure> {
        let (make, steps) = (Arc::clone(&self.machine), workflow.steps.clone());
        let cancel = Cancel::default();
        let looking = tokio::task::spawn_blocking({
            let cancel = cancel.clone();
            move || slipway_actions::foresee(&steps, &*make(&cancel))
        });
        info!("checking all steps before the first one");
        let foreseen = tokio::select! {
            // The run has ended. Its first step then stops for the same reason.
            _ = self.reporter.over() => {
                cancel.set();
                return None;
            }
            looked = timeout(FORESEE_LIMIT, looking) => match looked {
                Ok(looked) => looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?,
                Err(_) => {
                    cancel.set();
                    let limit = duration::words(FORESEE_LIMIT);
                    warn!("checking all steps took longer than {limit}; each step is checked when it starts");
                    return None;
                }
            },
        };
        // If the run already reported events, a step has begun before, for example before a power cut.
        let reason = foreseen.reason(&workflow.steps, workflow.next_seq > 1 || workflow.done > 0);
        Some(Failure { reason, causes: vec![foreseen.problem], log_tail: self.log.tail() })
    }

    /// Runs one step and reports its result.
    async fn run_step(&self, workflow: &Workflow, index: u32, step: &Step) -> Result<Next, ()> {
        let place = format!("step {}/{} {}", index + 1, workflow.steps.len(), step.name);
        // This action removes boot entries whose disk is gone, and looks for the same partition on other disks.
        if matches!(step.action, Action::EfiBootOrder(_)) {
            self.all_disks().await;
        }
        let mut backoff = Backoff::default();
        let mut earlier = None;
        for attempt in 1.. {
            self.screen.doing(Doing::Step(screen::Step {
                number: index + 1,
                of: u32::try_from(workflow.steps.len()).unwrap_or(u32::MAX),
                name: step.name.clone(),
                attempt,
                earlier: earlier.take(),
                ..screen::Step::default()
            }));
            self.remember(&InProgress { run: workflow.run.clone(), step: index, attempt });
            info!("{place}: started{}", if attempt > 1 { format!(", attempt {attempt}") } else { String::new() });
            self.reporter.event(&workflow.run, index, attempt, EventKind::Started);
            match self.attempt(workflow, index, attempt, step).await {
                Ok(done) => {
                    for warning in &done.outcome.warnings {
                        warn!("{place}: {warning}");
                    }
                    info!("{place}: {}", done.outcome.summary);
                    self.reporter.event(&workflow.run, index, attempt, EventKind::Succeeded(done.outcome));
                    return Ok(done.next);
                }
                Err(Unsuccessful::Failed { failure, is_transient }) if is_transient && attempt <= step.retries => {
                    warn!("{place}: {}; trying again", failure.in_one_line());
                    earlier = Some(screen::reason(&failure));
                    self.reporter.event(&workflow.run, index, attempt, EventKind::Retrying(failure));
                    sleep(backoff.next_wait()).await;
                }
                Err(Unsuccessful::Failed { failure, .. }) => {
                    error!("{place}: {}", failure.in_one_line());
                    self.fail(workflow, index, attempt, EventKind::Failed(failure));
                    return Err(());
                }
                Err(Unsuccessful::Over(reason)) => {
                    error!("{place}: stopped, because the server accepts no more reports for this run: {reason}");
                    self.forget();
                    return Err(());
                }
                Err(Unsuccessful::TimedOut(failure)) => {
                    error!("{place}: {}", failure.in_one_line());
                    self.fail(workflow, index, attempt, EventKind::TimedOut(failure));
                    return Err(());
                }
            }
        }
        Err(())
    }

    async fn attempt(&self, workflow: &Workflow, index: u32, attempt: u32, step: &Step) -> Result<Done, Unsuccessful> {
        let cancel = Cancel::default();
        let memory = Arc::new(AtomicU64::new(memory_in_use()));
        let mut task = tokio::task::spawn_blocking({
            let (make, cancel, action) = (Arc::clone(&self.machine), cancel.clone(), step.action.clone());
            let (reporter, memory, run) = (self.reporter.clone(), Arc::clone(&memory), workflow.run.clone());
            let screen = self.screen.clone();
            let (session, runtime) = (self.session.clone(), Handle::current());
            move || {
                let machine = ServerMachine::new(make(&cancel), session, run.clone(), runtime);
                slipway_actions::run(&action, &machine, &mut |report| {
                    memory.fetch_max(memory_in_use(), Ordering::Relaxed);
                    screen.step(|step| match &report {
                        Report::Note(text) => step.note = Some(text.clone()),
                        Report::Progress(progress) => step.progress = Some(progress.clone()),
                    });
                    reporter.event(&run, index, attempt, event(report));
                })
            }
        });
        let limit = step.timeout.map_or(Duration::MAX, Duration::from_secs);
        let ended = tokio::select! {
            reason = self.reporter.over() => Err(Unsuccessful::Over(reason)),
            ended = timeout(limit, &mut task) => Ok(ended),
        };
        let ended = match ended {
            Ok(Ok(ended)) => ended,
            Ok(Err(_)) => {
                cancel.set();
                let stuck = timeout(LET_GO, task).await.is_err();
                return Err(Unsuccessful::TimedOut(self.timed_out(step, stuck)));
            }
            Err(over) => {
                cancel.set();
                if timeout(LET_GO, task).await.is_err() {
                    warn!("{} did not stop in {} s: a disk may be hanging", step.action.name(), LET_GO.as_secs());
                }
                return Err(over);
            }
        };
        match ended {
            Ok(Ok(mut done)) => {
                memory.fetch_max(memory_in_use(), Ordering::Relaxed);
                done.outcome.peak_memory = Some(memory.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0);
                Ok(done)
            }
            Ok(Err(error)) => {
                let failure = Failure { log_tail: self.log.tail(), ..Failure::of(&error) };
                Err(Unsuccessful::Failed { failure, is_transient: slipway_actions::is_transient(&error) })
            }
            // A panic ends the process, as it does everywhere. The next installer reports it.
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }

    fn timed_out(&self, step: &Step, stuck: bool) -> Failure {
        let limit = step.timeout.unwrap_or_default();
        let mut causes = vec![format!("it took longer than the {limit} s that the workflow allows")];
        if stuck {
            let seconds = LET_GO.as_secs();
            causes.push(format!("it was asked to stop, but still ran {seconds} s later: a disk may be hanging"));
        }
        Failure { reason: format!("running {}", step.action.name()), causes, log_tail: self.log.tail() }
    }

    /// Reports that the run ended at this step and that no later step runs.
    fn fail(&self, workflow: &Workflow, index: u32, attempt: u32, kind: EventKind) -> End {
        if let EventKind::Failed(failure) | EventKind::TimedOut(failure) = &kind {
            let of = u32::try_from(workflow.steps.len()).unwrap_or(u32::MAX);
            let step = workflow.steps.get(index as usize).filter(|_| attempt > 0);
            let step = step.map(|step| (index + 1, of, step.name.clone()));
            self.screen.doing(Doing::Failed { step, reason: screen::reason(failure) });
        }
        self.reporter.event(&workflow.run, index, attempt, kind);
        for (later, _) in (0u32..).zip(&workflow.steps).skip(index as usize + 1) {
            self.reporter.event(&workflow.run, later, 0, EventKind::Skipped);
        }
        self.forget();
        error!("run {} failed{}", workflow.run, self.after_failure);
        End::Failed
    }

    fn report_interruption(&self, workflow: &Workflow, interrupted: &InProgress) -> End {
        let name = workflow.steps.get(interrupted.step as usize).map_or("", |step| step.name.as_str());
        let how = self.previous_exit.clone().unwrap_or_else(|| "the cause is unknown".to_owned());
        let failure = Failure {
            reason: format!("the installer ended in the middle of step {} {name}", interrupted.step + 1),
            causes: vec![how],
            log_tail: self.log.tail(),
        };
        error!("{}", failure.in_one_line());
        self.fail(workflow, interrupted.step, interrupted.attempt, EventKind::Failed(failure))
    }

    fn interrupted(&self, run: &str) -> Option<InProgress> {
        let text = std::fs::read(&self.note).ok()?;
        serde_json::from_slice(&text).ok().filter(|found: &InProgress| found.run == run)
    }

    fn remember(&self, step: &InProgress) {
        let written = serde_json::to_vec(step).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|text| files::write_whole(&self.note, &text)) {
            warn!("saving the current step in {}: {error}", self.note.display());
        }
    }

    fn forget(&self) {
        // A note that remains names a finished run and is ignored.
        let _ = std::fs::remove_file(&self.note);
    }
}

fn event(report: Report) -> EventKind {
    match report {
        Report::Note(text) => {
            info!("{text}");
            EventKind::Note(text)
        }
        Report::Progress(progress) => EventKind::Progress(progress),
    }
}

/// Returns the bytes of memory in use in the whole machine, 0 if unknown.
fn memory_in_use() -> u64 {
    let text = std::fs::read_to_string(Path::new("/proc/meminfo")).unwrap_or_default();
    let kib = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    kib("MemTotal").zip(kib("MemAvailable")).map_or(0, |(total, free)| total.saturating_sub(free) * 1024)
}
