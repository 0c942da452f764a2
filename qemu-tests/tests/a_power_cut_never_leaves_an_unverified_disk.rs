//! The power is cut while images are written or refused and while a disk is erased. `cargo xtask torture` does the same
//! for longer.

use anyhow::Result;
use qemu_tests::timed;
use xtask::check::torture::{self, Recording};

const CUTS: u64 = 300;
const BOOTS: usize = 3;
const SEED: u64 = 1;

#[test]
fn a_power_cut_never_leaves_an_unverified_disk() -> Result<()> {
    timed("a power cut never leaves an unverified disk", || {
        let folder = tempfile::tempdir()?;
        torture::record(folder.path())?;
        let recording = Recording::load(folder.path())?;
        let tally = recording.judge(SEED, CUTS, |_| {})?;
        let found = tally.lines(recording.runs()).join("\n");
        assert!(tally.unverified().is_empty(), "cut of seed {SEED}:\n{found}");
        for wanted in ["nothing", "the old system", "the new system"] {
            assert!(found.contains(wanted), "{wanted} is never found, so nothing was tested:\n{found}");
        }
        for (_, cut) in tally.in_turn().into_iter().take(BOOTS) {
            torture::boot(&recording.disk_after(cut), &folder.path().join("boot"))?;
        }
        Ok(())
    })
}
