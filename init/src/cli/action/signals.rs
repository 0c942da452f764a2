//! Stops an action that is run by hand: the first signal, or the end of its time, ends it in order; a second signal
//! ends the program at once.

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

/// Ctrl-C, `kill`, and the end of the terminal.
const STOPPING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// The status of a process that a signal ended, as shells show it, is the signal's number and this.
const BY_SIGNAL: i32 = 128;

/// What stands for the end of the time in the place of a signal's number.
const TIME_IS_UP: i32 = -1;
/// The status of a program whose time is up, as timeout(1) has it.
const TIMED_OUT: u8 = 124;

/// The number of the signal that stops the action, once there is one.
pub(super) struct Stopped(Arc<AtomicI32>);

/// What stopped the action.
pub(super) struct Stop {
    /// In words, after "stopped".
    pub(super) why: String,
    /// The exit status.
    pub(super) status: ExitCode,
}

/// Has signals stop the action. To be called before the action starts threads, which take over the blocked signals.
/// Programs that it starts take them over too: the signals are for slipway, which ends its programs in order.
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
            if number.swap(signal as i32, Ordering::AcqRel) > 0 {
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
    /// Stops the action after this time.
    pub(super) fn after(&self, limit: Duration, cancel: Cancel) {
        let number = Arc::clone(&self.0);
        thread::spawn(move || {
            thread::sleep(limit);
            if number.compare_exchange(0, TIME_IS_UP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                cancel.set();
                cli::print_stderr(&format!("the time is up ({}): stopping", duration::words(limit)));
            }
        });
    }

    /// What stopped the action; none if nothing did.
    pub(super) fn by(&self) -> Option<Stop> {
        let number = self.0.load(Ordering::Acquire);
        if number == TIME_IS_UP {
            return Some(Stop { why: "because its time was up (--timeout)".to_owned(), status: TIMED_OUT.into() });
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
