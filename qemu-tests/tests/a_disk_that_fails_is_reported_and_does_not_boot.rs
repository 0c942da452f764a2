//! Disks with a bootable system that answer some requests with an error.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use qemu_tests::{Bench, noise, step, stream, timed};
use slipway_protocol::{Action, EraseDisk, RunState, Step, StreamImage};
use xtask::lab::qemu::{Disk, MachineConfig, drive, firmware};
use xtask::lab::{bootable, tables};

const IMAGE_SIZE: u64 = 64 << 20;
const FILLER: u64 = 40 << 20;
const DISK_SIZE: u64 = 80 << 20;

/// A disk and its fault.
struct Case {
    /// The disk's serial number.
    serial: &'static str,
    /// Rules of [`drive::faulty`].
    faults: &'static [&'static str],
    /// Makes the step from a step that writes the image.
    step: fn(Step) -> Step,
    /// Start of the reported reason, and its cause.
    reason: &'static str,
    cause: &'static str,
}

const EIO: &str = "I/O error (os error 5)";
const CASES: [Case; 4] = [
    Case {
        serial: "fails-in-the-middle",
        faults: &["event=none,iotype=write,sector=40000"],
        step: |step| step,
        reason: "writing /dev/vda at byte ",
        cause: EIO,
    },
    // Only the first block fails. It is written last, after the others were verified.
    Case {
        serial: "fails-at-the-last",
        faults: &["event=none,iotype=write,sector=0"],
        step: |step| step,
        reason: "flushing /dev/vdb",
        cause: EIO,
    },
    Case {
        serial: "does-not-flush",
        faults: &["event=none,iotype=flush"],
        step: |step| step,
        reason: "flushing /dev/vdc",
        cause: EIO,
    },
    // A sector in the middle of the erased head, which is read back, fails.
    Case {
        serial: "does-not-read",
        faults: &["event=none,iotype=read,sector=17408"],
        step: |_| step("erase", Action::EraseDisk(EraseDisk::default())),
        reason: "reading /dev/vdd at byte 8910848",
        cause: EIO,
    },
];

#[test]
fn a_disk_that_fails_is_reported_and_does_not_boot() -> Result<()> {
    timed("a disk that fails is reported and does not boot", || {
        let bench = Bench::new()?;
        let image = bench.folder().join("image");
        // The image is filled with data, because zeros are not written as data.
        bootable::make(&image, IMAGE_SIZE, Path::new(firmware::IPXE), &noise(FILLER as usize))?;
        let (url, digest) = bench.add_image(&fs::read(&image)?)?;
        bench.register()?;
        let disks = CASES.map(|case| Disk { path: bench.folder().join(case.serial), serial: case.serial.to_owned() });
        for disk in &disks {
            fs::copy(&image, &disk.path)?;
            File::options().write(true).open(&disk.path)?.set_len(DISK_SIZE)?;
        }
        let extra = CASES.iter().zip(&disks).flat_map(|(case, disk)| drive::faulty(disk, case.faults)).collect();
        let config = MachineConfig { disks: Vec::new(), extra, ..bench.machine() };
        let machine = bench.power_on(&config)?;
        let mut last = None;
        for case in &CASES {
            let step = named((case.step)(stream("write", &url, digest.clone())), case.serial);
            bench.start_run(&[step])?;
            let status = bench.wait_for(&machine, case.serial, |node| {
                node.run.as_ref().is_some_and(|run| run.state == RunState::Failed && Some(&run.id) != last.as_ref())
            })?;
            let run = status.run.context("a run")?;
            assert_eq!(run.steps[0].attempt, 1, "{}: it fails once", case.serial);
            let failure = run.steps[0].failure.as_ref().context("a failure")?;
            assert!(failure.reason.starts_with(case.reason), "{}: {failure:#?}", case.serial);
            assert_eq!(failure.causes.last().map(String::as_str), Some(case.cause), "{}: {failure:#?}", case.serial);
            last = Some(run.id);
        }
        drop(machine);
        for disk in &disks {
            let left = fs::read(&disk.path)?;
            assert!(tables::find(&left).is_empty(), "{}", disk.serial);
        }
        Ok(())
    })
}

/// Adds the disk's serial number to a step.
fn named(mut step: Step, serial: &str) -> Step {
    if let Action::StreamImage(StreamImage { disk, .. }) | Action::EraseDisk(EraseDisk { disk, .. }) = &mut step.action
    {
        disk.serial = serial.parse().ok();
    }
    step
}
