//! `cargo xtask torture`: power cut tests.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Args;
use xtask::build::prepare;
use xtask::check::torture::{self, Recording};
use xtask::host::{files, workspace};

/// Number of cuts between two lines of progress.
const LINE_EVERY: u64 = 100;

/// Cut the power while disks are written, a thousand times.
///
/// A machine installs images on a disk whose requests are recorded. For each cut, one possible content of the disk is
/// computed. It must be the whole old system, the whole new system, or a disk on which firmware finds nothing to boot.
#[derive(Args)]
pub struct Torture {
    /// Number of cuts.
    #[arg(long, default_value_t = 1000)]
    cuts: u64,
    /// Number of resulting disks that are booted in firmware.
    #[arg(long, default_value_t = 20)]
    boots: usize,
    /// Random seed of all cuts [default: the time].
    #[arg(long)]
    seed: Option<u64>,
    /// Reuse the last recording, to cut the same requests again.
    #[arg(long)]
    again: bool,
}

impl Torture {
    pub fn run(self) -> Result<()> {
        let parts = [prepare::BINARY, prepare::SERVER, prepare::BOOT_IMAGE, prepare::MACHINES, prepare::TORTURE];
        let itself = Duration::from_secs(60 + self.cuts * 2 / 5 + 15 * self.boots as u64);
        prepare::prepare("cargo xtask torture", &parts, itself)?;
        let folder = workspace::root().join("target/slipway/torture");
        if !self.again {
            println!("recording a machine's requests to its disk");
            torture::record(&folder)?;
        }
        let recording = Recording::load(&folder)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("reading the clock")?;
        let seed = self.seed.unwrap_or(now.as_secs());
        println!("{} cuts, --seed {seed}", self.cuts);
        let (began, mut done) = (Instant::now(), 0);
        let tally = recording.judge(seed, self.cuts, |tally| {
            done += 1;
            if done % LINE_EVERY == 0 {
                let bad = tally.unverified().len();
                println!("{:6.1} s: {done} cuts, {bad} unverified", began.elapsed().as_secs_f64());
            }
        })?;
        tally.lines(recording.runs()).iter().for_each(|line| println!("{line}"));
        if let Some(cut) = tally.unverified().first() {
            let (count, disk) = (tally.unverified().len(), folder.join("unverified-disk"));
            files::write(&disk, recording.disk_after(cut))?;
            bail!(
                "cutting the power {} times, --seed {seed}: {count} disks are unverified; the first is {}, \
                 after cut {}",
                self.cuts,
                disk.display(),
                cut.trial
            );
        }
        for (index, (found, cut)) in tally.in_turn().into_iter().take(self.boots).enumerate() {
            let boots = torture::boot(&recording.disk_after(cut), &folder.join("boot"))
                .with_context(|| format!("booting the disk after cut {} of --seed {seed}", cut.trial))?;
            println!("boot {}: {}: {}", index + 1, found.describe(), if boots { "starts" } else { "does not start" });
        }
        println!("{} cuts, 0 unverified", self.cuts);
        Ok(())
    }
}
