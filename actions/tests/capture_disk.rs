//! `capture-disk`: the stored image is the disk byte for byte, or there is no image and the error says why.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use slipway_actions::{
    Cancel, Candidate, CaptureError, Done, Error, FetchError, Host, HostOptions, Machine, Report, Request, Response,
    Setup, Upload, UploadError, is_transient, run,
};
use slipway_protocol::{Action, CaptureDisk, CapturedImage, Disk, RecoveryKey, StreamImage};

use common::{Bench, MIB, Reports, chain, image, sha256, stream};

/// Not a multiple of any block size, and more than every buffer can hold.
const DISK: usize = 23 * MIB + 517;

/// What the image store does when it is asked to store the n-th piece, counted from 0.
#[derive(Clone, Copy)]
enum Turn {
    Store,
    /// Stores the piece, but reports a failure.
    LoseAnswer,
    /// Stores half of the piece.
    Half,
    Fail {
        is_transient: bool,
    },
    /// Forgets all pieces.
    Forget,
}

/// A machine that stores captured disks in memory.
struct Capturing<'a> {
    bench: &'a Bench,
    turns: Vec<Turn>,
    stored: Arc<Mutex<Vec<u8>>>,
    committed: Mutex<Option<CapturedImage>>,
    /// Called when the image is begun. The disk is open then, but nothing was read yet.
    begun: Box<dyn Fn() + Sync + 'a>,
}

impl<'a> Capturing<'a> {
    fn new(bench: &'a Bench, turns: &[Turn]) -> Self {
        let (stored, committed) = (Arc::default(), Mutex::default());
        Self { bench, turns: turns.to_vec(), stored, committed, begun: Box::new(|| {}) }
    }

    fn capture(&self) -> (Result<Done, Error>, Reports) {
        let mut reports = Reports::default();
        let action = Action::CaptureDisk(CaptureDisk { name: "web1.zst".to_owned(), ..CaptureDisk::default() });
        let result = run(&action, self, &mut |report| match report {
            Report::Note(note) => reports.notes.push(note),
            Report::Progress(progress) => reports.progress.push(progress),
        });
        (result, reports)
    }

    #[track_caller]
    fn fails(&self) -> Error {
        let error = self.capture().0.map(|done| panic!("succeeded: {done:?}")).unwrap_err();
        assert_eq!(*self.committed.lock().unwrap(), None, "{}", chain(&error));
        error
    }
}

impl Machine for Capturing<'_> {
    fn disks(&self) -> Result<Vec<Candidate>, Error> {
        self.bench.disks()
    }

    fn fetch(&self, request: &Request<'_>, stop: &Cancel) -> Result<Response, FetchError> {
        self.bench.fetch(request, stop)
    }

    fn cancel(&self) -> &Cancel {
        self.bench.cancel()
    }

    fn former_partitions(&self, disk: &Disk) -> Vec<String> {
        self.bench.former_partitions(disk)
    }

    fn load_kernel(&self, kernel: &File, initrd: Option<&File>, cmdline: &CStr) -> io::Result<()> {
        self.bench.load_kernel(kernel, initrd, cmdline)
    }

    fn setup(&self) -> &Setup {
        self.bench.setup()
    }

    fn escrow(&self, key: &RecoveryKey) -> Result<(), UploadError> {
        self.bench.escrow(key)
    }

    fn upload(&self, _: &str) -> Result<Box<dyn Upload + '_>, UploadError> {
        (self.begun)();
        Ok(Box::new(Place { machine: self, turn: 0 }))
    }
}

struct Place<'a> {
    machine: &'a Capturing<'a>,
    turn: usize,
}

impl Upload for Place<'_> {
    fn put(&mut self, offset: u64, piece: &[u8]) -> Result<u64, UploadError> {
        let mut stored = self.machine.stored.lock().unwrap();
        let turn = self.machine.turns.get(self.turn).copied().unwrap_or(Turn::Store);
        self.turn += 1;
        let failed = |is_transient| Err(UploadError { source: "the line was cut".into(), is_transient });
        if stored.len() as u64 == offset {
            match turn {
                Turn::Store | Turn::LoseAnswer => stored.extend_from_slice(piece),
                Turn::Half => stored.extend_from_slice(&piece[..piece.len() / 2]),
                Turn::Forget => stored.clear(),
                Turn::Fail { .. } => {}
            }
        }
        match turn {
            Turn::LoseAnswer => failed(true),
            Turn::Fail { is_transient } => failed(is_transient),
            Turn::Store | Turn::Half | Turn::Forget => Ok(stored.len() as u64),
        }
    }

    fn commit(&mut self, image: &CapturedImage) -> Result<(), UploadError> {
        *self.machine.committed.lock().unwrap() = Some(image.clone());
        Ok(())
    }
}

/// A machine with one disk that holds data, zeros, and data again.
fn bench(size: usize) -> (Bench, Vec<u8>) {
    let bench = Bench::new(size);
    let mut raw = image(size);
    raw[size / 3..size / 2].fill(0);
    fs::write(bench.path("disk"), &raw).unwrap();
    (bench, raw)
}

#[test]
fn a_captured_disk_can_be_written_again() {
    for size in [1, 511, 2 * MIB, 6 * MIB + 4096, DISK] {
        let (bench, raw) = bench(size);
        let machine = Capturing::new(&bench, &[]);
        let (result, reports) = machine.capture();
        let done = result.unwrap_or_else(|error| panic!("{size}: {}", chain(&error)));
        let stored = machine.stored.lock().unwrap().clone();
        let expected = CapturedImage {
            name: "web1.zst".to_owned(),
            size: stored.len() as u64,
            digest: sha256(&stored),
            raw_size: size as u64,
            raw_digest: sha256(&raw),
        };
        assert_eq!(machine.committed.lock().unwrap().as_ref(), Some(&expected), "{size}");
        assert_eq!(done.outcome.image.as_ref(), Some(&expected), "{size}");
        assert!(reports.notes[0].starts_with("chose "), "{:?}", reports.notes);
        let first = zstd::zstd_safe::get_frame_content_size(&stored).unwrap();
        assert!(first.is_some_and(|first| first <= 2 * MIB as u64), "frames decoded side by side say their size");
        let last = reports.progress.last().unwrap();
        assert_eq!((last.bytes, last.total, last.fetched), (size as u64, Some(size as u64), stored.len() as u64));
        assert!(bench.disk() == raw, "the disk is as it was");

        let other = Bench::new(size.next_multiple_of(4096));
        fs::write(other.path("image"), &stored).unwrap();
        // Without the digest of the raw image, frames are decoded in parallel.
        for raw_digest in [Some(expected.raw_digest.clone()), None] {
            let (digest, raw_size) = (Some(expected.digest.clone()), Some(expected.raw_size));
            let image = StreamImage { digest, raw_digest, raw_size, ..stream(other.place("image")) };
            let (result, _) = other.run(&Action::StreamImage(image));
            result.unwrap_or_else(|error| panic!("{size}: {}", chain(&error)));
            assert!(other.disk()[..size] == raw, "{size}");
        }
    }
}

#[test]
fn a_cut_line_costs_nothing_that_was_stored() {
    let (bench, raw) = bench(DISK);
    let cut = [Turn::Half, Turn::LoseAnswer, Turn::Fail { is_transient: true }, Turn::LoseAnswer];
    let machine = Capturing::new(&bench, &cut);
    let (result, reports) = machine.capture();
    result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let stored = machine.stored.lock().unwrap().clone();
    assert!(zstd::decode_all(stored.as_slice()).unwrap() == raw);
    assert!(reports.notes.iter().any(|note| note.contains("continues: the line was cut")), "{:?}", reports.notes);
}

#[test]
fn a_place_that_fails_is_an_error_and_there_is_no_image() {
    let (bench, _) = bench(DISK);
    let refusing = Capturing::new(&bench, &[Turn::Store, Turn::Fail { is_transient: false }]);
    let error = refusing.fails();
    assert_eq!(chain(&error), "storing the image web1.zst: the line was cut");
    assert!(!is_transient(&error));

    let forgetting = Capturing::new(&bench, &[Turn::Store, Turn::Forget]);
    let error = forgetting.fails();
    assert_error!(error, Error::Capture(CaptureError::UploadLost { stored: 0, .. }));
    assert!(is_transient(&error));
}

#[test]
fn a_failing_read_names_its_place_and_there_is_no_image() {
    let (bench, _) = bench(DISK);
    let mut machine = Capturing::new(&bench, &[]);
    let disk = bench.path("disk");
    // The disk is truncated after it was opened, so reading beyond its new end fails.
    machine.begun =
        Box::new(move || fs::OpenOptions::new().write(true).open(&disk).unwrap().set_len(9_000_000).unwrap());
    let error = machine.fails();
    let block = 9_000_000 / 4096 * 4096;
    assert_error!(error, Error::ReadDisk { offset, .. } if offset == block);
    assert!(!is_transient(&error));
}

#[test]
fn a_request_to_stop_is_heard() {
    // The smallest disk is read and sent before anything checks for a request to stop.
    for size in [1, DISK] {
        let (bench, _) = bench(size);
        let mut machine = Capturing::new(&bench, &[]);
        machine.begun = Box::new(|| bench.cancel().set());
        assert!(matches!(machine.fails(), Error::Cancelled), "{size}");
    }
}

#[test]
fn what_is_in_use_is_not_captured_and_what_is_write_protected_is() {
    let (mut bench, _) = bench(DISK);
    bench.disks[0].disk.read_only = true;
    Capturing::new(&bench, &[]).capture().0.unwrap();
    bench.disks[0].in_use = Some("mounted on /".to_owned());
    let error = Capturing::new(&bench, &[]).fails();
    assert!(chain(&error).contains("is in use: mounted on /"), "{}", chain(&error));
}

#[test]
fn a_name_that_leads_elsewhere_is_refused() {
    let (bench, _) = bench(4096);
    for name in ["", "../web1", "web1/disk", ".web1", "a b"] {
        let capture = CaptureDisk { name: name.to_owned(), ..CaptureDisk::default() };
        let (result, reports) = bench.run(&Action::CaptureDisk(capture));
        let error = result.unwrap_err();
        assert_error!(error, Error::Inputs { .. }, "{name:?}");
        assert!(reports.notes.is_empty(), "{name:?}: the disk was not looked for");
    }
}

/// Captures a disk to a file, and returns the result.
fn to_file(disk: &str, to: &Path) -> Result<Done, Error> {
    let host = Host::new(HostOptions { capture_to: Some(to.to_owned()), ..HostOptions::default() });
    let disk = slipway_protocol::DiskHints { device: Some(disk.to_owned()), ..Default::default() };
    run(&Action::CaptureDisk(CaptureDisk { disk, name: "web1.zst".to_owned() }), &host, &mut |_| {})
}

#[test]
fn by_hand_a_disk_becomes_a_file_and_replaces_none() {
    let (bench, raw) = bench(DISK);
    let disk = bench.place("disk");
    let to = bench.path("web1.zst");
    let done = to_file(&disk, &to).unwrap_or_else(|error| panic!("{}", chain(&error)));
    let stored = fs::read(&to).unwrap();
    assert_eq!(done.outcome.image.unwrap().digest, sha256(&stored));
    assert!(zstd::decode_all(stored.as_slice()).unwrap() == raw);

    let error = to_file(&disk, &to).unwrap_err();
    assert!(chain(&error).contains("a file with that name exists"), "{}", chain(&error));
    let error = to_file(&disk, &bench.path("disk")).unwrap_err();
    assert!(chain(&error).contains("a file with that name exists"), "{}", chain(&error));
    assert!(fs::read(&to).unwrap() == stored && bench.disk() == raw);
    let names: Vec<_> = fs::read_dir(bench.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "nothing half-made: {names:?}");
}
