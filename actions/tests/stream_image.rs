//! `stream-image`: what arrives is on the disk byte for byte, or the disk does not boot and the error says why.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{
    Answer, Bench, MIB, Server, bzip2, chain, gzip, image, ok, sha256, status, stream, xz, xz_blocks, zstd, zstd_sized,
};
use slipway_actions::{Error, FetchError, is_retryable};
use slipway_protocol::{Action, StreamImage, Verify};

/// Not a multiple of any block, and more than a round of every buffer.
const IMAGE: usize = 33 * MIB + 517;
const DISK: usize = 40 * MIB;

fn check_written(bench: &Bench, raw: &[u8]) {
    let disk = bench.disk();
    assert!(disk[..raw.len()] == *raw, "the image is on the disk");
    assert_eq!(disk.len(), DISK);
    assert!(disk[DISK - MIB..].iter().all(|byte| *byte == 0), "the old backup table is gone");
}

fn check_does_not_boot(bench: &Bench) {
    let disk = bench.disk();
    assert!(disk[..MIB].iter().all(|byte| *byte == 0), "the head of the disk is zero");
    assert!(disk[disk.len() - MIB..].iter().all(|byte| *byte == 0), "the tail of the disk is zero");
}

fn check_untouched(bench: &Bench) {
    assert!(bench.disk().iter().all(|byte| *byte == 0xAA), "the disk is as it was");
}

/// For small images: the fault may be found before the first block is written.
fn check_untouched_or_does_not_boot(bench: &Bench) {
    if !bench.disk().iter().all(|byte| *byte == 0xAA) {
        check_does_not_boot(bench);
    }
}

fn file(bench: &Bench, bytes: &[u8]) -> StreamImage {
    fs::write(bench.path("image"), bytes).unwrap();
    stream(bench.path("image").to_str().unwrap())
}

#[track_caller]
fn fails(bench: &Bench, image: StreamImage) -> Error {
    let (result, reports) = bench.run(&Action::StreamImage(image));
    result.map(|done| panic!("succeeded: {done:?}, {reports:?}")).unwrap_err()
}

#[test]
fn every_format_arrives_byte_for_byte() {
    let raw = image(IMAGE);
    let halves = |encode: fn(&[u8]) -> Vec<u8>| [encode(&raw[..IMAGE / 3]), encode(&raw[IMAGE / 3..])].concat();
    let skippable = [&[0x50, 0x2A, 0x4D, 0x18, 4, 0, 0, 0, 1, 2, 3, 4], zstd(&raw).as_slice()].concat();
    for (name, stream) in [
        ("raw", raw.clone()),
        ("zstd", zstd(&raw)),
        ("zstd of two frames", halves(zstd)),
        ("zstd after a skippable frame", skippable),
        ("gzip", gzip(&raw)),
        ("gzip of two members", halves(gzip)),
        ("xz", xz(&raw)),
        ("xz of two streams", halves(xz)),
        ("xz of two streams with padding between", [&xz(&raw[..MIB])[..], &[0; 8], &xz(&raw[MIB..])].concat()),
        ("xz of many blocks", xz_blocks(&raw, 700_001)),
        ("zstd of many frames", raw.chunks(700_001).flat_map(zstd_sized).collect()),
        ("bzip2", bzip2(&raw)),
        ("bzip2 of two streams", halves(bzip2)),
    ] {
        // With the digest of the raw image it is decoded in order, without it by several threads.
        let pieces = name.contains("many");
        for raw_digest in [Some(sha256(&raw)), None].into_iter().take(1 + usize::from(pieces)) {
            let bench = Bench::new(DISK);
            let image = StreamImage {
                digest: Some(sha256(&stream)),
                raw_digest,
                raw_size: Some(IMAGE as u64),
                ..file(&bench, &stream)
            };
            let (result, reports) = bench.run(&Action::StreamImage(image));
            let done = result.unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
            check_written(&bench, &raw);
            assert_eq!(done.outcome.warnings, [""; 0], "{name}");
            let last = reports.progress.last().unwrap();
            assert_eq!((last.bytes, last.total), (IMAGE as u64, Some(IMAGE as u64)), "{name}");
            assert_eq!((last.fetched, last.fetch_total), (stream.len() as u64, Some(stream.len() as u64)), "{name}");
            assert!(reports.notes[0].starts_with("chose "), "{name}: {:?}", reports.notes);
        }
    }
}

#[test]
fn a_damaged_byte_in_a_stream_of_pieces_is_an_error_without_any_digest() {
    let raw = image(100_000);
    let sized: Vec<u8> = raw.chunks(30_001).flat_map(zstd_sized).collect();
    for (format, stream) in [("xz", xz_blocks(&raw, 30_001)), ("zstd", sized), ("bzip2", bzip2(&raw))] {
        let len = stream.len();
        for at in (0..64).chain((64..len - 64).step_by(len / 50)).chain(len - 64..len) {
            let bench = Bench::new(3 * MIB);
            let mut damaged = stream.clone();
            damaged[at] ^= 0x10;
            let (result, _) = bench.run(&Action::StreamImage(file(&bench, &damaged)));
            match result {
                Err(error) => {
                    assert!(!is_retryable(&error), "{format} at {at}: {}", chain(&error));
                    check_untouched_or_does_not_boot(&bench);
                }
                // The magic was hit: it is taken for a raw image. Or a bit that means nothing, such as that of the window's size.
                Ok(_) if bench.disk().starts_with(&damaged) || bench.disk().starts_with(&raw) => {}
                Ok(done) => panic!("{format} at {at}: {done:?}"),
            }
        }
    }
}

#[test]
fn what_the_disk_lost_is_found_by_reading_it_back() {
    let raw = image(IMAGE);
    let body = Arc::new(raw.clone());
    let bench = Bench::new(DISK);
    let disk = bench.path("disk");
    // More than all buffers hold beyond the place that is lost, and less than is written before anything is read.
    let server = Server::start(move |n, _| {
        if n == 1 {
            std::os::unix::fs::FileExt::write_at(
                &fs::OpenOptions::new().write(true).open(&disk).unwrap(),
                b"?",
                3_000_000,
            )
            .unwrap();
        }
        Answer::File { body: Arc::clone(&body), etag: Some("\"a\""), until: if n == 0 { 25 * MIB } else { usize::MAX } }
    });
    let image = |verify| StreamImage { digest: Some(sha256(&raw)), verify, ..stream(&server.url) };
    let error = fails(&bench, image(Verify::Readback));
    assert!(
        matches!(error, Error::ReadBack { offset, len, .. } if (offset..offset + len).contains(&3_000_000)),
        "{}",
        chain(&error)
    );
    assert!(!is_retryable(&error));
    check_does_not_boot(&bench);
}

#[test]
fn what_was_written_reads_back() {
    let raw = image(IMAGE);
    for stream in [raw.clone(), raw.chunks(700_001).flat_map(zstd_sized).collect()] {
        for size in [DISK, IMAGE.next_multiple_of(4096)] {
            let bench = Bench::new(size);
            let image = StreamImage { verify: Verify::Readback, ..file(&bench, &stream) };
            let (result, _) = bench.run(&Action::StreamImage(image));
            result.unwrap_or_else(|error| panic!("{}", chain(&error)));
            assert!(bench.disk().starts_with(&raw));
        }
    }
}

/// Makes a qcow2 image of a raw one by qemu-img with these options of `convert`.
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
    // A whole number of sectors, as qcow2 has it, with a hole.
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
fn a_qcow2_image_that_cannot_be_read_once_needs_ranges() {
    let raw = image(9 * MIB);
    let bench = Bench::new(DISK);
    // Its data are at the end of the file before its tables are.
    let image = qcow2(&bench, &raw, &["-o", "preallocation=full"]);
    let (result, reports) = bench.run(&Action::StreamImage(image.clone()));
    result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(bench.disk().starts_with(&raw));
    assert!(reports.notes.iter().any(|note| note.starts_with("reading by ranges: ")), "{:?}", reports.notes);
    // The digest of the file needs it to be read once.
    let source = bench;
    let bench = Bench::new(DISK);
    let digest = sha256(&fs::read(&image.url).unwrap());
    let error = fails(&bench, StreamImage { digest: Some(digest.clone()), ..image.clone() });
    assert!(matches!(error, Error::Qcow2 { .. }), "{}", chain(&error));
    check_untouched_or_does_not_boot(&bench);
    let error = fails(&bench, StreamImage { digest: Some(digest), raw_digest: Some(sha256(&raw)), ..image });
    assert!(matches!(error, Error::Qcow2Order { .. }), "{}", chain(&error));
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
fn an_image_as_large_as_the_disk_fits() {
    let bench = Bench::new(DISK);
    let raw = image(DISK);
    let image = file(&bench, &raw);
    bench.run(&Action::StreamImage(image)).0.unwrap();
    assert!(bench.disk() == raw);
}

#[test]
fn an_image_smaller_than_what_is_held_back_arrives() {
    let bench = Bench::new(DISK);
    let raw = image(5000);
    let image = file(&bench, &zstd(&raw));
    bench.run(&Action::StreamImage(image)).0.unwrap();
    check_written(&bench, &raw);
}

#[test]
fn a_truncated_stream_is_an_error_without_any_digest() {
    let raw = image(9 * MIB + 3);
    let streams = [("zstd", zstd(&raw)), ("gzip", gzip(&raw)), ("xz", xz(&raw)), ("bzip2", bzip2(&raw))];
    for (format, stream) in streams {
        let len = stream.len();
        for cut in [1, 2, 4, 8, 9, 1000, len / 2, len - 100] {
            let kept = len - cut;
            let bench = Bench::new(DISK);
            let error = fails(&bench, file(&bench, &stream[..kept]));
            assert!(matches!(error, Error::Decode { .. }), "{format} without {cut}: {}", chain(&error));
            assert!(!is_retryable(&error));
            check_untouched_or_does_not_boot(&bench);
        }
    }
}

#[test]
fn every_prefix_of_a_small_stream_is_an_error() {
    let raw = image(300);
    let (first, second) = raw.split_at(100);
    for encode in [zstd, zstd_sized, gzip, xz, bzip2] as [fn(&[u8]) -> Vec<u8>; 5] {
        let (first, second) = (encode(first), encode(second));
        let stream = [first.as_slice(), &second].concat();
        let bench = Bench::new(2 * MIB + 4096);
        // Fewer bytes than a magic number has are a raw image, and whole streams are whole.
        for kept in (6..stream.len()).filter(|kept| *kept != first.len()) {
            let error = fails(&bench, file(&bench, &stream[..kept]));
            assert!(matches!(error, Error::Decode { .. }), "{kept} bytes: {}", chain(&error));
        }
    }
}

#[test]
fn what_follows_the_stream_is_an_error() {
    let raw = image(3 * MIB);
    for stream in [zstd(&raw), zstd_sized(&raw), gzip(&raw), xz(&raw), bzip2(&raw)] {
        let bench = Bench::new(DISK);
        let error = fails(&bench, file(&bench, &[stream.as_slice(), b"trailing garbage"].concat()));
        assert!(matches!(error, Error::Decode { .. }), "{}", chain(&error));
        check_untouched_or_does_not_boot(&bench);
    }
}

#[test]
fn a_flipped_bit_is_found_by_either_digest() {
    let raw = image(IMAGE);
    let mut flipped = raw.clone();
    flipped[20 * MIB] ^= 1;
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { digest: Some(sha256(&raw)), ..file(&bench, &flipped) });
    assert!(chain(&error).starts_with("checking the digest of the stream: expected sha256:"), "{}", chain(&error));
    assert!(!is_retryable(&error));
    check_does_not_boot(&bench);
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { raw_digest: Some(sha256(&raw)), ..file(&bench, &zstd(&flipped)) });
    assert!(chain(&error).starts_with("checking the digest of the raw image: expected sha256:"), "{}", chain(&error));
    check_does_not_boot(&bench);
}

#[test]
fn a_raw_image_of_another_size_is_an_error() {
    let raw = image(3 * MIB);
    for raw_size in [3 * MIB as u64 - 1, 3 * MIB as u64 + 1] {
        let bench = Bench::new(DISK);
        let error = fails(&bench, StreamImage { raw_size: Some(raw_size), ..file(&bench, &zstd(&raw)) });
        assert!(matches!(error, Error::RawSize { expected, .. } if expected == raw_size), "{}", chain(&error));
    }
}

#[test]
fn an_image_that_does_not_fit_leaves_the_disk_as_it_was_if_its_size_is_known() {
    let raw = image(DISK + 1);
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { raw_size: Some(raw.len() as u64), ..file(&bench, &zstd(&raw)) });
    assert!(matches!(error, Error::ImageTooLarge { .. }), "{}", chain(&error));
    check_untouched(&bench);
    let error = fails(&bench, file(&bench, &zstd(&raw)));
    assert!(matches!(error, Error::ImageTooLarge { .. }), "{}", chain(&error));
    check_does_not_boot(&bench);
}

#[test]
fn what_is_no_image_leaves_the_disk_as_it_was() {
    for (bytes, expect) in [
        (&b""[..], "it is empty"),
        (b"QFI\xfb rest", "reading the header of the qcow2 image"),
        (b"\x04\x22\x4D\x18", "it is an LZ4 stream"),
        (b"<!DOCTYPE html>", "it is an HTML or XML page"),
        (&zstd(b""), "it is empty"),
    ] {
        let bench = Bench::new(DISK);
        let error = fails(&bench, file(&bench, bytes));
        assert!(chain(&error).contains(expect), "{}", chain(&error));
        check_untouched(&bench);
    }
    let bench = Bench::new(DISK);
    let error = fails(&bench, stream("/nowhere/image"));
    assert!(chain(&error).starts_with("fetching /nowhere/image: opening the file"), "{}", chain(&error));
    check_untouched(&bench);
}

#[test]
fn a_disk_is_not_written_over_itself() {
    let bench = Bench::new(DISK);
    fs::hard_link(bench.path("disk"), bench.path("same")).unwrap();
    std::os::unix::fs::symlink(bench.path("disk"), bench.path("link")).unwrap();
    for name in ["disk", "same", "link"] {
        for scheme in ["", "file://"] {
            let error = fails(&bench, stream(format!("{scheme}{}", bench.path(name).display())));
            assert!(matches!(error, Error::SourceOnTarget { .. }), "{name}: {}", chain(&error));
            check_untouched(&bench);
        }
    }
}

#[test]
fn a_folder_is_no_source_and_is_not_tried_again() {
    let bench = Bench::new(DISK);
    let started = Instant::now();
    let error = fails(&bench, stream(bench.dir.path().to_str().unwrap()));
    assert!(chain(&error).contains("reading the file: Is a directory"), "{}", chain(&error));
    assert!(!is_retryable(&error) && started.elapsed() < Duration::from_secs(1));
    check_untouched(&bench);
}

#[test]
fn secrets_in_a_url_are_not_in_its_errors() {
    let server = Server::start(|_, _| Answer::Bytes(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n".to_vec()));
    let url = server.url.replace("http://", "http://user:hidden@") + "?signature=hidden";
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { digest: Some(sha256(b"")), ..stream(&url) });
    assert_eq!(chain(&error), format!("fetching {}: the server answered 403 Forbidden", server.url));
    assert_eq!(server.asked()[0].path, "/image?signature=hidden", "it was sent all the same");
    for url in [url, "https://user:hidden@[/image?hidden".to_owned()] {
        let error = fails(&bench, stream(&url));
        assert!(!format!("{error:?} {}", chain(&error)).contains("hidden"), "{error:?}");
    }
}

#[test]
fn the_reason_a_server_gives_in_json_is_in_the_error() {
    let long = format!("{{\"message\": \"{}\"}}", "x".repeat(5000));
    for (body, expect) in [
        ("{\"code\": \"gone\", \"message\": \"image 7 was\\n deleted\"}", "400 Bad Request: image 7 was deleted"),
        ("{\"message\": 7}", "400 Bad Request"),
        ("<html>", "400 Bad Request"),
        (&long, "400 Bad Request"),
    ] {
        let answer = format!("HTTP/1.1 400 No\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes();
        let server = Server::start(move |_, _| Answer::Bytes(answer.clone()));
        let bench = Bench::new(DISK);
        let error = fails(&bench, StreamImage { digest: Some(sha256(b"")), ..stream(&server.url) });
        assert!(chain(&error).ends_with(&format!("the server answered {expect}")), "{}", chain(&error));
    }
}

#[test]
fn plain_http_needs_a_digest() {
    let bench = Bench::new(DISK);
    let error = fails(&bench, stream("http://127.0.0.1:1/image"));
    let expect = "checking where the image comes from: the step fetches over http:// without a digest: give one, or use \
                  https://";
    assert_eq!(chain(&error), expect);
    assert!(!is_retryable(&error));
    check_untouched(&bench);
}

#[test]
fn dropped_connections_are_resumed_at_the_byte_where_they_broke_off() {
    let raw = image(IMAGE);
    let body = Arc::new(zstd(&raw));
    let served = Arc::clone(&body);
    let cuts = [3 * MIB + 11, 3 * MIB + 12, 9 * MIB];
    let server = Server::start(move |n, _| {
        let until = cuts.get(n).copied().unwrap_or(usize::MAX);
        Answer::File { body: Arc::clone(&served), etag: Some("\"v1\""), until }
    });
    let bench = Bench::new(DISK);
    let image = StreamImage { digest: Some(sha256(&body)), ..stream(&server.url) };
    let (result, reports) = bench.run(&Action::StreamImage(image));
    let done = result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    check_written(&bench, &raw);
    assert_eq!(done.outcome.warnings, ["fetching took 4 attempts, and 0 bytes were fetched again"]);
    let ranges: Vec<Option<u64>> = server.asked().iter().map(|asked| asked.range).collect();
    assert_eq!(ranges, [None, Some(cuts[0] as u64), Some(cuts[1] as u64), Some(cuts[2] as u64)]);
    assert!(server.asked()[1..].iter().all(|asked| asked.if_range.as_deref() == Some("\"v1\"")));
    assert!(reports.notes.iter().any(|note| note.starts_with("fetching again from byte 3145739, because ")));
}

#[test]
fn a_source_that_changed_is_fetched_from_its_beginning() {
    let (old, new) = (image(6 * MIB), image(7 * MIB));
    let (old_body, new_body) = (Arc::new(old), Arc::new(new.clone()));
    let server = Server::start(move |n, asked| match (n, asked.range) {
        (0, _) => Answer::File { body: Arc::clone(&old_body), etag: Some("\"old\""), until: 4 * MIB },
        // If-Range did not match, so the whole new file comes.
        (1, _) => Answer::Bytes(ok(&new_body)),
        (_, None) => Answer::File { body: Arc::clone(&new_body), etag: Some("\"new\""), until: usize::MAX },
        (_, Some(_)) => Answer::Bytes(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec()),
    });
    let bench = Bench::new(DISK);
    let (result, reports) =
        bench.run(&Action::StreamImage(StreamImage { digest: Some(sha256(&new)), ..stream(&server.url) }));
    let done = result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    check_written(&bench, &new);
    assert_eq!(done.outcome.warnings, ["fetching took 3 attempts, and 4 MiB were fetched again"]);
    assert!(
        reports.notes.iter().any(|note| note.starts_with("starting over: resuming at byte")),
        "{:?}",
        reports.notes
    );
    let ranges: Vec<Option<u64>> = server.asked().iter().map(|asked| asked.range).collect();
    assert_eq!(ranges, [None, Some(4 * MIB as u64), None]);
}

#[test]
fn a_server_that_never_resumes_is_an_error_in_the_end() {
    let body = Arc::new(image(6 * MIB));
    let digest = sha256(&body);
    let server = Server::start(move |_, asked| match asked.range {
        None => Answer::File { body: Arc::clone(&body), etag: Some("\"a\""), until: 4 * MIB },
        Some(_) => Answer::Bytes(ok(&body)),
    });
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { digest: Some(digest), ..stream(&server.url) });
    assert!(
        matches!(error, Error::Fetch { source: FetchError::NotResumable { offset, .. }, .. } if offset == 4 * MIB as u64)
    );
    assert!(is_retryable(&error));
    assert_eq!(server.asked().len(), 8, "four beginnings, each with one try to resume");
    check_does_not_boot(&bench);
}

#[test]
fn a_range_that_starts_elsewhere_is_not_taken() {
    let body = Arc::new(image(6 * MIB));
    let digest = sha256(&body);
    let server = Server::start(move |_, asked| match asked.range {
        None => Answer::File { body: Arc::clone(&body), etag: Some("\"a\""), until: 4 * MIB },
        Some(at) => {
            let rest = &body[at as usize - 1..body.len() - 1];
            let range = format!("bytes {}-{}/{}", at - 1, body.len() - 1, body.len());
            let head = format!("HTTP/1.1 206 P\r\nContent-Range: {range}\r\nContent-Length: {}\r\n\r\n", rest.len());
            Answer::Bytes([head.as_bytes(), rest].concat())
        }
    });
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { digest: Some(digest), ..stream(&server.url) });
    assert!(chain(&error).contains("the server answered with Content-Range"), "{}", chain(&error));
    check_does_not_boot(&bench);
}

#[test]
fn a_body_longer_or_shorter_than_announced_is_never_an_image() {
    let raw = image(6 * MIB);
    let body = zstd(&raw);
    let digest = sha256(&body);
    // It announces a byte more than it has, and says so again when asked for the rest.
    let server = Server::start(move |_, asked| match asked.range {
        None => {
            let head = format!("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: {}\r\n\r\n", body.len() + 1);
            Answer::Bytes([head.as_bytes(), &body].concat())
        }
        Some(_) => Answer::Bytes(b"HTTP/1.1 416 No\r\nContent-Length: 0\r\n\r\n".to_vec()),
    });
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { digest: Some(digest), ..stream(&server.url) });
    assert!(chain(&error).contains("resuming at byte"), "{}", chain(&error));
    check_untouched_or_does_not_boot(&bench);
}

#[test]
fn the_rest_of_another_file_is_not_taken() {
    let body = Arc::new(image(6 * MIB));
    let digest = sha256(&body);
    // It ignores If-Range and tells by the tag alone that the file is another one.
    let server = Server::start(move |_, asked| match asked.range {
        None => Answer::File { body: Arc::clone(&body), etag: Some("\"old\""), until: 4 * MIB },
        Some(_) => Answer::File { body: Arc::clone(&body), etag: Some("\"new\""), until: usize::MAX },
    });
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { digest: Some(digest), ..stream(&server.url) });
    assert!(chain(&error).contains("resuming at byte 4194304: the entity tag has changed"), "{}", chain(&error));
    check_does_not_boot(&bench);
}

#[test]
fn a_416_to_a_request_for_the_rest_starts_over() {
    let raw = image(6 * MIB);
    let body = Arc::new(raw.clone());
    let server = Server::start(move |n, asked| match (n, asked.range) {
        (_, Some(_)) => status("416 No", ""),
        (0, None) => Answer::File { body: Arc::clone(&body), etag: Some("\"a\""), until: 4 * MIB },
        (_, None) => Answer::File { body: Arc::clone(&body), etag: Some("\"a\""), until: usize::MAX },
    });
    let bench = Bench::new(DISK);
    let (result, _) =
        bench.run(&Action::StreamImage(StreamImage { digest: Some(sha256(&raw)), ..stream(&server.url) }));
    let done = result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    check_written(&bench, &raw);
    assert_eq!(done.outcome.warnings, ["fetching took 3 attempts, and 4 MiB were fetched again"]);
}

#[test]
fn more_than_was_announced_is_not_taken() {
    let body = Arc::new(image(6 * MIB));
    let digest = sha256(&body);
    let server = Server::start(move |_, asked| match asked.range {
        None => Answer::File { body: Arc::clone(&body), etag: Some("\"a\""), until: 4 * MIB },
        Some(at) => {
            let rest = [&body[at as usize..], b"and more"].concat();
            let range = format!("bytes {at}-{}/{}", body.len() - 1, body.len());
            let head = format!("HTTP/1.1 206 P\r\nContent-Range: {range}\r\nContent-Length: {}\r\n\r\n", rest.len());
            Answer::Bytes([head.as_bytes(), &rest].concat())
        }
    });
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { digest: Some(digest), ..stream(&server.url) });
    assert!(chain(&error).contains("more came than the 6291456 bytes announced"), "{}", chain(&error));
    check_does_not_boot(&bench);
}

#[test]
fn a_body_in_chunks_is_resumed_when_it_is_cut() {
    let raw = image(6 * MIB);
    let body = raw.clone();
    let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let server = Server::start(move |_, asked| {
        let from = asked.range.unwrap_or(0) as usize;
        let head = match asked.range {
            None => "HTTP/1.1 200 OK\r\n".to_owned(),
            Some(_) => format!("HTTP/1.1 206 P\r\nContent-Range: bytes {from}-{}/*\r\n", body.len() - 1),
        };
        let head = format!("{head}Transfer-Encoding: chunked\r\nETag: \"a\"\r\n\r\n");
        let until = if from == 0 { 4 * MIB } else { body.len() };
        let last = if from == 0 { &b""[..] } else { b"0\r\n\r\n" };
        Answer::Bytes([head.as_bytes(), &chunk(&body[from..until]), last].concat())
    });
    let bench = Bench::new(DISK);
    let (result, _) =
        bench.run(&Action::StreamImage(StreamImage { digest: Some(sha256(&raw)), ..stream(&server.url) }));
    let done = result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    check_written(&bench, &raw);
    assert_eq!(done.outcome.warnings, ["fetching took 2 attempts, and 0 bytes were fetched again"]);
}

#[test]
fn a_truncated_body_whose_length_is_said_to_be_right_does_not_boot() {
    let raw = image(3 * MIB);
    for whole in [raw.clone(), zstd(&raw), gzip(&raw), xz(&raw), bzip2(&raw)] {
        let digest = sha256(&whole);
        let answer = ok(&whole[..whole.len() / 2]);
        let server = Server::start(move |_, _| Answer::Bytes(answer.clone()));
        let proofs = [
            StreamImage { digest: Some(digest), ..stream(&server.url) },
            StreamImage { raw_digest: Some(sha256(&raw)), ..stream(&server.url) },
        ];
        for image in proofs {
            let bench = Bench::new(DISK);
            let error = fails(&bench, image);
            assert!(matches!(error, Error::Decode { .. } | Error::Digest { .. }), "{}", chain(&error));
            assert!(!is_retryable(&error));
            check_untouched_or_does_not_boot(&bench);
        }
    }
}

#[test]
fn a_bit_flipped_on_the_way_does_not_boot() {
    let raw = image(3 * MIB);
    for (name, encode) in [
        ("zstd", zstd_sized as fn(&[u8]) -> Vec<u8>),
        ("gzip", gzip),
        ("xz", xz),
        ("bzip2", bzip2),
        ("raw", <[u8]>::to_vec),
    ] {
        let mut stream_bytes = encode(&raw);
        let digest = sha256(&stream_bytes);
        let middle = stream_bytes.len() / 2;
        stream_bytes[middle] ^= 1;
        let answer = ok(&stream_bytes);
        let server = Server::start(move |_, _| Answer::Bytes(answer.clone()));
        let bench = Bench::new(DISK);
        let error = fails(&bench, StreamImage { digest: Some(digest), ..stream(&server.url) });
        assert!(matches!(error, Error::Decode { .. } | Error::Digest { .. }), "{name}: {}", chain(&error));
        check_untouched_or_does_not_boot(&bench);
        // The formats' own checksums find it too. Plain bytes have none.
        if name != "raw" {
            let bench = Bench::new(DISK);
            let error = fails(&bench, file(&bench, &stream_bytes));
            assert!(matches!(error, Error::Decode { .. }), "{name}: {}", chain(&error));
            check_untouched_or_does_not_boot(&bench);
        }
    }
}

#[test]
fn statuses_that_will_not_change_are_final() {
    for status in ["404 Not Found", "403 Forbidden", "400 Bad Request", "410 Gone"] {
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into_bytes();
        let server = Server::start(move |_, _| Answer::Bytes(answer.clone()));
        let bench = Bench::new(DISK);
        let error = fails(&bench, StreamImage { digest: Some(sha256(b"")), ..stream(&server.url) });
        assert!(chain(&error).ends_with(&format!("the server answered {status}")), "{}", chain(&error));
        assert_eq!((is_retryable(&error), server.asked().len()), (false, 1), "{status}");
        check_untouched(&bench);
    }
}

#[test]
fn statuses_that_may_pass_are_tried_again() {
    let raw = image(MIB);
    for status in ["503 Busy", "500 Oops", "429 Slow down", "408 Late"] {
        let (answer, body) = (format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into_bytes(), ok(&raw));
        let server = Server::start(move |n, _| Answer::Bytes(if n < 2 { answer.clone() } else { body.clone() }));
        let bench = Bench::new(DISK);
        let (result, _) =
            bench.run(&Action::StreamImage(StreamImage { digest: Some(sha256(&raw)), ..stream(&server.url) }));
        result.unwrap_or_else(|error| panic!("{status}: {}", chain(&error)));
        assert_eq!(server.asked().len(), 3);
    }
}

#[test]
fn redirects_are_followed_and_bounded() {
    let raw = image(MIB);
    let body = ok(&raw);
    let server = Server::start(move |_, asked| match asked.path.as_str() {
        "/image" => Answer::Bytes(b"HTTP/1.1 302 F\r\nLocation: /real\r\nContent-Length: 0\r\n\r\n".to_vec()),
        "/real" => Answer::Bytes(body.clone()),
        _ => Answer::Bytes(b"HTTP/1.1 302 F\r\nLocation: /loop\r\nContent-Length: 0\r\n\r\n".to_vec()),
    });
    let bench = Bench::new(DISK);
    let image = StreamImage { digest: Some(sha256(&raw)), ..stream(&server.url) };
    bench.run(&Action::StreamImage(image.clone())).0.unwrap();
    let error = fails(&bench, StreamImage { url: server.url.replace("/image", "/loop"), ..image });
    assert!(chain(&error).contains("redirects too often"), "{}", chain(&error));
    assert!(!is_retryable(&error));
}

#[test]
fn a_stop_is_heard_while_the_network_is_silent() {
    let raw = image(6 * MIB);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", raw.len()).into_bytes();
    let sent = [head.as_slice(), &raw[..5 * MIB]].concat();
    let server = Server::start(move |_, _| Answer::Stall(sent.clone()));
    let bench = Bench::new(DISK);
    let cancel = slipway_actions::Machine::cancel(&bench).clone();
    let started = Instant::now();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(1200));
        cancel.set();
    });
    let (result, reports) =
        bench.run(&Action::StreamImage(StreamImage { digest: Some(sha256(&raw)), ..stream(&server.url) }));
    stopper.join().unwrap();
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "it took {:?}", started.elapsed());
    assert!(reports.progress.len() >= 2, "progress comes at least every half second: {:?}", reports.progress);
    check_does_not_boot(&bench);
}

#[test]
fn a_silent_connection_is_dropped_and_resumed() {
    let raw = image(6 * MIB);
    let body = Arc::new(raw.clone());
    let server = Server::start(move |n, _| match n {
        0 => {
            let head = format!("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: {}\r\n\r\n", body.len());
            Answer::Stall([head.as_bytes(), &body[..5 * MIB]].concat())
        }
        _ => Answer::File { body: Arc::clone(&body), etag: Some("\"a\""), until: usize::MAX },
    });
    let bench = Bench::new(DISK);
    let started = Instant::now();
    let (result, _) =
        bench.run(&Action::StreamImage(StreamImage { digest: Some(sha256(&raw)), ..stream(&server.url) }));
    result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    check_written(&bench, &raw);
    assert!((9..15).contains(&started.elapsed().as_secs()), "a stall is noticed after 10 s: {:?}", started.elapsed());
}

#[test]
fn an_ambiguous_disk_is_refused_by_name() {
    let mut bench = Bench::new(DISK);
    bench.add_disk("other", MIB);
    let error = fails(&bench, file(&bench, b"raw"));
    assert!(chain(&error).contains("there are 2: ") && chain(&error).contains("/other (1 MiB)"), "{}", chain(&error));
    check_untouched(&bench);
}
