//! Stops an action that is run by hand. The first signal, or the time limit, stops it cleanly; a second signal ends
//! slipway immediately.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use slipway_actions::Cancel;
use slipway_protocol::shared::duration;

use crate::cli;

/// The signals of Ctrl-C, `kill` and a closed terminal.
const STOPPING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// Exit status of a process that a signal ended, minus the signal's number, as in shells.
const BY_SIGNAL: i32 = 128;

/// Stored instead of a signal's number when the time limit is reached.
const TIME_IS_UP: i32 = -1;
/// Exit status when the time limit is reached, the same as timeout(1)'s.
const TIMED_OUT: u8 = 124;

/// The number of the signal that stops the action, or [`TIME_IS_UP`]; 0 at first.
pub(super) struct Stopped(Arc<AtomicI32>);

/// What stopped the action.
pub(super) struct Stop {
    /// In words that follow "stopped", such as "by SIGTERM".
    pub(super) why: String,
    /// The exit status.
    pub(super) status: ExitCode,
}

/// Makes signals stop the action. Call it before the action starts threads, because threads inherit the blocked
/// signals. So do programs that the action starts: only slipway receives the signals, and it stops its programs
/// cleanly.
pub(super) fn stop_on_signal(cancel: Cancel) -> Stopped {
    let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let wanted: SigSet = STOPPING.into_iter().filter(|signal| ignored & (1 << (*signal as i32 - 1)) == 0).collect();
    let number = Arc::new(AtomicI32::new(0));
    let stopped = Stopped(Arc::clone(&number));
    // If this fails, signals end the program as usual.
    if wanted.iter().next().is_none() || wanted.thread_block().is_err() {
        return stopped;
    }
    thread::spawn(move || {
        while let Ok(signal) = wanted.wait() {
            if number.swap(signal as i32, Ordering::AcqRel) > 0 {
                std::process::exit(BY_SIGNAL + signal as i32);
            }
            cancel.set();
            cli::print_stderr(&format!("{signal}: stopping; a second signal ends slipway at once"));
        }
    });
    stopped
}

/// Reads the ignored signals from /proc/PID/status (proc_pid_status(5)), as a mask. They stay ignored, for example
/// those that nohup ignores.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

impl Stopped {
    /// Stops the action after this time.
    pub(super) fn after(&self, limit: Duration, cancel: Cancel) {
        let number = Arc::clone(&self.0);
        thread::spawn(move || {
            thread::sleep(limit);
            if number.compare_exchange(0, TIME_IS_UP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                cancel.set();
                cli::print_stderr(&format!("the time limit ({}) is reached: stopping", duration::words(limit)));
            }
        });
    }

    /// Returns what stopped the action. `None` if nothing did.
    pub(super) fn by(&self) -> Option<Stop> {
        let number = self.0.load(Ordering::Acquire);
        if number == TIME_IS_UP {
            return Some(Stop {
                why: "because its time limit was reached (--timeout)".to_owned(),
                status: TIMED_OUT.into(),
            });
        }
        let signal = STOPPING.into_iter().find(|signal| *signal as i32 == number)?;
        let status = u8::try_from(BY_SIGNAL + number).unwrap_or(u8::MAX);
        Some(Stop { why: format!("by {}", signal.as_str()), status: status.into() })
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
