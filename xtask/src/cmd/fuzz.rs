//! `cargo xtask fuzz`: feeds the readers of what comes from outside with what libFuzzer thinks up.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use xtask::fuzz::{self, Extent, Outcome};

/// How many targets run at a time.
const AT_A_TIME: usize = 2;

/// Feed the readers of what comes from outside with what a fuzzer thinks up.
///
/// What the targets found before is kept in the cache folder, and is where they go on from. An input that breaks one is kept as a
/// file. Where the toolchain cannot build them, that is said, and is no failure.
#[derive(Args)]
pub struct Fuzz {
    /// How long each target runs, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Begin with what the repository keeps alone, and try as many inputs as fuzz/Cargo.toml names, the same each time.
    #[arg(long, conflicts_with = "seconds")]
    seed: Option<u32>,
    /// Targets to run, files of fuzz/fuzz_targets [default: all]
    targets: Vec<String>,
}

impl Fuzz {
    pub fn run(self) -> Result<()> {
        let began = Instant::now();
        let extent = self.seed.map_or(Extent::Seconds(self.seconds), Extent::Seed);
        let targets = fuzz::targets(&self.targets)?;
        if let Some(reason) = fuzz::why_not() {
            println!("fuzzing: NOT RUN, because {reason}");
            return Ok(());
        }
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
        if !failures.is_empty() {
            bail!("fuzzing {}: see above", failures.join(", "));
        }
        println!("fuzzing took {} s", began.elapsed().as_secs());
        Ok(())
    }
}

fn fail(failures: &Mutex<Vec<String>>, target: &str, found: &str) {
    println!("{target}: FAILED\n{found}");
    failures.lock().unwrap_or_else(PoisonError::into_inner).push(target.to_owned());
}
