//! Stops an action that is run by hand: the first signal ends it in order, a second one ends the program at once.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use nix::sys::signal::{SigSet, Signal};
use slipway_actions::Cancel;

use crate::cli;

/// Ctrl-C, `kill`, and the end of the terminal.
const STOPPING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// The status of a process that a signal ended, as shells show it, is the signal's number and this.
const BY_SIGNAL: i32 = 128;

/// The signal that stops the action, once there is one.
pub(super) struct Stopped(Arc<AtomicI32>);

/// Has signals stop the action. To be called before the action starts threads, which take over the blocked signals.
pub(super) fn stop_on_signal(cancel: Cancel) -> Stopped {
    let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let wanted: SigSet = STOPPING.into_iter().filter(|signal| ignored & (1 << (*signal as i32 - 1)) == 0).collect();
    let number = Arc::new(AtomicI32::new(0));
    let stopped = Stopped(Arc::clone(&number));
    // Without these, signals end the program as they always do.
    if wanted.iter().next().is_none() || wanted.thread_block().is_err() {
        return stopped;
    }
    thread::spawn(move || {
        while let Ok(signal) = wanted.wait() {
            if number.swap(signal as i32, Ordering::AcqRel) != 0 {
                std::process::exit(BY_SIGNAL + signal as i32);
            }
            cancel.set();
            cli::print_stderr(&format!("{signal}: stopping; a second signal ends slipway at once"));
        }
    });
    stopped
}

/// The signals that are ignored, for example because of nohup, from /proc/PID/status (proc_pid_status(5)). They stay
/// so.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

impl Stopped {
    /// The name of the signal and the exit status; none if there was no signal.
    pub(super) fn by(&self) -> Option<(&'static str, ExitCode)> {
        let number = self.0.load(Ordering::Acquire);
        let signal = STOPPING.into_iter().find(|signal| *signal as i32 == number)?;
        let status = u8::try_from(BY_SIGNAL + number).unwrap_or(u8::MAX);
        Some((signal.as_str(), ExitCode::from(status)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_ignored_are_known() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"), 1 << 12 | 1);
        assert_eq!(ignored(""), 0);
    }
}
