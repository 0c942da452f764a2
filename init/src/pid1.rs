//! PID 1 of the boot image: mounts file systems, loads drivers, supervises three children, and shuts down cleanly.
//!
//! PID 1 does no TLS and parses no network input. Its children do, so that their crash cannot end PID 1. The only log
//! is the kernel's: /dev/kmsg reaches every kernel console, and the installer uploads it.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::kmsg::{Kmsg, Level};
use self::supervise::{Children, Ended};

mod clock;
mod coldplug;
mod console;
mod kmsg;
mod medium;
mod mounts;
mod shutdown;
mod supervise;

/// Exit status by which the installer asks PID 1 to restart the machine. It is outside the ranges that sysexits.h and
/// shells use.
pub const EXIT_REBOOT: u8 = 100;
/// Exit status that asks PID 1 to boot the loaded kernel without the firmware. Not 101, which is the exit status of a
/// Rust program that panicked.
pub const EXIT_KEXEC: u8 = 102;
/// This file exists once the drivers of all devices present at the start are loaded.
pub const DRIVERS_LOADED: &str = "/run/slipway/drivers-loaded";
/// File with the number of the newest uevent whose device has its drivers loaded. `/sys/kernel/uevent_seqnum` has the
/// number of the newest uevent of all.
pub const UEVENTS_HANDLED: &str = "/run/slipway/uevents-handled";
/// Interval at which a machine that does not continue repeats the reason.
const REPEAT: Duration = Duration::from_secs(60);

/// Runs as PID 1 of the boot image until the machine restarts or powers off.
pub fn run() -> ! {
    std::panic::set_hook(Box::new(|info| {
        shutdown::last_resort(&format!("pid 1 panicked: {info}"));
    }));
    let reason = match boot() {
        Ok(end) => shutdown::orderly(end),
        Err(error) => error,
    };
    shutdown::last_resort(&format!("pid 1 cannot continue: {reason}"))
}

/// Runs until the machine is to be restarted or powered off. The error is a whole sentence for the console.
fn boot() -> Result<shutdown::End, String> {
    let mount_errors = mounts::mount_all();
    console::open();
    let log = Kmsg::open();
    let since_kernel = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    log.write(
        Level::Info,
        &format!(
            "slipway {} is pid 1, {}.{:03} s after the kernel started",
            env!("CARGO_PKG_VERSION"),
            since_kernel.tv_sec,
            since_kernel.tv_nsec / 1_000_000
        ),
    );
    for error in mount_errors {
        log.write(Level::Error, &error);
    }
    clock::never_before_build(&log);
    shutdown::catch_ctrl_alt_del(&log);

    // Blocked before any thread or child exists, so that no other thread receives the signals. Children start with them
    // blocked and unblock them first (see `cli`).
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGPWR] {
        signals.add(signal);
    }
    signals.thread_block().map_err(|e| format!("blocking signals: {e}"))?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .map_err(|e| format!("opening a signalfd: {e}"))?;

    // Checked before any driver can find a network card.
    if let Err(mismatch) = medium::check() {
        return hold(&mismatch, &signals, &log);
    }
    coldplug::start(log.clone());

    let init = format!("{}.{:03}", since_kernel.tv_sec, since_kernel.tv_nsec / 1_000_000);
    let mut children = Children::new(log.clone());
    children.add("network", &["network"]);
    children.add("installer", &["installer", "--init-at", &init]);
    children.add("screen", &["screen"]);
    loop {
        children.start_due();
        wait_for_news(&signals, &children, None)?;
        children.pass_output_on();
        if let Some(end) = asked_to_end(&signals, &log) {
            children.stop_all();
            return Ok(end);
        }
        for Ended { name, status } in children.reap() {
            let end = shutdown::End::asked_for(status.exit_status()).filter(|_| name == "installer");
            if let Some(end) = end {
                children.stop_all();
                return Ok(end);
            }
        }
    }
}

/// Repeats a sentence for people who connect to the console later, until somebody restarts the machine or powers it
/// off.
fn hold(sentence: &str, signals: &SignalFd, log: &Kmsg) -> Result<shutdown::End, String> {
    let nobody = Children::new(log.clone());
    loop {
        log.write(Level::Error, sentence);
        log.write(Level::Error, "this machine does not use its network; restart it to continue");
        wait_for_news(signals, &nobody, Some(REPEAT))?;
        if let Some(end) = asked_to_end(signals, log) {
            return Ok(end);
        }
    }
}

/// Reads the received signals. Returns how the machine is to end, if they ask for an end.
fn asked_to_end(signals: &SignalFd, log: &Kmsg) -> Option<shutdown::End> {
    while let Ok(Some(signal)) = signals.read_signal() {
        match Signal::try_from(signal.ssi_signo as i32) {
            Ok(Signal::SIGTERM | Signal::SIGINT) => {
                log.write(Level::Notice, "asked to restart the machine");
                return Some(shutdown::End::Reboot);
            }
            Ok(Signal::SIGPWR) => {
                log.write(Level::Notice, "asked to power the machine off");
                return Some(shutdown::End::PowerOff);
            }
            _ => {}
        }
    }
    None
}

/// Sleeps until a signal arrives, a child prints something, or a child is due to start, but no longer than `longest`.
fn wait_for_news(signals: &SignalFd, children: &Children, longest: Option<Duration>) -> Result<(), String> {
    let mut fds = vec![PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    fds.extend(children.outputs().map(|output| PollFd::from_borrowed_fd(output, PollFlags::IN)));
    let timeout = children.next_start().or(longest).map(|wait: Duration| Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(wait.subsec_nanos()),
    });
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(format!("waiting on signalfd {}: {error}", signals.as_raw_fd())),
    }
}
