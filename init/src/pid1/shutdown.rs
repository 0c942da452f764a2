//! Restarts, powers off or boots another kernel: cleanly if possible, else by sysrq. Nothing else in slipway calls
//! reboot(2).

use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use rustix::system::{RebootCommand, reboot};

use super::kmsg::{Kmsg, Level};
use super::{EXIT_KEXEC, EXIT_REBOOT};

/// How PID 1 ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Reboot,
    /// Boots the loaded kernel, or restarts if none is loaded.
    Kexec,
    PowerOff,
}

impl End {
    /// Returns the end that the installer's exit status asks for. `None` if it asks for none.
    pub fn asked_for(exit_status: Option<i32>) -> Option<Self> {
        let status = exit_status.and_then(|status| u8::try_from(status).ok())?;
        match status {
            EXIT_REBOOT => Some(Self::Reboot),
            EXIT_KEXEC => Some(Self::Kexec),
            _ => None,
        }
    }
}

impl End {
    /// Says in words what happens next.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Reboot => "the machine restarts",
            Self::Kexec => "the kernel of the installed system starts",
            Self::PowerOff => "the machine powers off",
        }
    }
}

/// Time limit for sync(2), which a dead disk would block forever.
const SYNC: Duration = Duration::from_secs(20);
/// Time limit for reboot(2) to shut devices down.
const REBOOT: Duration = Duration::from_secs(30);
/// How long the console shows a fatal error. The installer can upload it in this time.
const FATAL: Duration = Duration::from_secs(15);

/// Makes ctrl-alt-del send SIGINT to PID 1 instead of restarting the machine immediately.
pub fn catch_ctrl_alt_del(log: &Kmsg) {
    if let Err(error) = reboot(RebootCommand::CadOff) {
        log.write(Level::Warning, &format!("taking over ctrl-alt-del: {error}"));
    }
}

/// Ends every process, flushes every disk, and restarts or powers off. Returns only if the kernel refused, with the
/// reason.
pub fn orderly(end: End) -> String {
    let log = Kmsg::open();
    // kill(-1) reaches every process except this one.
    if let Some(everybody) = Pid::from_raw(1) {
        let _ = kill_process_group(everybody, Signal::KILL);
    }
    let (done, finished) = mpsc::channel();
    let spawned = std::thread::Builder::new().spawn(move || {
        rustix::fs::sync();
        let _ = done.send(());
    });
    if spawned.is_err() || finished.recv_timeout(SYNC).is_err() {
        log.write(Level::Error, "a disk did not finish its last writes in 20 s; not waiting for it any longer");
    }
    let (command, word, key) = match end {
        End::Reboot | End::Kexec => (RebootCommand::Restart, "restarting", "b"),
        End::PowerOff => (RebootCommand::PowerOff, "switching off", "o"),
    };
    log.write(Level::Notice, if end == End::Kexec { "starting the loaded kernel" } else { word });
    // A driver that hangs during shutdown would block reboot(2) forever, so this thread forces the end by sysrq. If the
    // thread cannot start, reboot(2) may still work.
    let _ = std::thread::Builder::new().spawn(move || {
        std::thread::sleep(REBOOT);
        let _ = std::fs::write("/proc/sysrq-trigger", key);
    });
    if end == End::Kexec {
        // Returns only if no kernel is loaded. Devices are then unchanged.
        let refused = reboot(RebootCommand::Kexec).err().map(|error| error.to_string()).unwrap_or_default();
        log.write(Level::Error, &format!("the kernel to start is not loaded ({refused}); restarting the machine"));
    }
    match reboot(command) {
        Ok(()) => format!("{word}: reboot(2) returned without an error"),
        Err(error) => format!("{word}: {error}"),
    }
}

/// Logs the reason, waits so that people can read it and the installer can upload it, and restarts the machine by any
/// means. Never returns, because the kernel panics if PID 1 ends.
pub fn last_resort(reason: &str) -> ! {
    let log = Kmsg::open();
    log.write(Level::Error, reason);
    log.write(Level::Error, &format!("restarting the machine in {} s", FATAL.as_secs()));
    std::thread::sleep(FATAL);
    let _ = reboot(RebootCommand::Restart);
    let _ = std::fs::write("/proc/sysrq-trigger", "b");
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installer_asks_by_its_exit_status() {
        for (status, expect) in [
            (Some(100), Some(End::Reboot)),
            (Some(101), None),
            (Some(102), Some(End::Kexec)),
            (Some(0), None),
            (Some(1), None),
            (Some(100 + 256), None),
            (None, None),
        ] {
            assert_eq!(End::asked_for(status), expect, "{status:?}");
        }
    }
}
