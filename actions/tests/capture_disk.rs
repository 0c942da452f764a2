//! `capture-disk`: the stored image is the disk byte for byte, or there is no image and the error says why.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use slipway_actions::{CaptureError, Done, Error, Host, HostOptions, Machine, Upload, UploadError, is_transient, run};
use slipway_protocol::{Action, CaptureDisk, CapturedImage, StreamImage};

use common::{Bench, MIB, chain, image, sha256, stream};

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

/// Stores captured disks in memory.
#[derive(Default)]
struct Store {
    stored: Mutex<Vec<u8>>,
    committed: Mutex<Option<CapturedImage>>,
}

/// Has a machine store what it captures. `begun` is called when the image is begun. The disk is open then, but nothing
/// was read yet.
fn storing(bench: &mut Bench, turns: &[Turn], begun: impl Fn() + Send + Sync + 'static) -> Arc<Store> {
    let (store, turns) = (Arc::new(Store::default()), turns.to_vec());
    let kept = Arc::clone(&store);
    bench.begin = Some(Box::new(move || {
        begun();
        Box::new(Place { store: Arc::clone(&kept), turns: turns.clone().into_iter() })
    }));
    store
}

fn capture() -> Action {
    Action::CaptureDisk(CaptureDisk { name: "web1.zst".to_owned(), ..CaptureDisk::default() })
}

#[track_caller]
fn fails(bench: &mut Bench, turns: &[Turn], begun: impl Fn() + Send + Sync + 'static) -> Error {
    let store = storing(bench, turns, begun);
    let error = bench.run(&capture()).0.map(|done| panic!("succeeded: {done:?}")).unwrap_err();
    assert_eq!(*store.committed.lock().unwrap(), None, "{}", chain(&error));
    error
}

struct Place {
    store: Arc<Store>,
    turns: std::vec::IntoIter<Turn>,
}

impl Upload for Place {
    fn put(&mut self, offset: u64, piece: &[u8]) -> Result<u64, UploadError> {
        let mut stored = self.store.stored.lock().unwrap();
        let turn = self.turns.next().unwrap_or(Turn::Store);
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
        *self.store.committed.lock().unwrap() = Some(image.clone());
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
        let (mut bench, raw) = bench(size);
        let store = storing(&mut bench, &[], || {});
        let (done, reports) = bench.succeeds(&capture());
        let stored = store.stored.lock().unwrap().clone();
        let expected = CapturedImage {
            name: "web1.zst".to_owned(),
            size: stored.len() as u64,
            digest: sha256(&stored),
            raw_size: size as u64,
            raw_digest: sha256(&raw),
        };
        assert_eq!(store.committed.lock().unwrap().as_ref(), Some(&expected), "{size}");
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
            other.streams(image);
            assert!(other.disk()[..size] == raw, "{size}");
        }
    }
}

#[test]
fn a_cut_line_costs_nothing_that_was_stored() {
    let (mut bench, raw) = bench(DISK);
    let cut = [Turn::Half, Turn::LoseAnswer, Turn::Fail { is_transient: true }, Turn::LoseAnswer];
    let store = storing(&mut bench, &cut, || {});
    let reports = bench.succeeds(&capture()).1;
    let stored = store.stored.lock().unwrap().clone();
    assert!(zstd::decode_all(stored.as_slice()).unwrap() == raw);
    assert!(reports.notes.iter().any(|note| note.contains("continues: the line was cut")), "{:?}", reports.notes);
}

#[test]
fn a_place_that_fails_is_an_error_and_there_is_no_image() {
    let (mut bench, _) = bench(DISK);
    let error = fails(&mut bench, &[Turn::Store, Turn::Fail { is_transient: false }], || {});
    assert_eq!(chain(&error), "storing the image web1.zst: the line was cut");
    assert!(!is_transient(&error));

    let error = fails(&mut bench, &[Turn::Store, Turn::Forget], || {});
    assert_error!(error, Error::Capture(CaptureError::UploadLost { stored: 0, .. }));
    assert!(is_transient(&error));
}

#[test]
fn a_failing_read_names_its_place_and_there_is_no_image() {
    let (mut bench, _) = bench(DISK);
    let disk = bench.path("disk");
    // The disk is truncated after it was opened, so reading beyond its new end fails.
    let cut = move || fs::OpenOptions::new().write(true).open(&disk).unwrap().set_len(9_000_000).unwrap();
    let error = fails(&mut bench, &[], cut);
    let block = 9_000_000 / 4096 * 4096;
    assert_error!(error, Error::ReadDisk { offset, .. } if offset == block);
    assert!(!is_transient(&error));
}

#[test]
fn a_request_to_stop_is_heard() {
    // The smallest disk is read and sent before anything checks for a request to stop.
    for size in [1, DISK] {
        let (mut bench, _) = bench(size);
        let cancel = bench.cancel().clone();
        assert!(matches!(fails(&mut bench, &[], move || cancel.set()), Error::Cancelled), "{size}");
    }
}

#[test]
fn what_is_in_use_is_not_captured_and_what_is_write_protected_is() {
    let (mut bench, _) = bench(DISK);
    bench.disks[0].disk.read_only = true;
    storing(&mut bench, &[], || {});
    bench.succeeds(&capture());
    bench.disks[0].in_use = Some("mounted on /".to_owned());
    let error = fails(&mut bench, &[], || {});
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
