//! `slipway action run-in-target` on a disk image that holds a shell.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../../actions/tests/common"]
#[allow(dead_code, reason = "shared with the tests of the actions")]
mod common {
    pub const MIB: usize = 1 << 20;
    pub mod disk_image;
}

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::MIB;
use common::disk_image::{LINUX, Part, ROOT, can_mount, debugfs, make, run, spoil};
use tempfile::TempDir;

/// A disk image in its own folder.
struct Bench(TempDir);

impl Bench {
    /// Makes a disk whose root file system has the host's shell and a few programs with their libraries, and
    /// `resolv_conf` as /etc/resolv.conf.
    fn new(resolv_conf: &str) -> Self {
        let files = [("etc/os-release", "NAME=Debian"), ("etc/resolv.conf", resolv_conf)];
        let files: &[(&str, &str)] = if resolv_conf.is_empty() { &files[..1] } else { &files };
        Self::of(&[Part { mib: 1..63, type_guid: ROOT, name: "system", files }])
    }

    /// Like [`Self::new`], with this fstab and another partition.
    fn with_another(fstab: &str) -> Self {
        let files = [("etc/os-release", "NAME=Debian"), ("etc/fstab", fstab)];
        let root = Part { mib: 1..SPARE_AT, type_guid: ROOT, name: "system", files: &files };
        Self::of(&[root, Part { mib: SPARE_AT..63, type_guid: LINUX, name: "spare", files: &[("x/old", "")] }])
    }

    fn of(parts: &[Part]) -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        make(&bench.disk(), 64, parts);
        let mut requests = String::new();
        for dir in ["bin", "proc", "sys", "dev", "run", "home"] {
            requests.push_str(&format!("mkdir /{dir}\n"));
        }
        let mut written = BTreeSet::new();
        for program in ["sh", "ln", "mv", "rm", "cp", "sed", "sleep"].map(|name| PathBuf::from("/bin").join(name)) {
            for library in libraries(&program).into_iter().chain([program]) {
                if !written.insert(library.clone()) {
                    continue;
                }
                let mut dir = PathBuf::from("/");
                for name in library.parent().unwrap().components().skip(1) {
                    dir.push(name);
                    requests.push_str(&format!("mkdir {}\n", dir.display()));
                }
                let real = fs::canonicalize(&library).unwrap();
                let (real, library) = (real.display(), library.display());
                requests.push_str(&format!("write {real} {library}\nset_inode_field {library} mode 0100755\n"));
            }
        }
        fs::write(bench.0.path().join("requests"), requests).unwrap();
        bench.debugfs(&["-w", "-f", bench.0.path().join("requests").to_str().unwrap()]);
        bench
    }

    /// Describes a name in /etc: the content of a file, `-> ` and the target of a link, or nothing.
    fn in_etc(&self, name: &str) -> String {
        let stat = self.debugfs(&["-R", &format!("stat /etc/{name}")]);
        match (stat.split_once("link dest: \""), stat.contains("Type: regular")) {
            (Some((_, target)), _) => format!("-> {}", target.split('"').next().unwrap()),
            (None, true) => self.debugfs(&["-R", &format!("cat /etc/{name}")]),
            (None, false) => String::new(),
        }
    }

    /// Waits until the kernel has unmounted the file systems of a process that was killed.
    fn wait_until_unmounted(&self) {
        while !run(Command::new("losetup").args(["--noheadings", "--associated"]).arg(self.disk())).is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lists the names in /etc with their inodes, sorted.
    fn etc(&self) -> Vec<String> {
        let mut names: Vec<String> = self.debugfs(&["-R", "ls -p /etc"]).lines().map(str::to_owned).collect();
        names.sort();
        names
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

/// Returns the notes and the last line of the action.
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
        let before = bench.etc();
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
        // Compares lines that both the shell and a note leave unchanged.
        let is_plain = |line: &&str| !line.is_empty() && !line.contains(|c: char| c == '\\' || c.is_control());
        let host = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        for line in
            host.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::trim).filter(is_plain)
        {
            has(&format!("dns {line}"));
        }
        assert!(last["succeeded"]["summary"].as_str().unwrap().starts_with("ran the script in partition 1"), "{last}");
        assert_eq!(bench.etc(), before, "resolv.conf is what it was");
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
    check("rm -rf /run/*; exit 3\n", "exit status 3");
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

#[test]
fn a_command_receives_signals() {
    if !can_mount() {
        return;
    }
    let script = "for s in TERM HUP; do sleep 1000 & kill -$s $!; wait $! || echo \"$s $?\"; done\n";
    let output = Bench::new("").action(script).args(["--timeout", "60"]).output().unwrap();
    let (notes, _) = told(&output);
    let has = |note: &str| notes.iter().any(|found| found == note);
    assert!(output.status.success() && has("TERM 143") && has("HUP 129"), "{output:?}");
}

#[test]
fn what_the_system_mounts_from_its_disk_is_mounted_in_its_order() {
    if !can_mount() {
        return;
    }
    let fstab = "/inner/x /a none bind\nPARTLABEL=spare /inner ext4\n/data /bound none rbind\n/proc /p none bind\n\
                 LABEL=none /away ext4\n/away/x /lost none bind\n/dev/sda3 /srv ext4\n";
    let bench = Bench::with_another(fstab);
    let output = bench.run("[ -f /a/old ]; echo one > /a/one; echo two > /bound/two\n");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(debugfs(&bench.disk(), SPARE_AT, "cat /x/one"), "one\n");
    assert_eq!(bench.debugfs(&["-R", "cat /data/two"]), "two\n");
    let found = told(&output).1["succeeded"]["warnings"].clone();
    let expect = serde_json::json!([
        "/away is not mounted: LABEL=none is not on this disk",
        "/lost is not mounted: LABEL=none is not on this disk",
        "/srv is not mounted: /dev/sda3 may be on any disk; name it by UUID or label in fstab",
    ]);
    assert_eq!(found, expect);
}

#[test]
fn what_cannot_be_mounted_stops_the_command_unless_the_system_starts_without_it() {
    if !can_mount() {
        return;
    }
    let reason = "mounting ext4 from /dev/loop";
    for (options, is_needed) in [("defaults", true), ("ro,nofail", false)] {
        let bench = Bench::with_another(&format!("PARTLABEL=spare /spare ext4 {options}\n"));
        spoil(&bench.disk(), SPARE_AT);
        let output = bench.run("echo begun\n");
        let (notes, last) = told(&output);
        assert_eq!((output.status.success(), notes.contains(&"begun".to_owned())), (!is_needed, !is_needed));
        let said = match is_needed {
            true => last["failed"]["reason"].to_string(),
            false => last["succeeded"]["warnings"][0].to_string(),
        };
        assert!(said.contains(reason) && said.contains("option nofail") == is_needed, "{said}");
        assert!(said.contains(if is_needed { "mounting /spare, as" } else { "/spare is not mounted: " }), "{said}");
    }
}

/// Start of the second partition in MiB.
const SPARE_AT: usize = 56;
const FILE: &str = "nameserver 192.0.2.1\n";
const STUB: &str = "-> ../run/systemd/resolve/stub-resolv.conf";

/// Files below /etc: their names, and their content or the target of a link.
type Contents<'a> = &'a [(&'a str, &'a str)];

/// Checks what package scripts do to /etc/resolv.conf, and what is there afterwards under this and other names.
#[test]
fn what_a_script_makes_of_resolv_conf_stays() {
    if !can_mount() {
        return;
    }
    let reads = "read -r line < /etc/resolv.conf; echo \"dns $line\"\n";
    let stub = &format!("ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf\n{reads}");
    let write = "echo nameserver 192.0.2.7 > /etc/resolv.conf\n";
    let written = "nameserver 192.0.2.7\n";
    let backup = "mv /etc/resolv.conf /etc/.resolv.conf.bak\n";
    let copy = "cp -a /etc/resolv.conf /etc/resolv.conf.old\n";
    let through = "echo nameserver 192.0.2.7 > /etc/new; cp --remove-destination /etc/new /etc/resolv.conf\n";
    let edit = "echo nameserver 192.0.2.7 > /etc/resolv.conf; sed -i s/2.7/2.8/ /etc/resolv.conf\n";
    let cases: &[(&str, &str, Contents<'_>)] = &[
        (FILE, stub, &[("resolv.conf", STUB)]),
        ("", stub, &[("resolv.conf", STUB)]),
        ("-> /run/NetworkManager/resolv.conf", stub, &[("resolv.conf", STUB)]),
        ("-> resolv.conf.static", stub, &[("resolv.conf", STUB), ("resolv.conf.static", "")]),
        ("-> ../var/none/resolv.conf", reads, &[("resolv.conf", "-> ../var/none/resolv.conf")]),
        (FILE, write, &[("resolv.conf", written)]),
        ("", write, &[("resolv.conf", written)]),
        ("-> resolv.conf.static", write, &[("resolv.conf", "-> resolv.conf.static"), ("resolv.conf.static", written)]),
        (STUB, write, &[("resolv.conf", STUB)]),
        (FILE, edit, &[("resolv.conf", "nameserver 192.0.2.8\n")]),
        (FILE, through, &[("resolv.conf", written)]),
        (FILE, "rm /etc/resolv.conf\n", &[("resolv.conf", "")]),
        (FILE, &format!("{backup}{stub}"), &[("resolv.conf", STUB), (".resolv.conf.bak", FILE)]),
        (FILE, &format!("{copy}{stub}"), &[("resolv.conf", STUB), ("resolv.conf.old", FILE)]),
        (FILE, copy, &[("resolv.conf", FILE), ("resolv.conf.old", FILE)]),
        (FILE, "mv /etc/resolv.conf /home/saved\n", &[("resolv.conf", ""), ("../home/saved", FILE)]),
        ("", "mv /etc/resolv.conf /home/saved\n", &[("resolv.conf", ""), ("../home/saved", "")]),
        (FILE, "rm -rf /run/*\n", &[("resolv.conf", FILE)]),
        (FILE, &format!("{write}rm -rf /run/*\n"), &[("resolv.conf", written)]),
        (STUB, "rm -rf /run/*\n", &[("resolv.conf", STUB)]),
    ];
    for (before, script, expect) in cases {
        let bench = Bench::new(before);
        let output = bench.run(&format!("{reads}{script}"));
        assert!(output.status.success(), "{before:?}, {script:?}: {output:?}");
        for (name, content) in *expect {
            assert_eq!(bench.in_etc(name), *content, "{name} after {before:?}, {script:?}");
        }
        assert_eq!(bench.in_etc(".slipway-resolv.conf"), "", "{before:?}, {script:?}");
        run(Command::new("e2fsck").arg("-fn").arg(format!("{}?offset={MIB}", bench.disk().display())));
    }
}

#[test]
fn a_file_system_that_does_not_say_what_its_entries_are_keeps_the_file() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new(FILE);
    bench.debugfs(&["-w", "-R", "feature -filetype"]);
    let output = bench.run("read -r line < /etc/resolv.conf\n");
    assert!(output.status.success(), "{output:?}");
    assert_eq!([bench.in_etc("resolv.conf"), bench.in_etc(".slipway-resolv.conf")], [FILE, ""]);
}

#[test]
fn a_power_cut_leaves_the_file_that_was_there() {
    if !can_mount() {
        return;
    }
    for before in [FILE, ""] {
        let bench = Bench::new(before);
        let mut child = bench.action("echo begun\nwhile :; do :; done\n").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("begun")));
        child.kill().unwrap();
        child.wait().unwrap();
        lines.for_each(drop);
        bench.wait_until_unmounted();
        let aside = bench.in_etc(".slipway-resolv.conf");
        assert_eq!(bench.in_etc("resolv.conf"), "-> /etc/.slipway-resolv.conf");
        assert!(aside == before || before.is_empty() && aside.starts_with("-> /run/"), "{before:?}: {aside}");
        assert!(bench.run("rm -f /none\n").status.success());
        assert_eq!([bench.in_etc("resolv.conf"), bench.in_etc(".slipway-resolv.conf")], [before, ""]);
    }
}

#[test]
fn a_directory_in_place_of_resolv_conf_is_refused() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new("");
    bench.debugfs(&["-w", "-R", "mkdir /etc/resolv.conf"]);
    let reason = told(&bench.run("echo one\n")).1["failed"]["reason"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("replacing /etc/resolv.conf of the installed system"), "{reason}");
}

#[test]
fn a_signal_ends_the_command_and_puts_everything_back() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new(FILE);
    let mut child = bench.action("echo begun\nwhile :; do :; done\n").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("begun")));
    run(Command::new("kill").args(["-TERM", &child.id().to_string()]));
    let last = lines.last().unwrap().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let expect = "running run-in-target: stopped by SIGTERM; everything that was started has ended";
    assert!(last.contains(expect), "{last}");
    bench.wait_until_unmounted();
    assert_eq!([bench.in_etc("resolv.conf"), bench.in_etc(".slipway-resolv.conf")], [FILE, ""]);
}
