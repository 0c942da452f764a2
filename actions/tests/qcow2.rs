//! `stream-image` of qcow2 images, in one pass and by ranges.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::process::Command;
use std::sync::Arc;

use common::disk_image::run;
use common::written::{DISK, check_does_not_boot, check_untouched_or_does_not_boot, fails};
use common::{Answer, Bench, MIB, Server, chain, image, sha256, status, stream, stream_from};
use slipway_actions::{Error, FetchError, ImageError, SourceError};
use slipway_protocol::{Action, StreamImage};

/// Makes a qcow2 image from a raw one with qemu-img and these options of `convert`.
fn qcow2(bench: &Bench, raw: &[u8], options: &[&str]) -> StreamImage {
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]).args(options);
    run(convert.arg(bench.put("raw", raw)).arg(bench.path("image")));
    stream(bench.place("image"))
}

/// The bytes of such an image.
fn bytes(bench: &Bench, raw: &[u8]) -> Arc<Vec<u8>> {
    Arc::new(fs::read(qcow2(bench, raw, &[]).url).unwrap())
}

/// A server that has the image no longer once it is read by ranges. The first request is the attempt to stream. The
/// second learns the size and is broken off.
fn ending(body: &Arc<Vec<u8>>) -> Server {
    let body = Arc::clone(body);
    Server::start(move |n, _| match n {
        0 | 1 => Answer::file(&body, "\"a\"", 4 * MIB),
        _ => status("404 Not Found", ""),
    })
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
            let by_ranges = reports.notes.iter().any(|note| note.starts_with("reading the qcow2 image out of order: "));
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
        let done = bench.streams(image).0;
        assert_eq!(done.outcome.warnings, [""; 0]);
        assert!(bench.disk().starts_with(&raw));
    }
    let error = fails(&bench, StreamImage { digest: Some(sha256(&whole)), ..image });
    assert_error!(error, Error::Image(ImageError::Digest { .. }));
    check_does_not_boot(&bench);
}

#[test]
fn a_qcow2_image_that_cannot_be_read_once_needs_ranges() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    // The data at the end of the file comes before its tables.
    let image = qcow2(&bench, &raw, &["-o", "preallocation=full"]);
    bench.streams(image.clone()).1.tell("reading the qcow2 image out of order: ");
    assert!(bench.disk().starts_with(&raw));
    // To check the digest of the file, all of it must be read in order.
    let source = bench;
    let bench = Bench::new(DISK);
    let digest = sha256(&fs::read(&image.url).unwrap());
    let error = fails(&bench, StreamImage { digest: Some(digest.clone()), ..image.clone() });
    assert_error!(error, Error::Image(ImageError::Qcow2 { .. }));
    check_untouched_or_does_not_boot(&bench);
    let error = fails(&bench, StreamImage { digest: Some(digest), raw_digest: Some(sha256(&raw)), ..image });
    assert_error!(error, Error::Image(ImageError::Qcow2Order));
    drop(source);
}

#[test]
fn a_qcow2_image_is_read_by_ranges_over_dropped_connections() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    let body = bytes(&bench, &raw);
    let server = Server::start(move |n, _| Answer::file(&body, "\"a\"", if n < 2 { 4 * MIB } else { usize::MAX }));
    bench.streams(StreamImage { raw_digest: Some(sha256(&raw)), ..stream(&server.url) });
    assert!(bench.disk().starts_with(&raw));
    assert!(server.asked().iter().skip(1).any(|asked| asked.range.is_some()));
}

#[test]
fn an_image_read_by_ranges_has_the_size_it_was_said_to_have() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    let (raw_digest, raw_size) = (Some(sha256(&raw)), Some(raw.len() as u64 + 512));
    let error = fails(&bench, StreamImage { raw_size, raw_digest, ..qcow2(&bench, &raw, &[]) });
    assert_error!(error, Error::Image(ImageError::RawSize { .. }));
    check_does_not_boot(&bench);
}

#[test]
fn an_image_read_by_ranges_that_is_gone_is_not_asked_for_again() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    let server = ending(&bytes(&bench, &raw));
    let error = fails(&bench, StreamImage { raw_digest: Some(sha256(&raw)), ..stream(&server.url) });
    assert_error!(error, Error::Source(SourceError::Fetch { source: FetchError::Status { .. }, .. }));
    assert_eq!(server.asked().len(), 3, "{:?}", server.asked());
    check_untouched_or_does_not_boot(&bench);
}

#[test]
fn a_mirror_is_read_by_ranges_too_and_stayed_with() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    let body = bytes(&bench, &raw);
    let (first, second) = (ending(&body), Server::of(&body, "\"b\""));
    let image = StreamImage { raw_digest: Some(sha256(&raw)), ..stream_from(&[&first, &second]) };
    let (done, reports) = bench.streams(image);
    assert!(bench.disk().starts_with(&raw));
    assert_eq!(first.asked().len(), 3, "{:?}", first.asked());
    assert!(second.asked().iter().all(|asked| asked.range.is_some() && asked.if_range.as_deref() != Some("\"a\"")));
    reports.tell(&format!("continuing with {} from byte ", second.url));
    assert_eq!(done.outcome.warnings.len(), 1, "{:?}", done.outcome.warnings);
}

#[test]
fn a_mirror_of_another_size_is_not_gone_on_with_by_ranges() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    let old = bytes(&bench, &image(9 * MIB + 512));
    let new = [&bytes(&bench, &raw)[..], &[0; 512]].concat();
    let (first, second) = (ending(&old), Server::of(&Arc::new(new), "\"b\""));
    let image = StreamImage { raw_digest: Some(sha256(&raw)), ..stream_from(&[&first, &second]) };
    bench.streams(image).1.tell("starting over: ");
    assert!(bench.disk().starts_with(&raw));
}

#[test]
fn an_image_that_changes_while_it_is_read_by_ranges_is_begun_again() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    let (old, new) = (bytes(&bench, &image(9 * MIB + 512)), bytes(&bench, &raw));
    let server = Server::start(move |n, _| match n {
        0 | 1 => Answer::file(&old, "\"a\"", 4 * MIB),
        _ => Answer::file(&new, "\"b\"", usize::MAX),
    });
    let image = StreamImage { raw_digest: Some(sha256(&raw)), ..stream(&server.url) };
    bench.streams(image).1.tell("starting over: ");
    assert!(bench.disk().starts_with(&raw));
}
