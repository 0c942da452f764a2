//! The machine's side of an installation from power-on to the installed system: identify the machine, enrol, wait for
//! work, run it, report it.
//!
//! No code here opens a disk (`slipway-actions` does) or restarts the machine ([`run()`] returns that it is to be
//! restarted).

use std::path::{Path, PathBuf};
use std::time::Duration;

use slipway_protocol::ErrorCode;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::client::ClientError;
use crate::config::Config;
use crate::enrol::{Facts, Session};
use crate::log_book::LogBook;
use crate::machine_key::MachineKey;
use crate::reporter::Reporter;
use crate::run::{MakeMachine, Runner};
use crate::told::{HAS_SYSTEM, Told};
use tracing::{error, info, warn};

pub use crate::run::End;

pub mod backoff;
pub mod boot_report;
mod capture;
pub mod client;
pub mod clock;
pub mod command_line;
pub mod config;
pub mod discover;
pub mod enrol;
pub mod files;
pub mod link;
pub mod log_book;
pub mod machine_key;
pub mod modalias;
pub mod module_tables;
pub mod oem_strings;
pub mod rare_drivers;
pub mod reach;
pub mod reporter;
pub mod run;
pub mod tls;
pub mod told;
pub mod tpm;

/// Name of the file in [`Options::state`] in which a panic leaves its message for the next installer.
pub const PANIC: &str = "panic";

/// What [`run()`] needs to know about the machine.
pub struct Options {
    /// Identity and hardware of the machine.
    pub facts: Facts,
    /// Whether to set the clock: only in the boot image, where nothing else sets it.
    pub set_clock: bool,
    /// A folder that is lost when the machine restarts.
    pub state: PathBuf,
    /// How the previous installer in this boot ended. If its panic left a message in [`PANIC`], with that message; the
    /// file is removed when a run begins.
    pub previous_exit: Option<String>,
    /// The log of the machine.
    pub log: LogBook,
    /// Makes the machine that actions work on.
    pub machine: MakeMachine,
    /// Becomes true once the list of disks seems complete. Steps do not start before, unless they name their disks.
    pub disks_settled: watch::Receiver<bool>,
    /// Return after the first run instead of waiting for the next, and give up if the server refuses or cannot be
    /// reached.
    pub once: bool,
}

/// The whole flow. Returns when the machine is to be left, after the server has stored the last event. Fails only on
/// errors that waiting cannot fix.
pub async fn run(config: Config, options: Options) -> Result<End, ClientError> {
    if options.set_clock {
        set_clock(&config, &options.state.join(clock::SEEN)).await?;
    }
    let key = MachineKey::of_this_boot(&options.state)?;
    let session = Session::open(config, options.facts, key, options.once).await?;
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
        disks_settled: options.disks_settled,
    };
    let mut backoff = Backoff::default();
    // A run whose reports the server refuses. The server may hand it out again, but it is not started again.
    let mut abandoned = None;
    info!("waiting for work");
    // The server knows more, and `status` says it. This is for who stands at the machine.
    if discover::has_partitions(&discover::Roots::default()) && !options.once {
        info!("{HAS_SYSTEM}");
    }
    loop {
        match session.client().workflow().await {
            Ok(Some(workflow)) if abandoned.as_ref() == Some(&workflow.run) => sleep(backoff.next_wait()).await,
            Ok(Some(workflow)) => {
                backoff.reset();
                runner.wait_for_disks(&workflow.steps).await;
                // Not before: an installer that ends while it enrols leaves it for the next one. Not later: it does not
                // explain how this installer ends.
                let _ = std::fs::remove_file(options.state.join(PANIC));
                let mut end = runner.run(&workflow).await;
                if let Err(reason) = reporter.flush().await {
                    error!("run {}: {reason}{after_failure}", workflow.run);
                    abandoned = Some(workflow.run);
                    end = End::Failed;
                }
                if matches!(end, End::Reboot | End::Kexec) || options.once {
                    return Ok(end);
                }
                info!("waiting for work");
            }
            Ok(None) => backoff.reset(),
            Err(error) if options.once && error.code() == Some(ErrorCode::Decommissioned) => return Err(error),
            Err(error) if is_shut_out(&error) => {
                sleep(backoff.next_wait()).await;
                session.reopen(&error).await?;
            }
            Err(error) => {
                warn!("{}", one_line(&error));
                sleep(backoff.next_wait()).await;
            }
        }
    }
}

/// Whether the node's credentials are useless: unknown to the server, or the node was decommissioned.
pub(crate) fn is_shut_out(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::Unauthenticated | ErrorCode::Decommissioned))
}

/// Asks for the time until the server answers. This first contact shows whether the server can be trusted.
pub(crate) async fn set_clock(config: &Config, seen: &Path) -> Result<(), ClientError> {
    let mut backoff = Backoff::default();
    let mut told = Told::default();
    loop {
        match clock::set_from_server(config, seen).await {
            Ok(_) => return Ok(()),
            Err(failure) if failure.is_transient() => {
                let sentence = one_line(&failure);
                if told.is_due(&sentence, Instant::now()) {
                    error!("{sentence}");
                }
                sleep(backoff.next_wait()).await;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Waits up to `patience` for the first disk, because drivers load while the network comes up. False if none was found.
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

/// An error and its causes in one line, safe for a terminal: the server's own texts may be among them.
pub fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some libraries include the cause in their own message.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    slipway_protocol::printable::line(&text).into_owned()
}
