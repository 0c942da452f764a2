//! `stream-image` of qcow2 images, in one pass and by ranges.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::process::Command;
use std::sync::Arc;

use common::written::{DISK, check_does_not_boot, check_untouched_or_does_not_boot, fails};
use common::{Answer, Bench, MIB, Server, chain, image, sha256, status, stream};
use slipway_actions::{Error, FetchError, ImageError, SourceError};
use slipway_protocol::{Action, StreamImage};

/// Makes a qcow2 image from a raw one with qemu-img and these options of `convert`.
fn qcow2(bench: &Bench, raw: &[u8], options: &[&str]) -> StreamImage {
    fs::write(bench.path("raw"), raw).unwrap();
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]).args(options);
    let status = convert.arg(bench.path("raw")).arg(bench.path("image")).status().unwrap();
    assert!(status.success(), "{options:?}");
    stream(bench.path("image").to_str().unwrap())
}

#[test]
fn a_qcow2_image_arrives_as_the_raw_image_it_stands_for() {
    // A whole number of sectors, which qcow2 requires, with a hole.
    let raw = [image(3 * MIB), vec![0; 5 * MIB], image(MIB + 512)].concat();
    for options in [&[][..], &["-c"], &["-o", "compat=0.10"], &["-o", "cluster_size=4k"]] {
        let bench = Bench::new(DISK);
        let image = qcow2(&bench, &raw, options);
        let digest = Some(sha256(&fs::read(&image.url).unwrap()));
        let by_stream = StreamImage { digest, ..image.clone() };
        let by_ranges = StreamImage { raw_digest: Some(sha256(&raw)), ..image };
        for image in [by_stream, by_ranges] {
            let (result, reports) = bench.run(&Action::StreamImage(image.clone()));
            result.unwrap_or_else(|error| panic!("{options:?}: {}", chain(&error)));
            assert!(bench.disk().starts_with(&raw), "{options:?}");
            let by_ranges = reports.notes.iter().any(|note| note.starts_with("reading by ranges: "));
            assert_eq!(by_ranges, image.raw_digest.is_some(), "{:?}", reports.notes);
        }
    }
}

#[test]
fn what_no_table_of_a_qcow2_image_leads_to_is_read_past_and_counts_in_its_digest() {
    let raw = image(3 * MIB);
    let bench = Bench::new(DISK);
    let image = qcow2(&bench, &raw, &[]);
    let whole = fs::read(&image.url).unwrap();
    let longer = [whole.as_slice(), &vec![b'?'; 2 * MIB + 7]].concat();
    fs::write(&image.url, &longer).unwrap();
    let by_ranges = StreamImage { raw_digest: Some(sha256(&raw)), ..image.clone() };
    for image in [by_ranges, StreamImage { digest: Some(sha256(&longer)), ..image.clone() }] {
        fs::write(bench.path("disk"), vec![0xAA; DISK]).unwrap();
        let done = bench.run(&Action::StreamImage(image)).0.unwrap_or_else(|error| panic!("{}", chain(&error)));
        assert_eq!(done.outcome.warnings, [""; 0]);
        assert!(bench.disk().starts_with(&raw));
    }
    let error = fails(&bench, StreamImage { digest: Some(sha256(&whole)), ..image });
    assert!(matches!(error, Error::Image(ImageError::Digest { .. })), "{}", chain(&error));
    check_does_not_boot(&bench);
}

#[test]
fn a_qcow2_image_that_cannot_be_read_once_needs_ranges() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    // The data at the end of the file comes before its tables.
    let image = qcow2(&bench, &raw, &["-o", "preallocation=full"]);
    let (result, reports) = bench.run(&Action::StreamImage(image.clone()));
    result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(bench.disk().starts_with(&raw));
    assert!(reports.notes.iter().any(|note| note.starts_with("reading by ranges: ")), "{:?}", reports.notes);
    // To check the digest of the file, all of it must be read in order.
    let source = bench;
    let bench = Bench::new(DISK);
    let digest = sha256(&fs::read(&image.url).unwrap());
    let error = fails(&bench, StreamImage { digest: Some(digest.clone()), ..image.clone() });
    assert!(matches!(error, Error::Image(ImageError::Qcow2 { .. })), "{}", chain(&error));
    check_untouched_or_does_not_boot(&bench);
    let error = fails(&bench, StreamImage { digest: Some(digest), raw_digest: Some(sha256(&raw)), ..image });
    assert!(matches!(error, Error::Image(ImageError::Qcow2Order)), "{}", chain(&error));
    drop(source);
}

#[test]
fn a_qcow2_image_is_read_by_ranges_over_dropped_connections() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    let body = Arc::new(fs::read(qcow2(&bench, &raw, &[]).url).unwrap());
    let server = Server::start(move |n, _| {
        let until = if n < 2 { 4 * MIB } else { usize::MAX };
        Answer::File { body: Arc::clone(&body), etag: Some("\"a\""), until }
    });
    let image = StreamImage { raw_digest: Some(sha256(&raw)), ..stream(&server.url) };
    let (result, _) = bench.run(&Action::StreamImage(image));
    result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(bench.disk().starts_with(&raw));
    assert!(server.asked().iter().skip(1).any(|asked| asked.range.is_some()));
}

#[test]
fn an_image_read_by_ranges_has_the_size_it_was_said_to_have() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    let by_ranges = StreamImage { raw_digest: Some(sha256(&raw)), ..qcow2(&bench, &raw, &[]) };
    let larger = StreamImage { raw_size: Some(raw.len() as u64 + 512), ..by_ranges.clone() };
    let error = fails(&bench, larger);
    assert!(matches!(error, Error::Image(ImageError::RawSize { .. })), "{}", chain(&error));
    check_does_not_boot(&bench);
}

#[test]
fn an_image_read_by_ranges_that_is_gone_is_not_asked_for_again() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    let body = Arc::new(fs::read(qcow2(&bench, &raw, &[]).url).unwrap());
    // The first request is the attempt to stream. The second learns the size and is broken off.
    let server = Server::start(move |n, _| match n {
        0 | 1 => Answer::File { body: Arc::clone(&body), etag: Some("\"a\""), until: 4 * MIB },
        _ => status("404 Not Found", ""),
    });
    let error = fails(&bench, StreamImage { raw_digest: Some(sha256(&raw)), ..stream(&server.url) });
    let Error::Source(SourceError::Fetch { source: FetchError::Status { .. }, .. }) = error else {
        panic!("{}", chain(&error))
    };
    assert_eq!(server.asked().len(), 3, "{:?}", server.asked());
    check_untouched_or_does_not_boot(&bench);
}

#[test]
fn a_mirror_is_read_by_ranges_too_and_stayed_with() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    let body = Arc::new(fs::read(qcow2(&bench, &raw, &[]).url).unwrap());
    let (served, mirrored) = (Arc::clone(&body), Arc::clone(&body));
    // The first request is the attempt to stream. The second learns the size and is broken off.
    let first = Server::start(move |n, _| match n {
        0 | 1 => Answer::File { body: Arc::clone(&served), etag: Some("\"a\""), until: 4 * MIB },
        _ => status("404 Not Found", ""),
    });
    let second =
        Server::start(move |_, _| Answer::File { body: Arc::clone(&mirrored), etag: Some("\"b\""), until: usize::MAX });
    let mirrors = vec![second.url.clone()];
    let image = StreamImage { mirrors, raw_digest: Some(sha256(&raw)), ..stream(&first.url) };
    let (result, reports) = bench.run(&Action::StreamImage(image));
    let done = result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(bench.disk().starts_with(&raw));
    assert_eq!(first.asked().len(), 3, "{:?}", first.asked());
    assert!(second.asked().iter().all(|asked| asked.range.is_some() && asked.if_range.as_deref() != Some("\"a\"")));
    let note = format!("continuing with {} from byte ", second.url);
    assert!(reports.notes.iter().any(|told| told.starts_with(&note)), "{:?}", reports.notes);
    assert_eq!(done.outcome.warnings.len(), 1, "{:?}", done.outcome.warnings);
}

#[test]
fn a_mirror_of_another_size_is_not_gone_on_with_by_ranges() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    let old = Arc::new(fs::read(qcow2(&bench, &image(9 * MIB + 512), &[]).url).unwrap());
    let new = Arc::new([fs::read(qcow2(&bench, &raw, &[]).url).unwrap(), vec![0; 512]].concat());
    let first = Server::start(move |n, _| match n {
        0 | 1 => Answer::File { body: Arc::clone(&old), etag: Some("\"a\""), until: 4 * MIB },
        _ => status("404 Not Found", ""),
    });
    let second =
        Server::start(move |_, _| Answer::File { body: Arc::clone(&new), etag: Some("\"b\""), until: usize::MAX });
    let mirrors = vec![second.url.clone()];
    let image = StreamImage { mirrors, raw_digest: Some(sha256(&raw)), ..stream(&first.url) };
    let (result, reports) = bench.run(&Action::StreamImage(image));
    result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(bench.disk().starts_with(&raw));
    assert!(reports.notes.iter().any(|note| note.starts_with("starting over: ")), "{:?}", reports.notes);
}

#[test]
fn an_image_that_changes_while_it_is_read_by_ranges_is_begun_again() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    let old = Arc::new(fs::read(qcow2(&bench, &image(9 * MIB + 512), &[]).url).unwrap());
    let new = Arc::new(fs::read(qcow2(&bench, &raw, &[]).url).unwrap());
    let server = Server::start(move |n, _| match n {
        0 | 1 => Answer::File { body: Arc::clone(&old), etag: Some("\"a\""), until: 4 * MIB },
        _ => Answer::File { body: Arc::clone(&new), etag: Some("\"b\""), until: usize::MAX },
    });
    let image = StreamImage { raw_digest: Some(sha256(&raw)), ..stream(&server.url) };
    let (result, reports) = bench.run(&Action::StreamImage(image));
    result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(bench.disk().starts_with(&raw));
    assert!(reports.notes.iter().any(|note| note.starts_with("starting over: ")), "{:?}", reports.notes);
}
