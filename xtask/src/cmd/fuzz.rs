//! `cargo xtask fuzz`: tests the parsers of untrusted data with libFuzzer.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use xtask::build::prepare;
use xtask::check::fuzz::{self, Extent, Outcome};

/// Number of targets that run at the same time.
const AT_A_TIME: usize = 2;

/// Test the parsers of untrusted data with a fuzzer.
///
/// Fuzzing continues from the inputs found before, which are kept in the cache folder. An input that breaks a target is
/// saved as a file. If the toolchain cannot build the targets, the command says so and succeeds.
#[derive(Args)]
pub struct Fuzz {
    /// How long each target runs, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Only run the inputs in the repository, without fuzzing.
    #[arg(long, conflicts_with = "seconds")]
    replay: bool,
    /// Targets to run, files of fuzz/fuzz_targets [default: all]
    targets: Vec<String>,
}

impl Fuzz {
    pub fn run(self) -> Result<()> {
        let began = Instant::now();
        let extent = if self.replay { Extent::Replay } else { Extent::Seconds(self.seconds) };
        let targets = fuzz::targets(&self.targets)?;
        if let Some(reason) = fuzz::why_not() {
            println!("fuzzing: NOT RUN, because {reason}");
            return Ok(());
        }
        let itself = if self.replay { 20 } else { u64::from(self.seconds) * targets.len().div_ceil(AT_A_TIME) as u64 };
        prepare::prepare("cargo xtask fuzz", &[prepare::FUZZ], Duration::from_secs(itself))?;
        let programs = fuzz::build()?;
        println!("fuzz targets: built ({} s)", began.elapsed().as_secs());
        let (waiting, failures) = (Mutex::new(targets.into_iter()), Mutex::new(Vec::new()));
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        std::thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(|| {
                    while let Some(target) = next() {
                        match programs.run(&target, extent) {
                            Ok(Outcome::Sound(done)) => println!("{target}: {done}"),
                            Ok(Outcome::Broken(found)) => fail(&failures, &target, &found),
                            Err(error) => fail(&failures, &target, &format!("{error:#}")),
                        }
                    }
                });
            }
        });
        let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
        ensure!(failures.is_empty(), "fuzzing {}: see above", failures.join(", "));
        println!("fuzzing took {} s", began.elapsed().as_secs());
        Ok(())
    }
}

fn fail(failures: &Mutex<Vec<String>>, target: &str, found: &str) {
    println!("{target}: FAILED\n{found}");
    failures.lock().unwrap_or_else(PoisonError::into_inner).push(target.to_owned());
}
