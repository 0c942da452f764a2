//! A real block device: a loop device over a file.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, mpsc};

use slipway_actions::{Error, ImageError, Report, SourceError, is_transient};
use slipway_protocol::{Action, EraseDisk, EraseMode, FileSystemKind, PartitionChoice, StreamImage};

use common::disk_image::run;
use common::loop_device::{self, Loop};
use common::partitions::{cut_out, info, make, new, partition, succeeds, verify};
use common::written::file;
use common::{Answer, Bench, MIB, Server, chain, image, sha256, stream, zstd};

const DISK: usize = 40 * MIB;

/// A machine whose disk is a loop device with this sector size.
fn with_device(sector: usize, size: usize) -> (Bench, Loop) {
    let mut bench = Bench::without_disks();
    let device = Loop::new(&bench.path("backing"), sector, size);
    bench.add_device(&device.0, size);
    (bench, device)
}

#[test]
fn an_image_is_written_to_a_block_device_and_erased_again() {
    let Some(_alone) = loop_device::alone() else { return };
    let (bench, device) = with_device(512, DISK);
    let raw = image(33 * MIB + 517);
    let done = bench.streams(StreamImage { raw_digest: Some(sha256(&raw)), ..file(&bench, &zstd(&raw)) }).0;
    assert_eq!(done.outcome.warnings, [""; 0]);
    assert!(fs::read(&device.0).unwrap()[..raw.len()] == raw);
    let action = EraseDisk { mode: EraseMode::Zero, ..EraseDisk::default() };
    bench.succeeds(&Action::EraseDisk(action));
    assert!(fs::read(bench.path("backing")).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn a_device_that_vanishes_while_it_is_written_is_said_to_have_vanished() {
    let Some(_alone) = loop_device::alone() else { return };
    let (bench, device) = with_device(512, DISK);
    let backing = bench.path("backing");
    let body = Arc::new(image(33 * MIB));
    let digest = Some(sha256(&body));
    let pulled = device.0.clone();
    let (written, is_written) = mpsc::channel();
    let server = Server::start(move |n, _| {
        if n == 1 {
            // Pending writes to the disk would make the file longer again.
            is_written.recv().unwrap();
            Loop::vanish(&pulled, &backing);
        }
        let until = if n == 0 { 16 * MIB } else { usize::MAX };
        Answer::File { body: Arc::clone(&body), etag: Some("\"1\""), until }
    });
    let mut notes = Vec::new();
    let action = Action::StreamImage(StreamImage { digest, ..stream(&server.url) });
    let result = slipway_actions::run(&action, &bench, &mut |report| match report {
        Report::Note(note) => notes.push(note),
        Report::Progress(progress) if progress.bytes == 16 * MIB as u64 => _ = written.send(()),
        Report::Progress(_) => {}
    });
    let error = result.unwrap_err();
    let expect =
        format!("using {0}: the disk vanished: it was pulled out, or it lost power or its connection", device.0);
    assert!(chain(&error).starts_with(&expect), "{}", chain(&error));
    let Error::Vanished { source, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(**source, Error::WriteDisk { .. }), "{}", chain(&error));
    assert!(!is_transient(&error));
    let cleared = format!("the head of {} could not be cleared again: {expect}", device.0);
    assert!(notes.iter().any(|note| note.starts_with(&cleared)), "{notes:?}");
}

#[test]
fn a_device_is_not_written_over_itself_nor_from_a_partition_of_its_own() {
    let Some(_alone) = loop_device::alone() else { return };
    let (bench, device) = with_device(512, DISK);
    let mut sources = vec![device.0.clone()];
    run(Command::new("sh").args(["-c", "echo start=2048 | sfdisk -q --no-reread --no-tell-kernel \"$0\"", &device.0]));
    let partition = format!("{}p1", device.0);
    // Some kernels and containers do not show partitions of loop devices.
    let added = Command::new("partx").args(["--add", &device.0]).status().is_ok_and(|status| status.success());
    match added && fs::exists(&partition).unwrap() {
        true => sources.push(partition),
        false => eprintln!("not checked: {partition} is not there"),
    }
    let before = fs::read(bench.path("backing")).unwrap();
    for source in sources {
        let error = bench.run(&Action::StreamImage(stream(&source))).0.unwrap_err();
        assert_error!(error, Error::Source(SourceError::OnTarget { .. }), "{source}");
        assert!(fs::read(bench.path("backing")).unwrap() == before, "{source}");
    }
    drop(Command::new("partx").args(["--delete", &device.0]).status());
}

#[test]
fn a_disk_takes_images_made_for_its_blocks_and_is_left_as_it_was_by_others() {
    let Some(_alone) = loop_device::alone() else { return };
    for (block, made_for) in [(4096, 512), (512, 4096), (4096, 4096)] {
        let (bench, device) = with_device(block, DISK);
        fs::write(&device.0, vec![0xAA; DISK]).unwrap();
        let source = Loop::new(&bench.path("image"), made_for, 30 * MIB);
        run(Command::new("sgdisk").args(["--new=1:0:0", "--change-name=1:root"]).arg(&source.0));
        let raw = fs::read(&source.0).unwrap();
        drop(source);
        let action = StreamImage { digest: Some(sha256(&raw)), ..file(&bench, &raw) };
        let result = bench.run(&Action::StreamImage(action)).0;
        if block == made_for {
            assert_eq!(result.unwrap_or_else(|error| panic!("{}", chain(&error))).outcome.warnings, [""; 0]);
            verify(&device.0);
            continue;
        }
        let error = result.unwrap_err();
        let Error::Image(ImageError::BlockSize { expected, found, .. }) = error else { panic!("{}", chain(&error)) };
        assert_eq!((expected, found), (block as u64, made_for as u64));
        let disk = fs::read(&device.0).unwrap();
        assert!(disk.len() == DISK && disk.iter().all(|byte| *byte == 0xAA), "the disk is as it was");
    }
}

#[test]
fn a_disk_with_large_blocks_has_its_table_too() {
    let Some(_alone) = loop_device::alone() else { return };
    let (bench, device) = with_device(4096, 400 * MIB);
    succeeds(&bench, &partition(vec![new("esp", "300MiB", Some("esp")), new("linux", "rest", Some("data"))]));
    verify(&device.0);
    assert_eq!(info(Path::new(&device.0), 2, "First sector: "), (301 * MIB / 4096).to_string());
    succeeds(&bench, &make(PartitionChoice::Label("esp".to_owned()), FileSystemKind::Vfat, Some("EFI"), None));
    run(Command::new("fsck.vfat").arg("-n").arg(cut_out(&bench, Path::new(&device.0), 1, 300)));
    succeeds(&bench, &make(PartitionChoice::Number(2), FileSystemKind::Ext4, None, None));
    run(Command::new("e2fsck").args(["-f", "-n"]).arg(cut_out(&bench, Path::new(&device.0), 301, 98)));
}

#[test]
fn a_device_that_is_held_is_not_opened() {
    let Some(_alone) = loop_device::alone() else { return };
    let (bench, device) = with_device(512, DISK);
    // A mount or a RAID opens the device exclusively, as here.
    let flags = rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC;
    let held = rustix::fs::open(&device.0, flags, rustix::fs::Mode::empty()).unwrap();
    let error = bench.run(&Action::EraseDisk(EraseDisk::default())).0.unwrap_err();
    assert!(chain(&error).starts_with(&format!("opening {}: ", device.0)), "{}", chain(&error));
    assert!(is_transient(&error));
    drop(held);
    bench.run(&Action::EraseDisk(EraseDisk::default())).0.unwrap();
}
