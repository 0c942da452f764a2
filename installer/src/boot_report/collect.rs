//! Collects the log of a boot. Each part is limited in bytes and time. If a part is missing, the log says why.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use slipway_protocol::node::boot_report::{MAX_FAILED_UNITS, is_unit_name};
use slipway_protocol::{BootReport, BootStage};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

use super::Surroundings;

/// Maximum size of each part in bytes. The sum is below the server's limit.
const JOURNAL: usize = 2 << 20;
const RUNTIMES: usize = 512 << 10;
const OTHERS: usize = 128 << 10;
/// Maximum number of lines requested from the journal, so that a journal of gigabytes is not read to its beginning.
const JOURNAL_LINES: &str = "40000";
const RUNTIME_LINES: &str = "5000";
/// Time limit for a program.
const PATIENCE: Duration = Duration::from_secs(20);
/// journalctl arguments that print the units that the service manager could not start in this boot, causes first
/// (sd-messages.h, SD_MESSAGE_UNIT_FAILED; systemd.journal-fields(7)).
const UNSTARTED: [&str; 11] = [
    "-b",
    "-q",
    "--no-pager",
    "-o",
    "cat",
    "--output-fields=UNIT",
    "_PID=1",
    "MESSAGE_ID=be02cf6855d2428ba40df7e9d022f03d",
    "JOB_RESULT=failed",
    "JOB_RESULT=timeout",
    "JOB_RESULT=dependency",
];
/// Longest accepted state of the service manager, in bytes.
const MAX_STATE: usize = 64;

/// Returns the id of the current boot.
pub(crate) fn boot_id(root: &Path) -> String {
    let text = file(&root.join("proc/sys/kernel/random/boot_id"), OTHERS).unwrap_or_default();
    let id = String::from_utf8_lossy(&text).trim().to_owned();
    // If the id cannot be read, all boots have this one.
    if id.is_empty() { "unknown".to_owned() } else { id }
}

/// Returns the seconds since the system started. 0 if that cannot be read.
pub(crate) fn uptime(root: &Path) -> u64 {
    let text = file(&root.join("proc/uptime"), OTHERS).unwrap_or_default();
    String::from_utf8_lossy(&text).split(['.', ' ']).next().and_then(|seconds| seconds.parse().ok()).unwrap_or_default()
}

/// The output of `systemctl is-system-running`, whatever its exit status. `None` if it cannot be run or prints no
/// state.
pub(crate) async fn system_state(surroundings: &Surroundings) -> Option<String> {
    let text = output(surroundings, "systemctl", &["is-system-running"], OTHERS).await.ok()?;
    let state = String::from_utf8_lossy(&text).trim().to_owned();
    let is_word = !state.is_empty() && state.len() <= MAX_STATE && state.bytes().all(|b| b.is_ascii_alphanumeric());
    is_word.then_some(state)
}

/// The names of the failed units, at most [`MAX_FAILED_UNITS`]. Empty if systemctl cannot be run. In the emergency or
/// rescue shell, also the units that could not be started: a unit whose device is missing is not in the state `failed`.
pub(crate) async fn failed_units(surroundings: &Surroundings, in_shell: bool) -> Vec<String> {
    let arguments = ["list-units", "--failed", "--plain", "--no-legend", "--no-pager", "--full"];
    let mut text = output(surroundings, "systemctl", &arguments, OTHERS).await.unwrap_or_default();
    if in_shell {
        text.push(b'\n');
        text.extend(output(surroundings, "journalctl", &UNSTARTED, OTHERS).await.unwrap_or_default());
    }
    units_of(&String::from_utf8_lossy(&text))
}

fn units_of(text: &str) -> Vec<String> {
    // Some versions of systemctl print a dot before each name.
    let names = text.lines().filter_map(|line| line.split_whitespace().find(|word| is_unit_name(word)));
    let mut units: Vec<String> = Vec::new();
    for name in names {
        if units.len() < MAX_FAILED_UNITS && units.iter().all(|unit| unit != name) {
            units.push(name.to_owned());
        }
    }
    units
}

/// Collects the log of this boot, in the form in which it is sent.
pub(crate) async fn log(surroundings: &Surroundings, report: &BootReport) -> Vec<u8> {
    let mut log = Log(Vec::new());
    let state = report.system_state.as_deref().unwrap_or("unknown");
    let stage = match report.stage {
        BootStage::Booting => "first boot of the system, still starting",
        BootStage::Restarted => "later boot of the system, still starting",
        BootStage::Running => "the system runs",
    };
    let head = format!("boot {}: {stage}; the service manager is {state}\n", report.boot_id);
    log.part("boot", Ok(head.into_bytes()));
    let program = |name, arguments, limit| output(surroundings, name, arguments, limit);
    log.part("failed units", program("systemctl", &["--failed", "--no-pager"], OTHERS).await);
    log.part("jobs", program("systemctl", &["list-jobs", "--no-pager"], OTHERS).await);
    // Reads PID 1's mounts, because this process has its own mount namespace.
    log.part("mounts", file(&surroundings.root.join("proc/1/mountinfo"), OTHERS));
    network(surroundings, &mut log).await;
    let runtimes = ["-u", "containerd", "-u", "docker", "-u", "crio", "-u", "kubelet"];
    let arguments = [&["-b", "-q", "--no-pager", "-o", "short-precise", "-n", RUNTIME_LINES], &runtimes[..]].concat();
    match program("journalctl", &arguments, RUNTIMES).await {
        Ok(text) if text.is_empty() => {}
        found => log.part("container runtimes", found),
    }
    let arguments = ["-b", "-q", "--no-pager", "-o", "short-precise", "-n", JOURNAL_LINES];
    log.part("journal", program("journalctl", &arguments, JOURNAL).await);
    log.0
}

async fn network(surroundings: &Surroundings, log: &mut Log) {
    let questions: [(&str, &[&str]); 3] =
        [("addresses", &["addr"]), ("routes", &["-4", "route"]), ("IPv6 routes", &["-6", "route"])];
    let mut answered = false;
    for (title, arguments) in questions {
        let answer = output(surroundings, "ip", arguments, OTHERS).await;
        answered |= answer.is_ok();
        log.part(title, answer);
    }
    if !answered {
        for name in ["fib_trie", "route", "if_inet6", "ipv6_route"] {
            log.part(name, file(&surroundings.root.join("proc/net").join(name), OTHERS));
        }
    }
    log.part("resolv.conf", file(&surroundings.root.join("etc/resolv.conf"), OTHERS));
}

struct Log(Vec<u8>);

impl Log {
    fn part(&mut self, title: &str, found: Result<Vec<u8>, String>) {
        self.0.extend_from_slice(format!("==== {title} ====\n").as_bytes());
        match found {
            Ok(text) => self.0.extend_from_slice(&text),
            Err(reason) => self.0.extend_from_slice(format!("not available: {reason}").as_bytes()),
        }
        if !self.0.ends_with(b"\n") {
            self.0.push(b'\n');
        }
    }
}

/// Returns the first `limit` bytes of a file.
fn file(path: &Path, limit: usize) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(limit as u64).read_to_end(&mut text));
    read.map(|_| text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the last `limit` bytes of a program's output, whatever its exit status.
pub(crate) async fn output(
    surroundings: &Surroundings,
    program: &str,
    arguments: &[&str],
    limit: usize,
) -> Result<Vec<u8>, String> {
    let path = surroundings.programs.iter().map(|folder| folder.join(program)).find(|path| path.exists());
    let path = path.ok_or_else(|| format!("{program} is not installed"))?;
    let mut command = Command::new(&path);
    command.args(arguments).env("LC_ALL", "C.UTF-8").stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().map_err(|error| format!("{}: {error}", path.display()))?;
    let mut stdout = child.stdout.take().ok_or("no output")?;
    let mut tail = Tail::new(limit);
    let read = async {
        let mut piece = vec![0; 64 << 10];
        loop {
            match stdout.read(&mut piece).await {
                Ok(0) | Err(_) => return,
                Ok(count) => tail.add(piece.get(..count).unwrap_or_default()),
            }
        }
    };
    let in_time = timeout(PATIENCE, read).await.is_ok();
    // A program that closed its output but still runs is killed when the handle is dropped.
    let _ = timeout(Duration::from_secs(1), child.wait()).await;
    let mut text = tail.into_bytes();
    if !in_time {
        text.extend_from_slice(format!("\n[{program} took longer than {} s]\n", PATIENCE.as_secs()).as_bytes());
    }
    Ok(text)
}

/// Runs a program to its end. Fails with what it said last, if its exit status is not 0.
pub(crate) async fn succeeds(surroundings: &Surroundings, program: &str, arguments: &[&str]) -> Result<(), String> {
    let path = surroundings.programs.iter().map(|folder| folder.join(program)).find(|path| path.exists());
    let path = path.ok_or_else(|| format!("{program} is not installed"))?;
    let mut command = Command::new(&path);
    command.args(arguments).env("LC_ALL", "C.UTF-8").stdin(Stdio::null()).kill_on_drop(true);
    let ended = timeout(PATIENCE, command.output()).await;
    let ended = ended.map_err(|_| format!("{program} took longer than {} s", PATIENCE.as_secs()))?;
    let ended = ended.map_err(|error| format!("{}: {error}", path.display()))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr).trim().lines().next_back().unwrap_or_default().to_owned();
    Err(format!("{program} ended with {}: {said}", ended.status))
}

/// The newest bytes of a stream.
struct Tail {
    bytes: Vec<u8>,
    limit: usize,
    was_cut: bool,
}

impl Tail {
    fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit, was_cut: false }
    }

    fn add(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        // Only now and then, because each cut moves all bytes.
        if self.bytes.len() > 2 * self.limit {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let excess = self.bytes.len().saturating_sub(self.limit);
        self.bytes.drain(..excess);
        self.was_cut |= excess > 0;
    }

    /// Returns the kept bytes. If earlier bytes were cut, the result starts at the beginning of a line.
    fn into_bytes(mut self) -> Vec<u8> {
        self.cut();
        if self.was_cut {
            let line = self.bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            self.bytes.drain(..line);
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_units_are_read_from_a_list() {
        let list = "cloud-init.service loaded failed failed Cloud-init\n\
                    \u{25cf} srv-my\\x2ddata.mount loaded failed failed /srv/my-data\n\n";
        assert_eq!(units_of(list), ["cloud-init.service", "srv-my\\x2ddata.mount"]);
        assert_eq!(units_of("Failed to connect to bus\n"), [""; 0]);
        assert_eq!(units_of("a.mount\nb.mount\na.mount\n"), ["a.mount", "b.mount"]);
        let many: String = (0..100).map(|number| format!("a{number}.service x\n")).collect();
        assert_eq!(units_of(&many).len(), MAX_FAILED_UNITS);
    }

    #[test]
    fn the_newest_lines_are_kept() {
        let check = |pieces: &[&str], expect: &str| {
            let mut tail = Tail::new(10);
            pieces.iter().for_each(|piece| tail.add(piece.as_bytes()));
            assert_eq!(String::from_utf8_lossy(&tail.into_bytes()), expect, "{pieces:?}");
        };
        check(&["one\n", "two\n"], "one\ntwo\n");
        check(&["one\ntwo\n", "three\n"], "three\n");
        check(&["one\ntwo\nthree\nfour\nfive\n", "six\nseven\n"], "seven\n");
        check(&["abcdefghijkl"], "cdefghijkl");
    }
}
