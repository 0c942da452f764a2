//! What happens between power-on and the installed system, seen from the machine: find out who it is, enrol, wait for work,
//! do it, report it.
//!
//! Nothing here opens a disk: that is `slipway-actions`. Nothing here restarts the machine: [`run()`] returns that it is to be.

use std::path::PathBuf;
use std::time::Duration;

use slipway_protocol::ErrorCode;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::client::ClientError;
use crate::config::Config;
use crate::enrol::{Facts, Session};
use crate::log_book::LogBook;
use crate::reporter::Reporter;
use crate::run::{MakeMachine, Runner};
use crate::told::Told;
use tracing::{error, info, warn};

pub use crate::run::End;

pub mod backoff;
pub mod boot_report;
mod capture;
pub mod client;
pub mod clock;
pub mod config;
pub mod discover;
pub mod enrol;
pub mod files;
pub mod link;
pub mod log_book;
pub mod oem_strings;
pub mod reporter;
pub mod run;
pub mod tls;
mod told;

/// What [`run()`] needs to know of the machine it runs on.
pub struct Options {
    /// Who and what the machine is.
    pub facts: Facts,
    /// Whether the clock may be set: in the micro-OS, where nobody else does.
    pub set_clock: bool,
    /// A folder that does not survive a restart of the machine.
    pub state: PathBuf,
    /// How the installer before this one ended, in this boot.
    pub previous_exit: Option<String>,
    /// The log of the machine.
    pub log: LogBook,
    /// What actions work on.
    pub machine: MakeMachine,
    /// Becomes true when the machine has found its disks, as far as anybody can tell. A rule that takes the smallest of them is
    /// not asked before.
    pub disks_settled: watch::Receiver<bool>,
    /// Return after the first run instead of waiting for the next, and give up where the server cannot be reached or refuses.
    pub once: bool,
}

/// The whole flow. Returns when the machine is to be left, after the server has stored the last event; fails only on what
/// no waiting can change.
pub async fn run(config: Config, mut options: Options) -> Result<End, ClientError> {
    if options.set_clock {
        set_clock(&config).await?;
    }
    let session = Session::open(config, options.facts, options.once).await?;
    let reporter = Reporter::start(session.clone(), options.log.clone());
    let runner = Runner {
        session: session.clone(),
        reporter: reporter.clone(),
        log: options.log,
        note: options.state.join("step.json"),
        previous_exit: options.previous_exit,
        machine: options.machine,
    };
    let mut backoff = Backoff::default();
    // A run the server takes no reports of, and may hand out again: it is not begun again.
    let mut abandoned = None;
    info!("waiting for work");
    loop {
        match session.client().workflow().await {
            Ok(Some(workflow)) if abandoned.as_ref() == Some(&workflow.run) => sleep(backoff.next_wait()).await,
            Ok(Some(workflow)) => {
                backoff.reset();
                // The sender lives as long as the machine; without one there is nothing to wait for.
                let _ = options.disks_settled.wait_for(|settled| *settled).await;
                let mut end = runner.run(&workflow).await;
                if let Err(reason) = reporter.flush().await {
                    error!("run {}: {reason}; the machine holds and waits for another", workflow.run);
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

/// Whether the node's credentials are worth nothing any more: they are not known, or an operator took the node out of service.
pub(crate) fn is_shut_out(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::Unauthenticated | ErrorCode::Decommissioned))
}

/// Asks for the time until the server answers: the first contact, which tells whether it can be trusted.
async fn set_clock(config: &Config) -> Result<(), ClientError> {
    let mut backoff = Backoff::default();
    let mut told = Told::default();
    loop {
        match clock::set_from_server(&config.server, &config.ca).await {
            Ok(()) => return Ok(()),
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

/// Waits, bounded, until the kernel has found a disk: drivers load while the network comes up.
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

/// An error and its causes in one line, the way a log or a person wants it.
pub fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some libraries repeat their cause in their own message.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}
