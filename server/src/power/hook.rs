//! Hooks: programs that switch machines. They are called as Pacemaker calls fence agents (ClusterLabs fence-agents,
//! "Fence Agent API"), so that the agents of a distribution can be used as they are.
//!
//! A hook reads `KEY=VALUE` lines from standard input. `action` is `on`, `off` or `status`. It ends with status 0 if it
//! did what it was told, or if the machine is on. Asked for the status, it ends with 2 if the machine is off, and with
//! 3 if it cannot tell. Whatever else it ends with is a failure, and the last line that it printed is the reason.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use slipway_protocol::Secret;
use slipway_protocol::shared::printable;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use crate::store::nodes::Node;

/// Where hooks are looked for in turn, unless the server is told otherwise: those of the site, and those of the
/// package.
pub const FOLDERS: [&str; 2] = ["/etc/slipway/power", "/usr/lib/slipway/power"];
/// Seconds after which a hook is stopped by default.
pub const LIMIT: u32 = 30;
/// Most seconds that a hook may take.
pub const MAX_LIMIT: u32 = 300;
/// Seconds between the signal that asks a hook to end and the one that ends it.
const GRACE: u32 = 2;
/// How much longer is waited for what ends the hook.
const LEEWAY: Duration = Duration::from_secs(1);
/// How long is waited for what a hook that ended has still to print.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Bytes of a hook's output that are looked at: the last ones.
const TAIL: usize = 8 << 10;
/// Most characters of a reason.
const MAX_REASON: usize = 300;
/// The environment of a hook has nothing else, so that it works in the same way on each server.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a hook is told.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// Name of the hook.
    pub hook: &'a str,
    /// Keys and values, without secrets.
    pub lines: Vec<(String, String)>,
    /// The value of `password`.
    pub password: Option<&'a Secret>,
    /// Seconds after which the hook is stopped.
    pub limit: u32,
}

/// Returns how long a hook with this limit may run at most, whatever becomes of the server.
pub fn longest(limit: u32) -> Duration {
    Duration::from_secs((limit + GRACE).into()) + LEEWAY
}

/// Whether a text is the name of a hook: a file name that is not hidden.
pub fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=64).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(is_plain)
}

/// How a hook ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit status.
    pub code: i32,
    /// The last line that it printed, without the password.
    said: String,
}

impl Ended {
    /// Says that the hook failed for an action.
    pub fn failed(&self, action: &str) -> Failure {
        let said = if self.said.is_empty() { "it printed nothing" } else { &self.said };
        Failure::new(format!("the hook failed with status {} for `action={action}`: {said}", self.code))
    }
}

/// Why a provider did not do what it was told.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The reason, for people.
    pub reason: String,
    /// Whether it is of no use to ask again soon.
    pub is_final: bool,
}

impl Failure {
    /// A failure that may be over soon.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_final: false }
    }

    /// A failure that lasts until somebody does something about it, or that took long enough.
    pub fn lasting(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_final: true }
    }
}

/// Runs a hook. Fails if it cannot be run, or does not end in time.
pub async fn run(folders: &[PathBuf], call: Call<'_>) -> Result<Ended, Failure> {
    let program = find(folders, call.hook).map_err(Failure::lasting)?;
    let mut input: String = call.lines.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
    if let Some(password) = call.password {
        input += &format!("password={}\n", password.reveal());
    }
    // timeout(1) ends the hook also if this server is killed meanwhile. Another server relies on that.
    let mut command = Command::new("timeout");
    command.arg(format!("--kill-after={GRACE}")).arg(call.limit.to_string()).arg(&program);
    command.env_clear().env("PATH", PATH).env("LC_ALL", "C").current_dir("/").process_group(0);
    let input = whole(&input).map_err(|error| Failure::new(format!("storing the hook's input failed: {error}")))?;
    command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().map_err(|error| Failure::new(format!("timeout(1) could not be started: {error}")))?;
    let group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (mut out, mut err) = (Tail::default(), Tail::default());
    let reading = async { tokio::join!(out.fill(stdout), err.fill(stderr)) };
    let ended = {
        let (mut reading, mut waiting) = (std::pin::pin!(reading), std::pin::pin!(child.wait()));
        let both = async {
            tokio::select! {
                ended = &mut waiting => {
                    // What it left running may keep its output open.
                    let _ = tokio::time::timeout(LAST_WORDS, &mut reading).await;
                    ended
                }
                _ = &mut reading => waiting.await,
            }
        };
        tokio::time::timeout(longest(call.limit), both).await
    };
    drop(group);
    let too_late = || Failure::lasting(format!("the hook {:?} did not end within {} s", call.hook, call.limit));
    let status = ended
        .map_err(|_| too_late())?
        .map_err(|error| Failure::new(format!("waiting for the hook failed: {error}")))?;
    let said = [err, out].iter().find_map(|tail| tail.last_line(call.password)).unwrap_or_default();
    match code(status) {
        // What timeout(1) ends with if it had to end the hook, by the one signal or the other.
        124 | 137 => Err(too_late()),
        code => Ok(Ended { code, said }),
    }
}

/// Returns a file with the input of a hook, in memory. The input is whole before the hook starts: a hook that outlives
/// a killed server must not act on the half of it, or on nothing.
fn whole(input: &str) -> std::io::Result<File> {
    // Some hosts refuse files that could be executed, and kernels before 6.3 do not know this flag.
    let sealed = memfd_create("hook", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL);
    let mut file = File::from(sealed.or_else(|_| memfd_create("hook", MemfdFlags::CLOEXEC))?);
    file.write_all(input.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Returns what a hook is told about a machine. `options` are those of its node.
pub fn lines(node: &Node, options: &BTreeMap<String, String>, action: &str, is_boot: bool) -> Vec<(String, String)> {
    let identity = &node.identity;
    let macs = Some(identity.macs.join(",")).filter(|macs| !macs.is_empty());
    let of_machine = [
        ("node", Some(&node.id)),
        ("node_name", node.name.as_ref()),
        ("machine_uuid", identity.uuid.as_ref()),
        ("machine_serial", identity.serial.as_ref()),
        ("machine_macs", macs.as_ref()),
    ];
    let of_machine = of_machine.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.clone())));
    // A machine gives its serial number itself, and a line break in it would begin another line.
    let of_machine = of_machine.filter(|(_, value)| !value.contains(char::is_control));
    let options = options.iter().map(|(key, value)| (key.clone(), value.clone()));
    let action = [("action", Some(action)), ("boot", is_boot.then_some("network"))];
    let action = action.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
    of_machine.chain(options).chain(action).collect()
}

/// Returns the exit status, or 128 and the number of the signal as shells do.
fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Returns the path of a hook.
fn find(folders: &[PathBuf], hook: &str) -> Result<PathBuf, String> {
    let Some(path) = folders.iter().map(|folder| folder.join(hook)).find(|path| path.exists()) else {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        return Err(format!("host {host} has no hook {hook:?} in {}", in_words(folders)));
    };
    let mode = path.metadata().map_err(|error| format!("reading {path:?} failed: {error}"))?;
    let mode = if mode.is_file() { mode.permissions().mode() } else { 0 };
    if mode & 0o111 == 0 {
        return Err(format!("the hook {path:?} is not a program: it must be a file that is executable"));
    }
    if mode & 0o022 != 0 {
        return Err(format!("the hook {path:?} may be written by anybody or by a group: run `chmod go-w` on it"));
    }
    Ok(path)
}

fn in_words(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| format!("{folder:?}")).collect::<Vec<_>>().join(" or ")
}

/// The processes of a hook. They end with it.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// The end of what a program prints.
#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
}

impl Tail {
    /// Reads to the end, and keeps what is last.
    async fn fill(&mut self, from: Option<impl AsyncRead + Unpin>) {
        let Some(mut from) = from else { return };
        let mut part = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut part).await {
            self.bytes.extend_from_slice(&part[..read]);
            let old = self.bytes.len().saturating_sub(TAIL);
            self.bytes.drain(..old);
        }
    }

    /// Returns the last line that is not blank, with the password replaced.
    fn last_line(&self, password: Option<&Secret>) -> Option<String> {
        let mut text = String::from_utf8_lossy(&self.bytes).into_owned();
        if let Some(password) = password.filter(|password| !password.is_empty()) {
            text = text.replace(password.reveal(), "(secret)");
        }
        let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
        // The beginning of what is kept may be a part of the password.
        let from = line.char_indices().rev().nth(MAX_REASON).map_or(0, |(at, _)| at);
        Some(printable::line(&line[from..]).into_owned())
    }
}
