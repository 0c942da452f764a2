//! `slipway action run-in-target` on a disk image that holds a shell.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../../actions/tests/common"]
#[allow(dead_code, reason = "shared with the tests of the actions")]
mod common {
    pub const MIB: usize = 1 << 20;
    pub mod disk_image;
}

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::MIB;
use common::disk_image::{Part, ROOT, can_mount, make, run};
use tempfile::TempDir;

/// A disk image in its own folder.
struct Bench(TempDir);

impl Bench {
    /// A disk whose root file system has the host's shell and its libraries, and this as /etc/resolv.conf.
    fn new(resolv_conf: &str) -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        let files = [("etc/os-release", "NAME=Debian"), ("etc/resolv.conf", resolv_conf)];
        let files: &[(&str, &str)] = if resolv_conf.is_empty() { &files[..1] } else { &files };
        make(&bench.disk(), 64, &[Part { mib: 1..63, type_guid: ROOT, name: "system", files }]);
        let mut requests = String::new();
        for dir in ["bin", "proc", "sys", "dev", "run"] {
            requests.push_str(&format!("mkdir /{dir}\n"));
        }
        let shell = fs::canonicalize("/bin/sh").unwrap();
        requests.push_str(&format!("write {} /bin/sh\nset_inode_field /bin/sh mode 0100755\n", shell.display()));
        for library in libraries(&shell) {
            let mut dir = PathBuf::from("/");
            for name in library.parent().unwrap().components().skip(1) {
                dir.push(name);
                requests.push_str(&format!("mkdir {}\n", dir.display()));
            }
            let real = fs::canonicalize(&library).unwrap();
            requests.push_str(&format!(
                "write {} {1}\nset_inode_field {1} mode 0100755\n",
                real.display(),
                library.display()
            ));
        }
        fs::write(bench.0.path().join("requests"), requests).unwrap();
        bench.debugfs(&["-w", "-f", bench.0.path().join("requests").to_str().unwrap()]);
        bench
    }

    fn disk(&self) -> PathBuf {
        self.0.path().join("disk")
    }

    fn debugfs(&self, arguments: &[&str]) -> String {
        run(Command::new("debugfs").args(arguments).arg(format!("{}?offset={MIB}", self.disk().display())))
    }

    fn action(&self, script: &str) -> Command {
        fs::write(self.0.path().join("script"), script).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
        command.args(["action", "--json", "run-in-target", "--env", "SITE=a=b", "--disk"]).arg(self.disk());
        command.arg("--script").arg(self.0.path().join("script"));
        command
    }

    fn run(&self, script: &str) -> Output {
        self.action(script).output().unwrap()
    }
}

fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = run(Command::new("ldd").arg(program));
    let words = listed.split_whitespace().filter(|word| word.starts_with('/'));
    words.map(|word| PathBuf::from(word.trim_end_matches(':'))).collect()
}

/// The notes and the last line of the action.
fn told(output: &Output) -> (Vec<String>, serde_json::Value) {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let notes = lines.iter().filter_map(|line| line["note"].as_str()).map(str::to_owned).collect();
    (notes, lines.last().unwrap_or_else(|| panic!("{output:?}")).clone())
}

fn loop_devices() -> String {
    fs::read_to_string("/proc/mounts").unwrap().lines().filter(|line| line.starts_with("/dev/loop")).collect()
}

#[test]
fn a_script_runs_in_the_installed_system_and_what_it_prints_is_noted() {
    if !can_mount() {
        return;
    }
    for resolv_conf in ["nameserver 192.0.2.1\n", "-> ../run/systemd/resolve/stub-resolv.conf", ""] {
        let bench = Bench::new(resolv_conf);
        let before = bench.debugfs(&["-R", "ls -p /etc"]);
        let script = "echo \"site $SITE\"\n\
                      while read -r line; do echo \"dns $line\"; done < /etc/resolv.conf\n\
                      while read -r a b rest; do echo \"mount $b\"; done < /proc/mounts\n\
                      read -r first < /proc/1/comm; echo \"first $first\"\n\
                      [ -c /dev/null ] && [ -d /sys/class ] && echo kernel\n\
                      echo made > /made\n";
        let output = bench.run(script);
        let (notes, last) = told(&output);
        assert!(output.status.success(), "{output:?}");
        let has = |note: &str| assert!(notes.iter().any(|found| found == note), "{note}: {notes:?}");
        for note in ["site a=b", "mount /", "mount /proc", "mount /sys", "mount /dev", "mount /run", "kernel"] {
            has(note);
        }
        // Lines that both the shell and a note leave unchanged.
        let is_plain = |line: &&str| !line.is_empty() && !line.contains(|c: char| c == '\\' || c.is_control());
        let host = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        for line in
            host.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::trim).filter(is_plain)
        {
            has(&format!("dns {line}"));
        }
        assert!(last["succeeded"]["summary"].as_str().unwrap().starts_with("ran the script in partition 1"), "{last}");
        assert_eq!(bench.debugfs(&["-R", "ls -p /etc"]), before, "resolv.conf is what it was");
        assert_eq!(bench.debugfs(&["-R", "cat /made"]), "made\n");
        assert!(!loop_devices().contains(bench.0.path().to_str().unwrap()));
        run(Command::new("e2fsck").arg("-fn").arg(format!("{}?offset={MIB}", bench.disk().display())));
    }
}

#[test]
fn a_failure_has_the_status_and_the_last_lines() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new("");
    let check = |script: &str, expect: &str| {
        let output = bench.run(script);
        assert!(!output.status.success());
        let reason = told(&output).1["failed"]["reason"].as_str().unwrap().to_owned();
        assert_eq!(reason, format!("running the script in the installed system: it ended with {expect}"));
    };
    check("echo one\necho two >&2\nexit 3\n", "exit status 3; last output: one / two");
    check("echo one\nfalse\necho two\n", "exit status 1; last output: one");
    check("kill -9 $$\n", "signal 9");
    let missing = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(["action", "--json", "run-in-target", "--disk"])
        .arg(bench.disk())
        .args(["--", "/bin/nothing", "x"])
        .output()
        .unwrap();
    let reason = told(&missing).1["failed"]["reason"].as_str().unwrap().to_owned();
    assert!(
        reason.starts_with("running /bin/nothing in the installed system: starting /bin/nothing: No such file"),
        "{reason}"
    );
}

#[test]
fn nothing_outlives_the_command_or_slipway() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new("");
    // A background process that holds the output open and never ends.
    let forever = "while :; do read -r line < /proc/uptime; done";
    let output = bench.run(&format!("( {forever} ) &\necho left\n"));
    assert!(output.status.success(), "{output:?}");

    let script = format!("( {forever} ) &\necho begun\n{forever}\n");
    let mut child = bench.action(&script).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("begun")));
    child.kill().unwrap();
    child.wait().unwrap();
    // The other processes also hold the output open, so its end shows that they ended.
    assert_eq!(lines.count(), 0);
}
