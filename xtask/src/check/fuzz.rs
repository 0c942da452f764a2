//! The fuzz targets in `fuzz/`. They are built as cargo-fuzz does, but with the current compiler, and run directly.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::host::command::{command, run, run_quietly, stdout, tail};
use crate::host::{cache, files, packages, workspace};

/// Coverage for libFuzzer, AddressSanitizer's checks, and the cfg that libfuzzer-sys expects.
const FLAGS: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Zsanitizer=address",
    "--cfg=fuzzing",
];
/// The repository's crates that are linked into the targets.
const CRATES: [&str; 11] = [
    "slipway-fuzz",
    "slipway-actions",
    "slipway-formats",
    "slipway-installer",
    "slipway-media",
    "slipway-parts",
    "slipway-protocol",
    "slipway-secure-boot",
    "slipway-pxe",
    "slipway-tpm",
    "slipway-user-data",
];
/// Largest input in bytes.
const MAX_LEN: u32 = 64 << 10;
/// Time limit for one input in seconds. An input that takes longer is saved as slow.
const TIMEOUT: u32 = 10;
/// Memory limit in MiB, for a target and for one allocation. The largest allocation is an xz stream's dictionary.
const MEMORY: u32 = 1024;
const ALLOCATION: u32 = 256;
/// Number of lines of a failed target's output to show.
const SHOWN: usize = 40;

/// Returns `wanted`, or the names of all targets, sorted, if it is empty. Fails on an unknown name.
pub fn targets(wanted: &[String]) -> Result<Vec<String>> {
    let folder = workspace::root().join("fuzz/fuzz_targets");
    let files = cache::files_below(&folder)?;
    let all: Vec<String> = files.iter().filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned())).collect();
    match wanted.iter().find(|target| !all.contains(target)) {
        Some(unknown) => bail!("looking for the fuzz target {unknown:?}: the targets are {}", all.join(", ")),
        None if wanted.is_empty() => Ok(all),
        None => Ok(wanted.to_vec()),
    }
}

/// Says why targets cannot be built here. Returns `None` if they can.
pub fn why_not() -> Option<String> {
    if run_quietly(&mut command("c++", ["--version"])).is_err() {
        return Some("there is no C++ compiler to compile libFuzzer with (Debian's package g++)".to_owned());
    }
    if !packages::is_debian() && run_quietly(&mut command("/usr/bin/python3", ["-c", "import yaml"])).is_err() {
        return Some(
            "/usr/bin/python3 has no PyYAML, which a fuzz target needs for comparison (Debian's package python3-yaml)"
                .to_owned(),
        );
    }
    let host = match host_triple() {
        Ok(host) => host,
        Err(error) => return Some(format!("{error:#}")),
    };
    let folder = tempfile::tempdir().and_then(|folder| {
        fs::write(folder.path().join("trial.rs"), "fn main() {}")?;
        Ok(folder)
    });
    let folder = match folder {
        Ok(folder) => folder,
        Err(error) => return Some(format!("a trial program cannot be compiled: {error}")),
    };
    // The trial is linked too, because only the linker may notice that something is missing, such as the sanitizer's
    // runtime.
    let mut trial = command("rustc", ["trial.rs", "--target", &host]);
    trial.args(FLAGS).env("RUSTC_BOOTSTRAP", "1").current_dir(folder.path());
    run_quietly(&mut trial)
        .err()
        .map(|error| format!("the Rust compiler does not accept the fuzzer's flags: {error:#}"))
}

/// Returns the compiler's host target.
fn host_triple() -> Result<String> {
    let version = stdout(command("rustc", ["-vV"]).current_dir(workspace::root()))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("looking for the host in the output of rustc -vV")
}

fn manifest() -> PathBuf {
    workspace::root().join("fuzz/Cargo.toml")
}

/// Which inputs a target gets.
#[derive(Clone, Copy)]
pub enum Extent {
    /// Fuzzes for this many seconds, starting from the inputs in the repository and the cache. New inputs are added to
    /// the cache.
    Seconds(u32),
    /// Runs each input in the repository once.
    Replay,
}

/// Built targets. Holds a lock: other processes cannot build or run any until it is dropped.
pub struct Programs {
    folder: PathBuf,
    /// Folder for logs, inputs that break a target, and other files of running targets.
    work: PathBuf,
    _lock: File,
}

/// How a target ended.
pub enum Outcome {
    /// No fault was found. Says what was done.
    Sound(String),
    /// A fault was found. Has the target's output, and how to reproduce it.
    Broken(String),
}

/// Builds all targets.
pub fn build() -> Result<Programs> {
    if packages::is_debian() {
        packages::ensure(packages::FUZZ)?;
    }
    let lock = cache::lock(&cache::folder("target-fuzz")?.join("run"))?;
    let (host, manifest) = (host_triple()?, manifest());
    let manifest = manifest.to_str().context("the path of the repository is not UTF-8")?;
    let mut clean = vec!["--release", "--target", &host, "--manifest-path", manifest];
    clean.extend(CRATES.iter().flat_map(|name| ["--package", name]));
    let target = cache::cargo_target("target-fuzz", &[&clean])?;
    let mut cargo = command(workspace::cargo(), ["build", "--quiet", "--release", "--bins"]);
    cargo.args(["--target", &host, "--manifest-path", manifest]).current_dir(workspace::root());
    cargo.env("CARGO_TARGET_DIR", &target).env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
    // The flags need a nightly compiler. With this variable the current compiler accepts them, as `why_not` checked.
    run(cargo.env("RUSTC_BOOTSTRAP", "1"))?;
    Ok(Programs {
        folder: target.join(host).join("release"),
        work: workspace::root().join("target/slipway/fuzz"),
        _lock: lock,
    })
}

impl Programs {
    /// Runs a target.
    pub fn run(&self, target: &str, extent: Extent) -> Result<Outcome> {
        let (program, seeds) = (self.folder.join(target), workspace::root().join("fuzz/corpus").join(target));
        let (kept, log) = (self.work.join(target), self.work.join(format!("{target}.log")));
        let scratch = tempfile::tempdir().context("creating a temporary folder")?;
        files::create_dir(&kept)?;
        let out = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let mut fuzz = match extent {
            Extent::Seconds(seconds) => {
                let corpus = cache::folder(&format!("fuzz-corpus/{target}"))?;
                let mut fuzz = command(&program, [format!("-max_total_time={seconds}"), format!("-timeout={TIMEOUT}")]);
                // libFuzzer writes new inputs to the first folder.
                fuzz.args([&corpus, &seeds]);
                fuzz
            }
            Extent::Replay => {
                let mut fuzz = command(&program, ["-runs=0"]);
                // The leak check may see a thread that is just ending and report its memory as leaked.
                fuzz.arg(&seeds).env("ASAN_OPTIONS", "detect_leaks=0");
                fuzz
            }
        };
        fuzz.arg(format!("-max_len={MAX_LEN}"));
        fuzz.args([format!("-rss_limit_mb={MEMORY}"), format!("-malloc_limit_mb={ALLOCATION}")]);
        // Leaks are checked once, after all inputs, because each check stops the process to trace it.
        fuzz.args(["-detect_leaks=0", "-print_final_stats=1"]);
        fuzz.arg(format!("-artifact_prefix={}/", kept.display()));
        fuzz.env("TMPDIR", scratch.path()).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let status = fuzz.status().with_context(|| format!("starting {}", program.display()))?;
        let said = files::read(&log)?;
        let said = String::from_utf8_lossy(&said);
        if status.success() {
            return Ok(Outcome::Sound(summary(&said)));
        }
        let again = match broken_by(&said) {
            Some(input) => format!("to run it again: {} {input}", program.display()),
            None => format!("it ended ({status}) and saved no input"),
        };
        Ok(Outcome::Broken(format!("{}\nall of its output: {}\n{again}", tail(&said, SHOWN), log.display())))
    }
}

/// Reads the number of runs and the coverage from the last lines of libFuzzer's output.
fn summary(said: &str) -> String {
    let done = said.lines().rev().find_map(|line| line.strip_prefix("Done ")).unwrap_or("an unknown number of runs");
    let covered = said.lines().rev().find_map(|line| line.split(" cov: ").nth(1)?.split(' ').next());
    format!("{done}, {} edges", covered.unwrap_or("no"))
}

/// Finds the path of the file with the input that broke the target.
fn broken_by(said: &str) -> Option<&str> {
    said.lines().rev().find_map(|line| line.split("Test unit written to ").nth(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_said_is_told_in_a_line() {
        let said = "#2\tINITED cov: 312 ft: 313 corp: 1/1b exec/s: 0 rss: 40Mb\n\
                    #9\tDONE   cov: 415 ft: 700 corp: 9/1Kb exec/s: 4 rss: 50Mb\n\
                    Done 9 runs in 2 second(s)\nstat::number_of_executed_units: 9\n";
        assert_eq!(summary(said), "9 runs in 2 second(s), 415 edges");
        assert_eq!(broken_by(said), None);
        let said = "==7== ERROR: libFuzzer: deadly signal\nartifact_prefix='/x/'; Test unit written to /x/crash-1\n\
                    Base64: AA==\n";
        assert_eq!(broken_by(said), Some("/x/crash-1"));
    }

    #[test]
    fn every_target_is_in_the_manifest_and_has_seeds() -> Result<()> {
        let manifest = fs::read_to_string(manifest())?;
        for target in targets(&[])? {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{target}.rs\"")), "{target}");
            assert!(!cache::files_below(&workspace::root().join("fuzz/corpus").join(&target))?.is_empty(), "{target}");
        }
        assert!(targets(&["nothing".to_owned()]).is_err());
        Ok(())
    }
}
