//! A real block device: a loop device over a file.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::process::Command;

use common::disk_image::{can_mount, run};
use common::{Bench, MIB, chain, image, sha256, stream, zstd};
use slipway_actions::is_retryable;
use slipway_protocol::{Action, EraseDisk, EraseMode, StreamImage};

const DISK: usize = 40 * MIB;

struct Loop(String);

impl Loop {
    fn over(bench: &Bench) -> Self {
        let path = bench.path("backing");
        File::create(&path).unwrap().set_len(DISK as u64).unwrap();
        Self(run(Command::new("losetup").args(["--find", "--show"]).arg(path)).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run(Command::new("losetup").args(["--detach", &self.0]));
    }
}

#[test]
fn an_image_is_written_to_a_block_device_and_erased_again() {
    if !can_mount() {
        return;
    }
    let mut bench = Bench::without_disks();
    let device = Loop::over(&bench);
    bench.add_device(&device.0, DISK);
    let raw = image(33 * MIB + 517);
    fs::write(bench.path("image"), zstd(&raw)).unwrap();
    let action = StreamImage { raw_digest: Some(sha256(&raw)), ..stream(bench.path("image").to_str().unwrap()) };
    let done = bench.run(&Action::StreamImage(action)).0.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(done.outcome.warnings, [""; 0]);
    assert!(fs::read(&device.0).unwrap()[..raw.len()] == raw);
    let action = EraseDisk { mode: EraseMode::Zero, ..EraseDisk::default() };
    bench.run(&Action::EraseDisk(action)).0.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(fs::read(bench.path("backing")).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn a_device_that_is_held_is_not_opened() {
    if !can_mount() {
        return;
    }
    let mut bench = Bench::without_disks();
    let device = Loop::over(&bench);
    bench.add_device(&device.0, DISK);
    // What a mount or a RAID does: it opens the device exclusively.
    let flags = rustix::fs::OFlags::EXCL | rustix::fs::OFlags::RDONLY;
    let held = rustix::fs::open(&device.0, flags, rustix::fs::Mode::empty()).unwrap();
    let error = bench.run(&Action::EraseDisk(EraseDisk::default())).0.unwrap_err();
    assert!(chain(&error).starts_with(&format!("opening {}: ", device.0)), "{}", chain(&error));
    assert!(is_retryable(&error));
    drop(held);
    bench.run(&Action::EraseDisk(EraseDisk::default())).0.unwrap();
}
