//! Supervises the children of PID 1, and reaps orphans.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use std::os::fd::AsFd;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};

use super::kmsg::{Kmsg, Level};
use super::shutdown::End;

/// A child that ran at least this long is restarted after [`FIRST_WAIT`].
const STABLE: Duration = Duration::from_secs(60);
/// Wait before a child is restarted. It doubles up to [`SLOWEST`] while the child keeps ending early.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const SLOWEST: Duration = Duration::from_secs(30);
/// How long a child may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are kept of an output line without an end.
const LONGEST_LINE: usize = 16 << 10;
/// Maximum number of reads of a child's output before other work gets a turn.
const READS_AT_ONCE: usize = 16;

/// A supervised child that ended.
pub struct Ended {
    pub name: &'static str,
    pub status: WaitStatus,
}

pub struct Children {
    log: Kmsg,
    list: Vec<Child>,
}

struct Child {
    name: &'static str,
    arguments: Vec<String>,
    state: State,
    /// How the previous process of this child ended. Passed to the next process.
    previous_exit: Option<String>,
    wait: Duration,
}

enum State {
    Running { pid: Pid, since: Instant, output: Output },
    Due { at: Instant },
}

struct Output {
    pipe: OwnedFd,
    unfinished: Vec<u8>,
    closed: bool,
}

impl Children {
    pub fn new(log: Kmsg) -> Self {
        Self { log, list: Vec::new() }
    }

    /// Adds a child: this program with the given arguments.
    pub fn add(&mut self, name: &'static str, arguments: &[&str]) {
        self.list.push(Child {
            name,
            arguments: arguments.iter().map(|a| (*a).to_owned()).collect(),
            state: State::Due { at: Instant::now() },
            previous_exit: None,
            wait: FIRST_WAIT,
        });
    }

    /// Starts the children that are due.
    pub fn start_due(&mut self) {
        for child in &mut self.list {
            if matches!(child.state, State::Due { at } if at <= Instant::now()) {
                child.start(&self.log);
            }
        }
    }

    /// Returns the time until the next child is due. `None` if no child waits to be started.
    pub fn next_start(&self) -> Option<Duration> {
        let due = |child: &Child| match child.state {
            State::Due { at } => Some(at.saturating_duration_since(Instant::now())),
            State::Running { .. } => None,
        };
        self.list.iter().filter_map(due).min()
    }

    /// Returns the file descriptors to poll for output.
    pub fn outputs(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.list.iter().filter_map(|child| match &child.state {
            State::Running { output, .. } if !output.closed => Some(output.pipe.as_fd()),
            _ => None,
        })
    }

    /// Copies the children's output to the log.
    pub fn pass_output_on(&mut self) {
        for child in &mut self.list {
            if let State::Running { output, .. } = &mut child.state {
                output.pass_on(child.name, &self.log);
            }
        }
    }

    /// Reaps every process that ended, including orphans, and returns the supervised children among them.
    pub fn reap(&mut self) -> Vec<Ended> {
        let mut ended = Vec::new();
        // Nothing else in PID 1 waits for children, so this does not take a status from another waiter.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let Some(child) =
                self.list.iter_mut().find(|c| matches!(c.state, State::Running { pid: running, .. } if running == pid))
            else {
                continue;
            };
            child.ended(status, &self.log);
            ended.push(Ended { name: child.name, status });
        }
        ended
    }

    /// Sends SIGTERM to every child, waits, then sends SIGKILL to those still running.
    pub fn stop_all(&mut self) {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + GRACE;
        while self.any_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
            self.pass_output_on();
            self.reap();
        }
        self.signal(Signal::KILL);
    }

    fn any_running(&self) -> bool {
        self.list.iter().any(|c| matches!(c.state, State::Running { .. }))
    }

    fn signal(&self, signal: Signal) {
        for child in &self.list {
            if let State::Running { pid, .. } = child.state {
                // The child may have ended meanwhile.
                let _ = kill_process(pid, signal);
            }
        }
    }
}

impl Child {
    fn start(&mut self, log: &Kmsg) {
        self.state = match self.spawn() {
            Ok((pid, pipe)) => State::Running {
                pid,
                since: Instant::now(),
                output: Output { pipe, unfinished: Vec::new(), closed: false },
            },
            Err(error) => {
                log.write(Level::Error, &format!("starting {}: {error}", self.name));
                self.due()
            }
        };
    }

    fn spawn(&self) -> std::io::Result<(Pid, OwnedFd)> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Only PID 1's end is non-blocking: a child that prints faster than PID 1 reads must block, not lose lines.
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty())?;
        let mut command = Command::new("/proc/self/exe");
        command.args(&self.arguments);
        if let Some(previous) = &self.previous_exit {
            command.args(["--previous-exit", previous]);
        }
        let child = command
            .env_clear()
            .env("PATH", "/sbin:/bin")
            .env("SLIPWAY_LOG", "kmsg")
            .stdin(Stdio::null())
            .stdout(Stdio::from(theirs.try_clone()?))
            .stderr(Stdio::from(theirs))
            .spawn()?;
        // Dropped without waiting, because `reap` waits for all processes.
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        pid.map(|pid| (pid, ours)).ok_or_else(|| std::io::Error::other("the kernel gave no process id"))
    }

    fn ended(&mut self, status: WaitStatus, log: &Kmsg) {
        let how = describe(status);
        if let State::Running { since, output, .. } = &mut self.state {
            output.pass_on(self.name, log);
            output.finish(self.name, log);
            if since.elapsed() >= STABLE {
                self.wait = FIRST_WAIT;
            }
        }
        match End::asked_for(status.exit_status()).filter(|_| self.name == "installer") {
            Some(end) => log.write(Level::Info, &format!("the installer is done: {}", end.in_words())),
            None => log.write(Level::Notice, &format!("{} ended: {how}", self.name)),
        }
        self.previous_exit = Some(how);
        self.state = self.due();
    }

    fn due(&mut self) -> State {
        let at = Instant::now() + self.wait;
        self.wait = (self.wait * 2).min(SLOWEST);
        State::Due { at }
    }
}

impl Output {
    fn pass_on(&mut self, name: &str, log: &Kmsg) {
        let mut buffer = [0u8; 4096];
        // A child that prints without pause must not block PID 1's other work. poll() reports the remaining output.
        for _ in 0..READS_AT_ONCE {
            if self.closed {
                break;
            }
            match rustix::io::read(&self.pipe, &mut buffer) {
                Ok(0) => self.closed = true,
                Ok(length) => self.unfinished.extend_from_slice(buffer.get(..length).unwrap_or_default()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => break,
            }
            while let Some(end) = self.unfinished.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unfinished.drain(..=end).collect();
                log.pass_on(name, String::from_utf8_lossy(&line).trim_end());
            }
            if self.unfinished.len() > LONGEST_LINE {
                self.finish(name, log);
            }
        }
    }

    fn finish(&mut self, name: &str, log: &Kmsg) {
        if !self.unfinished.is_empty() {
            let line = std::mem::take(&mut self.unfinished);
            log.pass_on(name, String::from_utf8_lossy(&line).trim_end());
        }
    }
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(number)) => match nix::sys::signal::Signal::try_from(number) {
            Ok(signal) => format!("killed by signal {number} ({signal})"),
            Err(_) => format!("killed by signal {number}"),
        },
        (None, None) => format!("{status:?}"),
    }
}
