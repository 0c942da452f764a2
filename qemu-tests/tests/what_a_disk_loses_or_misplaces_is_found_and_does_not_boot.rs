//! Disks behind the device mapper of the machine's own kernel, which fails some of the writes, drops them, redirects
//! them to the place of other data, or corrupts their data in memory. A further disk fails when the written data is
//! read.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use qemu_tests::{Bench, has_empty_head, noise, stream, timed};
use slipway_parts::Arch;
use slipway_parts::cpio::{self, Archive, Entry, Node};
use slipway_protocol::{Action, RunState, Step, StreamImage, Verify};
use xtask::build::kernel;
use xtask::host::command;
use xtask::lab::qemu::{Boot, Disk, MachineConfig, drive};

const DISK_SIZE: usize = 32 << 20;
const IMAGE_SIZE: usize = 24 << 20;
/// Path of the program that the machine runs first. The program then replaces itself with the boot image's /init.
const BEFORE: &str = "/before";
/// Sectors 20000 to 20007 of every disk are faulty. This is the byte offset of sector 20000.
const FAULT: u64 = 20_000 * 512;
/// The faults as device-mapper tables (kernel documentation, admin-guide/device-mapper): `dm-0` is on `vda`, `dm-1` on
/// `vdb`, and so on. dm-flakey is always down if its up interval is 0 seconds.
const FAULTS: [&str; 4] = [
    "8 error",
    "8 flakey /dev/vdb 20000 0 1 1 drop_writes",
    "8 linear /dev/vdc 20008",
    "8 flakey /dev/vdd 20000 0 1 5 corrupt_bio_byte 32 w 7 0",
];

/// A disk, and the expected report.
struct Case {
    device: &'static str,
    /// Start of the reported reason, and its cause. `None` if the reason has no further cause.
    reason: &'static str,
    cause: Option<&'static str>,
}

const EIO: Option<&str> = Some("I/O error (os error 5)");
const CASES: [Case; 5] = [
    Case { device: "/dev/dm-0", reason: "writing /dev/dm-0 at byte ", cause: EIO },
    Case { device: "/dev/dm-1", reason: "reading /dev/dm-1 back: ", cause: None },
    Case { device: "/dev/dm-2", reason: "reading /dev/dm-2 back: ", cause: None },
    Case { device: "/dev/dm-3", reason: "reading /dev/dm-3 back: ", cause: None },
    Case { device: "/dev/vde", reason: "reading /dev/vde at byte ", cause: EIO },
];

#[test]
fn what_a_disk_loses_or_misplaces_is_found_and_does_not_boot() -> Result<()> {
    timed("what a disk loses or misplaces is found and does not boot", || {
        let bench = Bench::new()?;
        let (url, digest) = bench.add_image(&noise(IMAGE_SIZE))?;
        bench.register()?;
        let disks = ["vda", "vdb", "vdc", "vdd", "vde"]
            .map(|name| Disk { path: bench.folder().join(name), serial: name.to_owned() });
        for disk in &disks {
            // The old content differs from the image, so that lost writes are noticed.
            fs::write(&disk.path, vec![0xA5; DISK_SIZE])?;
        }
        let [refuses, drops, misplaces, damages, forgets] = disks.clone();
        let rule = format!("event=none,iotype=read,sector={}", FAULT / 512);
        let extra = drive::faulty(&forgets, &[&rule]);
        let config = MachineConfig { disks: vec![refuses, drops, misplaces, damages], extra, ..bench.machine() };
        let machine = bench.power_on(&with_mappings(config, &bench.folder().join("initramfs"))?)?;
        let mut last = None;
        for case in &CASES {
            bench.start_run(&[to(case.device, stream("write", &url, digest.clone()))])?;
            let status = bench.wait_for(&machine, case.device, |node| {
                let ended = |run: &slipway_protocol::RunStatus| {
                    matches!(run.state, RunState::Failed | RunState::Succeeded) && Some(&run.id) != last.as_ref()
                };
                node.run.as_ref().is_some_and(ended)
            })?;
            let run = status.run.context("a run")?;
            let failure = run.steps[0].failure.as_ref().with_context(|| format!("{} did not fail", case.device))?;
            assert!(failure.reason.starts_with(case.reason), "{failure:#?}");
            assert_eq!(failure.causes.last().map(String::as_str), case.cause, "{failure:#?}");
            assert!(covers(&failure.reason, FAULT), "{failure:#?}");
            last = Some(run.id);
        }
        drop(machine);
        for disk in &disks {
            assert!(has_empty_head(&disk.path)?, "{}", disk.serial);
        }
        Ok(())
    })
}

/// Directs a step at a disk, with complete readback.
fn to(device: &str, mut step: Step) -> Step {
    if let Action::StreamImage(StreamImage { disk, verify, .. }) = &mut step.action {
        (disk.device, *verify) = (Some(device.to_owned()), Verify::Readback);
    }
    step
}

/// Whether the piece of the disk that a reason names, at most one MiB, contains this byte.
fn covers(reason: &str, byte: u64) -> bool {
    let after = reason.split("byte ").nth(1).unwrap_or_default();
    let digits = after.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse::<u64>().is_ok_and(|at| (at..at + (1 << 20)).contains(&byte))
}

/// Configures the machine to make mappings on its disks before the boot image starts.
fn with_mappings(mut machine: MachineConfig, file: &Path) -> Result<MachineConfig> {
    if let Boot::Kernel { initramfs, cmdline, .. } = &mut machine.boot {
        let mut bytes = fs::read(&*initramfs)?;
        cpio::pad(&mut bytes);
        bytes.extend(mapper()?.to_bytes(0));
        fs::write(file, bytes)?;
        *initramfs = file.to_owned();
        cmdline.push_str(&format!(" rdinit={BEFORE}"));
    }
    Ok(machine)
}

/// Makes an archive with a shell, the programs and modules of the device mapper, and the script that uses them.
fn mapper() -> Result<Archive> {
    let mut archive = Archive::default();
    let dmsetup = fs::canonicalize("/sbin/dmsetup").context("looking for dmsetup")?;
    let linked = command::stdout(&mut command::command("ldd", [&dmsetup]))?;
    let libraries = linked.split_whitespace().filter(|word| word.starts_with('/'));
    for path in libraries.chain(["/sbin/dmsetup", "/bin/busybox"]) {
        archive.add_file(path, 0o755, fs::read(path).with_context(|| format!("reading {path}"))?);
    }
    let modules = kernel::fetch(Some(kernel::CLOUD), Arch::X86_64)?.modules().join("kernel/drivers/md");
    for name in ["dm-mod.ko", "dm-flakey.ko"] {
        archive.add_file(&format!("/{name}"), 0o644, fs::read(modules.join(name))?);
    }
    archive.add(BEFORE, Entry { node: Node::File(script().into_bytes()), mode: 0o755 });
    Ok(archive)
}

fn script() -> String {
    let mut script = "#!/bin/busybox sh\n\
        set -e\n\
        b=/bin/busybox\n\
        $b mount -t devtmpfs devtmpfs /dev\n\
        $b mount -t proc proc /proc\n\
        $b mount -t sysfs sysfs /sys\n\
        $b modprobe virtio_pci\n\
        $b modprobe virtio_blk\n\
        $b insmod /dm-mod.ko\n\
        $b insmod /dm-flakey.ko\n"
        .to_owned();
    for (index, (fault, letter)) in FAULTS.iter().zip(["a", "b", "c", "d"]).enumerate() {
        let (disk, end) = (format!("/dev/vd{letter}"), DISK_SIZE / 512);
        let table = format!("0 20000 linear {disk} 0\\n20000 {fault}\\n20008 {} linear {disk} 20008\\n", end - 20_008);
        script.push_str(&format!("while ! [ -b {disk} ]; do $b sleep 0.1; done\n"));
        script.push_str(&format!("printf '{table}' | /sbin/dmsetup create --noudevsync --noudevrules fault-{index}\n"));
    }
    // The boot image must become PID 1, so the shell replaces itself.
    script.push_str("exec /init\n");
    script
}
