//! What uses a disk is taken down where slipway is the operating system, and nowhere else.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use slipway_actions::{Done, Error, Host, HostOptions, Machine, Report, is_transient};
use slipway_protocol::{Action, DiskHints, EraseDisk};

use common::disk_image::{can_mount, run};
use common::{Bench, MIB, chain};

/// A machine without disks. slipway is its operating system.
fn owned() -> Bench {
    let mut bench = Bench::without_disks();
    bench.setup.is_operating_system = true;
    bench
}

/// A mounted loop device with a file system. A file in it is the disk of a second loop device, which is mounted inside
/// the first. Everything that remains is removed on drop.
struct Stack {
    outer: String,
    inner: String,
    place: PathBuf,
    backing: PathBuf,
}

impl Stack {
    fn new(bench: &Bench) -> Self {
        let place = bench.path("a place");
        fs::create_dir(&place).unwrap();
        let outer = attach(&bench.path("backing"), 40 * MIB);
        run(Command::new("mkfs.ext4").args(["-q", &outer]));
        run(Command::new("mount").arg(&outer).arg(&place));
        let inner = attach(&place.join("image"), 10 * MIB);
        run(Command::new("mkfs.ext4").args(["-q", &inner]));
        fs::create_dir(place.join("inner")).unwrap();
        run(Command::new("mount").arg(&inner).arg(place.join("inner")));
        Self { outer, inner, place, backing: bench.path("backing") }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // Lazily, because a loop device that another process has open is released only later.
        let umount = |place: &Path| drop(Command::new("umount").args(["--quiet", "--lazy"]).arg(place).output());
        umount(&self.place.join("inner"));
        detach(&self.place.join("image"));
        umount(&self.place);
        detach(&self.backing);
    }
}

/// Detaches the loop devices of a file. By file, because another process may have taken a device that was released.
fn detach(file: &Path) {
    let found = Command::new("losetup").args(["--noheadings", "--output", "NAME", "--associated"]).arg(file).output();
    for device in String::from_utf8(found.unwrap().stdout).unwrap().split_whitespace() {
        drop(Command::new("losetup").args(["--detach", device]).output());
    }
}

fn attach(file: &Path, size: usize) -> String {
    File::create(file).unwrap().set_len(size as u64).unwrap();
    run(Command::new("losetup").args(["--find", "--show"]).arg(file)).trim().to_owned()
}

fn erase(machine: &dyn Machine, hints: DiskHints) -> (Result<Done, Error>, Vec<String>) {
    let mut notes = Vec::new();
    let action = Action::EraseDisk(EraseDisk { disk: hints, ..EraseDisk::default() });
    let result = slipway_actions::run(&action, machine, &mut |report| {
        if let Report::Note(note) = report {
            notes.push(note);
        }
    });
    (result, notes)
}

#[test]
fn everything_on_the_disk_goes_uppermost_first_and_is_named() {
    let true = can_mount() else { return };
    let mut bench = owned();
    let stack = Stack::new(&bench);
    bench.add_device(&stack.outer, 40 * MIB);
    let (result, notes) = erase(&bench, DiskHints::default());
    result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let (disk, place) = (&stack.outer, stack.place.display());
    let expect = [
        format!("unmounting {place}/inner"),
        format!("releasing the loop device {}", stack.inner.trim_start_matches("/dev/")),
        format!("unmounting {place}"),
    ];
    let expect: Vec<String> = expect.iter().map(|step| format!("releasing {disk}: {step}")).collect();
    let taken_down: Vec<&String> = notes.iter().filter(|note| note.starts_with("releasing /dev/")).collect();
    assert_eq!(taken_down, expect.iter().collect::<Vec<_>>());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    // Searches for the folder's unique name, because links in paths are resolved and blanks escaped there.
    assert!(!mounts.contains(bench.dir.path().file_name().unwrap().to_str().unwrap()), "{mounts}");
    assert!(fs::read(bench.path("backing")).unwrap()[..16 * MIB].iter().all(|byte| *byte == 0));
}

#[test]
fn swap_on_the_disk_ends() {
    let true = can_mount() else { return };
    let mut bench = owned();
    let device = attach(&bench.path("backing"), 20 * MIB);
    bench.add_device(&device, 20 * MIB);
    run(Command::new("mkswap").args(["-q", &device]));
    let swaps = Command::new("swapon").arg(&device).output().unwrap();
    let (result, notes) = erase(&bench, DiskHints::default());
    drop(Command::new("swapoff").arg(&device).output());
    detach(&bench.path("backing"));
    result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    match swaps.status.success() {
        true => assert!(notes.iter().any(|note| note.ends_with(&format!("turning off swap on {device}"))), "{notes:?}"),
        false => eprintln!("not checked: this kernel does not swap to a loop device: {swaps:?}"),
    }
}

#[test]
fn a_mount_that_is_in_use_stays_and_is_named() {
    let true = can_mount() else { return };
    let mut bench = owned();
    let stack = Stack::new(&bench);
    bench.add_device(&stack.outer, 40 * MIB);
    let open = File::create(stack.place.join("inner/open")).unwrap();
    let error = erase(&bench, DiskHints::default()).0.unwrap_err();
    let (disk, place) = (&stack.outer, stack.place.display());
    let expect = format!("releasing {disk}: unmounting {place}/inner: ");
    assert!(chain(&error).starts_with(&expect), "{}", chain(&error));
    assert!(is_transient(&error));
    assert!(fs::read(bench.path("backing")).unwrap()[..16 * MIB].iter().any(|byte| *byte != 0), "nothing was erased");
    drop(open);
}

#[test]
fn on_a_system_of_somebody_elses_a_mounted_disk_is_refused() {
    let true = can_mount() else { return };
    let mut bench = Bench::without_disks();
    let stack = Stack::new(&bench);
    let mounted = || fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&stack.outer);
    let host = Host::new(HostOptions::default());
    let hints = || DiskHints { device: Some(stack.outer.clone()), ..DiskHints::default() };
    let (result, notes) = erase(&host, hints());
    let error = chain(&result.unwrap_err());
    let expect = format!("{} is in use: {} is mounted at", stack.outer, stack.outer);
    assert!(error.contains(&expect), "{error}");
    assert_eq!(notes, [""; 0]);
    // It is not taken down either where it is not known to be in use.
    bench.add_device(&stack.outer, 40 * MIB);
    let error = chain(&erase(&bench, DiskHints::default()).0.unwrap_err());
    assert!(error.starts_with(&format!("opening {}: ", stack.outer)), "{error}");
    assert!(mounted(), "the mount is still there");
    let owned = Host::new(HostOptions { is_operating_system: true, ..HostOptions::default() });
    erase(&owned, hints()).0.unwrap_or_else(|error| panic!("{}", chain(&error)));
}

/// What is built on a disk is in use, and so is the disk, however many devices lie between.
#[test]
fn a_disk_with_a_mount_some_devices_above_is_refused() {
    let true = can_mount() else { return };
    let bench = Bench::without_disks();
    let (backing, place) = (bench.path("backing"), bench.path("place"));
    fs::create_dir(&place).unwrap();
    let lowest = attach(&backing, 40 * MIB);
    let on = |device: &str| {
        run(Command::new("losetup").args(["--find", "--show", "--offset", "1MiB", device])).trim().to_owned()
    };
    let middle = on(&lowest);
    let top = on(&middle);
    let host = Host::new(HostOptions::default());
    let refusal = |disk: &str| {
        chain(&erase(&host, DiskHints { device: Some(disk.to_owned()), ..DiskHints::default() }).0.unwrap_err())
    };
    let is_held = |by: &str| format!(" is held by {}", by.trim_start_matches("/dev/"));
    run(Command::new("mkfs.ext4").args(["-q", &top]));
    let unmounted = refusal(&lowest);
    run(Command::new("mount").arg(&top).arg(&place));
    let refusals = [&lowest, &middle, &top].map(|disk| refusal(disk));
    let of_file = refusal(backing.to_str().unwrap());
    drop(Command::new("umount").arg(&place).output());
    for device in [&top, &middle, &lowest] {
        drop(Command::new("losetup").args(["--detach", device]).output());
    }
    assert!(unmounted.ends_with(&format!("is in use: {lowest}{}, {middle}{}", is_held(&middle), is_held(&top))));
    let mounted = format!("{top} is mounted at {}", place.display());
    for (refusal, disk) in refusals.iter().zip([&lowest, &middle, &top]) {
        assert!(refusal.contains(&format!("{disk} is in use: {disk} is ")) && refusal.ends_with(&mounted), "{refusal}");
    }
    assert!(of_file.contains(&is_held(&lowest)) && of_file.ends_with(&mounted), "{of_file}");
    let hints = DiskHints { device: Some(backing.display().to_string()), ..DiskHints::default() };
    erase(&host, hints).0.unwrap_or_else(|error| panic!("{}", chain(&error)));
}
