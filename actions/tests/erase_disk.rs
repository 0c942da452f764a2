//! `erase-disk`: nothing is recognised on the disk afterwards.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use common::disk_image::{LINUX, Part, claim_entries, make, run, widen_entries};
use common::{Bench, MIB, chain};
use slipway_actions::{Candidate, Error, Machine};
use slipway_protocol::{Action, Disk, DiskChoice, DiskHints, EraseDisk, EraseMode, Erasure};

fn erase(bench: &Bench, mode: EraseMode) -> slipway_actions::Done {
    let (result, reports) = bench.run(&Action::EraseDisk(EraseDisk { mode, ..EraseDisk::default() }));
    let last = reports.progress.last().unwrap();
    assert_eq!(Some(last.bytes), last.total);
    result.unwrap()
}

#[test]
fn metadata_leaves_nothing_to_recognise_on_the_disk_or_in_its_partitions() {
    let bench = Bench::new(100 * MIB);
    let path = bench.path("disk");
    two_partitions(&bench);
    File::options().write(true).open(&path).unwrap().write_all_at(&[0xAA; MIB], 70 * MIB as u64).unwrap();
    let done = erase(&bench, EraseMode::Metadata);
    assert!(done.outcome.summary.contains("the ends of 2 partitions"), "{}", done.outcome.summary);
    let wipefs = common::disk_image::run(Command::new("wipefs").arg("-n").arg(&path));
    assert_eq!(wipefs, "", "wipefs finds nothing on the disk");
    let disk = bench.disk();
    for zero in [0..17, 29..30, 40..56, 98..100] {
        assert!(disk[zero.start * MIB..zero.end * MIB].iter().all(|byte| *byte == 0), "{zero:?} MiB are zero");
    }
    assert!(disk[70 * MIB..71 * MIB].iter().all(|byte| *byte == 0xAA), "data is left alone");
    let blkid = Command::new("blkid").args(["-p", "-O", &MIB.to_string()]).arg(&path).output().unwrap();
    assert!(blkid.stdout.is_empty(), "blkid finds nothing in the first partition");
}

#[test]
fn zero_clears_every_byte() {
    let bench = Bench::new(70 * MIB + 4096);
    erase(&bench, EraseMode::Zero);
    assert!(bench.disk().iter().all(|byte| *byte == 0));
}

#[test]
fn discard_leaves_zeros() {
    let bench = Bench::new(20 * MIB);
    let done = erase(&bench, EraseMode::Discard);
    assert!(bench.disk().iter().all(|byte| *byte == 0));
    assert!(done.outcome.summary.ends_with("every block discarded (20 MiB)"), "{}", done.outcome.summary);
    let Erasure::Erased { samples, .. } = done.outcome.disks[0].result else { panic!("{:?}", done.outcome.disks) };
    assert_eq!(samples, 257);
}

#[test]
fn a_disk_that_cannot_be_erased_as_asked_falls_back_only_as_far_as_it_may() {
    let bench = Bench::new(20 * MIB);
    let erase = |fallback: &[EraseMode]| {
        let action = EraseDisk { mode: EraseMode::Secure, fallback: fallback.to_vec(), ..EraseDisk::default() };
        bench.run(&Action::EraseDisk(action))
    };
    let error = chain(&erase(&[]).0.unwrap_err());
    let reason =
        format!("erasing {} with mode secure: it is not an NVMe, ATA or eMMC disk", bench.path("disk").display());
    assert!(error.starts_with(&reason), "{error}");
    assert!(bench.disk().iter().all(|byte| *byte == 0xAA), "nothing was written");

    let (result, reports) = erase(&[EraseMode::Zero]);
    let outcome = result.unwrap().outcome;
    assert!(outcome.summary.contains("every byte"), "{}", outcome.summary);
    let [warning] = outcome.warnings.as_slice() else { panic!("{:?}", outcome.warnings) };
    assert!(warning.starts_with(&reason) && warning.ends_with("falling back to zero"), "{warning}");
    assert!(reports.notes.contains(warning), "{:?}", reports.notes);
    assert!(bench.disk().iter().all(|byte| *byte == 0));
}

/// Erases every matching disk, by a workflow with `choose: all`.
fn erase_all() -> Action {
    let disk = DiskHints { choose: DiskChoice::All, ..DiskHints::default() };
    Action::EraseDisk(EraseDisk { disk, mode: EraseMode::Zero, ..EraseDisk::default() })
}

#[test]
fn all_disks_are_erased_with_a_result_for_each_and_none_is_left_out_silently() {
    let mut bench = Bench::new(30 * MIB);
    for name in ["second", "protected", "mounted", "card"] {
        bench.add_disk(name, 20 * MIB);
    }
    bench.disks[2].disk.read_only = true;
    bench.disks[3].in_use = Some("it is mounted at /srv".to_owned());
    bench.disks[4].disk.removable = true;
    let (result, reports) = bench.run(&erase_all());
    let outcome = result.unwrap().outcome;
    let result = |name: &str| {
        let path = bench.path(name).display().to_string();
        outcome.disks.iter().find(|disk| disk.path == path).map(|disk| disk.result.clone()).unwrap()
    };
    for (name, size) in [("disk", "30 MiB"), ("second", "20 MiB")] {
        let expect = format!("every byte overwritten with zeros ({size})");
        let Erasure::Erased { method, samples, .. } = result(name) else { panic!("{outcome:?}") };
        assert_eq!((method, samples), (expect, 257));
        assert!(std::fs::read(bench.path(name)).unwrap().iter().all(|byte| *byte == 0), "{name}");
    }
    for (name, why) in [("protected", "write-protected"), ("mounted", "mounted at /srv"), ("card", "removable")] {
        let Erasure::Skipped { reason } = result(name) else { panic!("{outcome:?}") };
        assert!(reason.contains(why), "{reason}");
        assert!(reports.notes.iter().any(|note| note.contains(name) && note.contains(why)), "{:?}", reports.notes);
        assert!(std::fs::read(bench.path(name)).unwrap().iter().all(|byte| *byte == 0xAA), "{name} was left alone");
    }
    assert!(outcome.summary.ends_with("; skipped 3"), "{}", outcome.summary);
    let last = reports.progress.last().unwrap();
    assert_eq!((last.bytes, last.total), (50 * MIB as u64, Some(50 * MIB as u64)));
}

#[test]
fn nothing_is_erased_if_a_disk_that_stays_would_be_skipped() {
    let mut bench = Bench::new(20 * MIB);
    for name in ["card", "medium", "protected"] {
        bench.add_disk(name, 20 * MIB);
    }
    let Action::EraseDisk(erase) = erase_all() else { panic!("another action") };
    let strict = Action::EraseDisk(EraseDisk { strict: true, ..erase });
    bench.disks[3].disk.read_only = true;
    let error = chain(&bench.run(&strict).0.unwrap_err());
    let expect = format!("{}: skipped: it is write-protected; unplug", bench.path("protected").display());
    assert!(error.contains("nothing was erased") && error.contains(&expect), "{error}");
    assert!(bench.disk().iter().all(|byte| *byte == 0xAA), "nothing was written");
    // Disks that do not stay in the machine are skipped as before.
    bench.disks[1].disk.removable = true;
    bench.disks[2].boot_medium = Some("slipway started from it".to_owned());
    bench.disks[3].disk.removable = true;
    let outcome = bench.run(&strict).0.unwrap().outcome;
    assert!(outcome.summary.ends_with("; skipped 3"), "{}", outcome.summary);
}

#[test]
fn a_disk_with_several_paths_is_erased_once() {
    let mut bench = Bench::new(20 * MIB);
    bench.add_disk("path", 20 * MIB);
    bench.disks[1].disk.other_path_to = Some(bench.place("disk"));
    let (result, reports) = bench.run(&erase_all());
    let outcome = result.unwrap().outcome;
    let [erased] = outcome.disks.as_slice() else { panic!("{outcome:?}") };
    assert_eq!(erased.path, bench.place("disk"));
    assert!(std::fs::read(bench.path("path")).unwrap().iter().all(|byte| *byte == 0xAA), "the other path is not used");
    let other = format!("({} is another path to it)", bench.place("path"));
    assert!(reports.notes[0].ends_with(&other), "{:?}", reports.notes);
    assert!(outcome.summary.starts_with("erased ") && !outcome.summary.contains("skipped"), "{}", outcome.summary);
    // The best path cannot be written to, so the other is the disk.
    bench.disks[0].disk.read_only = true;
    let outcome = bench.run(&erase_all()).0.unwrap().outcome;
    let paths: Vec<&str> = outcome.disks.iter().map(|disk| disk.path.as_str()).collect();
    assert_eq!(paths, [bench.place("path")]);
}

#[test]
fn one_disk_that_fails_does_not_keep_the_others_and_fails_the_step() {
    let mut bench = Bench::new(20 * MIB);
    let path = bench.place("gone");
    let gone = Disk { path: path.clone(), size: MIB as u64, ..Disk::default() };
    bench.disks.push(Candidate { disk: gone, in_use: None, by_name_only: false, boot_medium: None });
    bench.add_disk("protected", 20 * MIB);
    bench.disks[2].disk.read_only = true;
    let (result, reports) = bench.run(&erase_all());
    let error = chain(&result.unwrap_err());
    assert!(error.starts_with(&format!("erasing 2 disks: opening {path}: No such file")), "{error}");
    assert!(bench.disk().iter().all(|byte| *byte == 0), "the other disk is erased");
    let erased = format!("erased {}: every byte overwritten with zeros (20 MiB), in ", bench.path("disk").display());
    let note = reports.notes.iter().find(|note| note.starts_with(&erased)).unwrap();
    assert!(note.ends_with(" ms, read back at 257 places"), "{note}");
    assert!(error.contains(&format!("; {note}")), "the failure has the result of the other disk: {error}");
    let skipped = format!("; skipped {}: ", bench.path("protected").display());
    assert!(error.contains(&skipped), "{error}");
}

#[test]
fn a_stop_ends_every_disk() {
    let mut bench = Bench::new(20 * MIB);
    bench.add_disk("second", 20 * MIB);
    bench.cancel().set();
    assert!(matches!(bench.run(&erase_all()).0, Err(Error::Cancelled)));
    assert!(bench.disk().iter().all(|byte| *byte == 0xAA));
}

/// Two partitions of at least 20 MiB, so that the head of the second is beyond the head of the disk.
fn two_partitions(bench: &Bench) -> Vec<u8> {
    let parts = [
        Part { mib: 1..30, type_guid: LINUX, name: "a", files: &[("file", "content")] },
        Part { mib: 40..99, type_guid: LINUX, name: "b", files: &[("file", "content")] },
    ];
    make(&bench.path("disk"), 100, &parts);
    bench.disk()
}

#[test]
fn a_disk_with_a_damaged_table_is_erased() {
    let backup_header = 100 * MIB - 512;
    for (damaged, expect) in [
        (vec![512 + 60], "the ends of 2 partitions"),
        (vec![1024 + 60], "the ends of 2 partitions"),
        (vec![512 + 60, backup_header + 60], "head and tail"),
        (vec![1024 + 60, backup_header - 32 * 512 + 60], "head and tail"),
    ] {
        let bench = Bench::new(MIB);
        let mut disk = two_partitions(&bench);
        damaged.iter().for_each(|at| disk[*at] ^= 1);
        for mode in [EraseMode::Metadata, EraseMode::Zero] {
            std::fs::write(bench.path("disk"), &disk).unwrap();
            let done = erase(&bench, mode);
            let expect = if mode == EraseMode::Zero { "every byte" } else { expect };
            assert!(done.outcome.summary.contains(expect), "{damaged:?}: {}", done.outcome.summary);
            assert_eq!(done.outcome.warnings, [""; 0]);
        }
    }
}

#[test]
fn a_disk_with_a_table_that_cannot_be_read_is_erased_with_a_warning() {
    for (change, expect) in [
        (widen_entries as fn(&mut [u8]), "128 entries of 256 bytes"),
        (|disk| claim_entries(disk, u32::MAX), "4294967295 entries of 128 bytes"),
    ] {
        let bench = Bench::new(MIB);
        let mut disk = two_partitions(&bench);
        change(&mut disk);
        std::fs::write(bench.path("disk"), &disk).unwrap();
        let done = erase(&bench, EraseMode::Metadata);
        assert!(done.outcome.summary.contains("head and tail"), "{}", done.outcome.summary);
        assert!(done.outcome.warnings[0].contains(expect), "{:?}", done.outcome.warnings);
    }
}

#[test]
fn logical_partitions_are_erased_too_even_where_their_chain_is_a_loop() {
    let bench = Bench::new(200 * MIB);
    let path = bench.path("disk");
    let script = "label: dos\nstart=2048, size=40960, type=83\nstart=43008, type=5\n\
                  start=65536, size=131072, type=83\nstart=204800, size=180224, type=83\n";
    run(Command::new("sh").args(["-c", "printf \"$1\" | sfdisk -q \"$2\"", "-", script]).arg(&path));
    let with_chain = bench.disk();
    let mut with_loop = with_chain.clone();
    // The second record of the first link holds the position of the next link, relative to this one.
    let link = 43008 * 512;
    assert_eq!(with_loop[link + 446 + 16 + 4], 5, "the chain begins where it is looked for");
    with_loop[link + 446 + 16 + 8..link + 446 + 16 + 12].fill(0);
    for (disk, count) in [(with_chain, 3), (with_loop, 2)] {
        std::fs::write(&path, &disk).unwrap();
        let done = erase(&bench, EraseMode::Metadata);
        assert!(done.outcome.summary.contains(&format!("the ends of {count} partitions")), "{}", done.outcome.summary);
        let erased = bench.disk();
        let is_zero = |at: usize| erased[at..at + MIB].iter().all(|byte| *byte == 0);
        assert!(is_zero(65536 * 512) && is_zero((65536 + 131072) * 512 - MIB), "the first logical partition");
        assert_eq!(is_zero(204800 * 512) && is_zero((204800 + 180224) * 512 - MIB), count == 3, "the second one");
    }
}
