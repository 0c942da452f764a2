//! The machine's side of an installation, from power-on to the installed system: identifies the machine, enrols, waits
//! for work, runs it, and reports.
//!
//! No code here opens a disk (`slipway-actions` does) or restarts the machine (the result of [`run()`] says whether to
//! restart).

use std::path::PathBuf;
use std::time::Duration;

use slipway_protocol::{ErrorCode, Failure};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use crate::config::Config;
use crate::enrol::{Facts, Session};
use crate::report::log_book::LogBook;
use crate::report::reporter::Reporter;
use crate::run::{MakeMachine, Runner};
use crate::screen::{Doing, Screen};
use crate::server::backoff::Backoff;
use crate::server::client::ClientError;
use crate::server::clock;
use crate::server::machine_key::MachineKey;
use crate::server::told::HAS_SYSTEM;

pub use crate::run::End;

pub mod agent;
pub mod boot_report;
pub mod config;
pub mod discover;
pub mod drivers;
pub mod enrol;
pub mod files;
pub mod metadata;
pub mod rare_drivers;
pub mod report;
pub mod run;
pub mod screen;
pub mod server;

/// Name of the file in [`Options::state`] in which a panic leaves its message for the next installer.
pub const PANIC: &str = "panic";

/// What [`run()`] needs to know about the machine.
pub struct Options {
    /// Identity and hardware of the machine.
    pub facts: Facts,
    /// Whether to set the clock. True only in the boot image, where nothing else sets it.
    pub set_clock: bool,
    /// A folder that is lost when the machine restarts.
    pub state: PathBuf,
    /// How the previous installer in this boot ended, with the message that its panic left in [`PANIC`], if any. That
    /// file is removed when a run begins.
    pub previous_exit: Option<String>,
    /// The machine's log.
    pub log: LogBook,
    /// Makes the machine that actions work on.
    pub machine: MakeMachine,
    /// Becomes true once the list of disks seems complete. Before that, only steps that name their disks start.
    pub disks_settled: watch::Receiver<bool>,
    /// The machine's own screen. The default tells nobody.
    pub screen: Screen,
    /// Return after the first run instead of waiting for the next one, and fail if the server refuses or cannot be
    /// reached.
    pub once: bool,
}

/// Enrols, then waits for runs and executes them. Returns when the machine is to be restarted, after the server has
/// stored the last event. Fails only on errors that waiting cannot fix.
pub async fn run(config: Config, options: Options) -> Result<End, ClientError> {
    if options.set_clock {
        clock::set(&config, &options.state.join(clock::SEEN)).await?;
    }
    let key = MachineKey::of_this_boot(&options.state)?;
    let screen = options.screen;
    let is_complete = *options.disks_settled.borrow();
    let session = Session::open(config, options.facts, key, screen.clone(), options.once).await?;
    if !is_complete {
        tokio::spawn(session.clone().tell_inventory(options.disks_settled.clone()));
    }
    let reporter = Reporter::start(session.clone(), options.log.clone());
    let after_failure = if options.once { "" } else { "; the machine stays up and waits for another run" };
    let runner = Runner {
        session: session.clone(),
        reporter: reporter.clone(),
        log: options.log,
        note: options.state.join("step.json"),
        after_failure,
        previous_exit: options.previous_exit,
        machine: options.machine,
        screen: screen.clone(),
        disks_settled: options.disks_settled,
    };
    let mut backoff = Backoff::default();
    // A run whose reports the server refuses. If the server hands it out again, it is not started again.
    let mut abandoned = None;
    info!("waiting for work");
    // For the person at the machine. The server knows more, and `status` shows it.
    let has_system = discover::has_partitions(&discover::Roots::default()) && !options.once;
    if has_system {
        info!("{HAS_SYSTEM}");
    }
    screen.change(|state| {
        state.has_system = has_system;
        state.doing = Doing::Idle;
    });
    loop {
        match session.client().workflow().await {
            Ok(Some(workflow)) if abandoned.as_ref() == Some(&workflow.run) => sleep(backoff.next_wait()).await,
            Ok(Some(workflow)) => {
                backoff.reset();
                screen.change(|state| (state.has_system, state.trouble) = (false, None));
                // Before the wait, in which nothing else would tell the server that the machine is there.
                reporter.begin(&workflow.run, workflow.next_seq);
                runner.wait_for_disks(&workflow.steps).await;
                // Removed here: an installer that ends during enrolment leaves the message for the next one, and later
                // the message would no longer describe how the current installer ends.
                let _ = std::fs::remove_file(options.state.join(PANIC));
                let mut end = runner.run(&workflow).await;
                match end {
                    End::Reboot | End::Kexec => screen.doing(Doing::Leaving),
                    End::Done => screen.doing(Doing::Done),
                    End::Failed => {}
                }
                if let Err(reason) = reporter.flush().await {
                    error!("run {}: {reason}{after_failure}", workflow.run);
                    screen.doing(Doing::Failed { step: None, reason: format!("the run is over: {reason}") });
                    abandoned = Some(workflow.run);
                    end = End::Failed;
                }
                if matches!(end, End::Reboot | End::Kexec) || options.once {
                    return Ok(end);
                }
                info!("waiting for work");
            }
            Ok(None) => {
                backoff.reset();
                screen.trouble(None);
            }
            Err(error) if options.once && error.code() == Some(ErrorCode::Decommissioned) => return Err(error),
            Err(error) if error.is_shut_out() => {
                sleep(backoff.next_wait()).await;
                session.reopen(&error).await?;
            }
            Err(error) => {
                let sentence = Failure::of(&error).in_one_line();
                warn!("{sentence}");
                screen.trouble(Some(&sentence));
                sleep(backoff.next_wait()).await;
            }
        }
    }
}

/// Waits up to `patience` for the first disk, because drivers load while the network comes up. Returns false if no disk
/// was found.
pub async fn wait_for_disks(list: impl Fn() -> usize, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while list() == 0 {
        if Instant::now() >= deadline {
            return false;
        }
        sleep(Duration::from_millis(100)).await;
    }
    true
}
