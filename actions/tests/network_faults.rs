//! `stream-image` over a misbehaving network, server or proxy: the image arrives, or the disk does not boot.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slipway_actions::{Cancel, Error, FetchError, ImageError, Machine, Report, Request, SourceError, is_transient};
use slipway_protocol::{Action, StreamImage};

use common::written::{
    DISK, IMAGE, check_does_not_boot, check_untouched, check_untouched_or_does_not_boot, check_written, fails, file,
};
use common::{Answer, Bench, MIB, Server, bzip2, chain, gzip, image, ok, sha256, status, stream, xz, zstd, zstd_sized};

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
    let expect = "reading the inputs of stream-image: it fetches over http:// without a digest: give one, or use \
                  https://";
    assert_eq!(chain(&error), expect);
    assert!(!is_transient(&error));
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
        // If-Range did not match, so the whole new file is sent.
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
        matches!(error, Error::Source(SourceError::Fetch { source: FetchError::NotResumable { offset, .. }, .. }) if offset == 4 * MIB as u64)
    );
    assert!(is_transient(&error));
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
    // The server announces one byte more than it has, also when asked for the rest.
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
    // The server ignores If-Range. Only the ETag shows that the file is another one.
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
fn the_end_of_an_image_is_not_where_a_range_contradicts_itself() {
    let body = Arc::new(image(6 * MIB));
    let digest = sha256(&body[..4 * MIB]);
    let chunk = [format!("{:x}\r\n", 4 * MIB).as_bytes(), &body[..4 * MIB], b"\r\n"].concat();
    // The first answer has no size and is cut. The second claims that it was complete.
    let server = Server::start(move |_, asked| match asked.range {
        None => Answer::Bytes(
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nETag: \"a\"\r\n\r\n", &chunk[..]].concat(),
        ),
        Some(at) => status("206 P", &format!("Content-Range: bytes {at}-{}/{at}\r\n", at - 1)),
    });
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { digest: Some(digest), ..stream(&server.url) });
    assert!(chain(&error).contains("the server answered with Content-Range"), "{}", chain(&error));
    check_does_not_boot(&bench);
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
    assert!(chain(&error).contains("the server sent more than the 6291456 bytes it announced"), "{}", chain(&error));
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
            assert!(
                matches!(error, Error::Image(ImageError::Decode { .. } | ImageError::Digest { .. })),
                "{}",
                chain(&error)
            );
            assert!(!is_transient(&error));
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
        assert!(
            matches!(error, Error::Image(ImageError::Decode { .. } | ImageError::Digest { .. })),
            "{name}: {}",
            chain(&error)
        );
        check_untouched_or_does_not_boot(&bench);
        // The formats' own checksums also find it. Raw bytes have none.
        if name != "raw" {
            let bench = Bench::new(DISK);
            let error = fails(&bench, file(&bench, &stream_bytes));
            assert!(matches!(error, Error::Image(ImageError::Decode { .. })), "{name}: {}", chain(&error));
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
        assert_eq!((is_transient(&error), server.asked().len()), (false, 1), "{status}");
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
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { url: server.url.replace("/image", "/loop"), ..image });
    assert!(chain(&error).contains("redirects too often"), "{}", chain(&error));
    assert!(!is_transient(&error));
    check_untouched(&bench);
}

#[test]
fn a_stop_is_heard_while_the_network_is_silent() {
    let raw = image(6 * MIB);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", raw.len()).into_bytes();
    let sent = [head.as_slice(), &raw[..5 * MIB]].concat();
    let server = Server::start(move |_, _| Answer::Stall(sent.clone()));
    let bench = Bench::new(DISK);
    let mut progress = 0;
    let image = StreamImage { digest: Some(sha256(&raw)), ..stream(&server.url) };
    let result = slipway_actions::run(&Action::StreamImage(image), &bench, &mut |report| {
        progress += usize::from(matches!(report, Report::Progress(_)));
        if progress == 2 {
            bench.cancel().set();
        }
    });
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    check_does_not_boot(&bench);

    // Every other wait of the action also notices the request to stop, but some only after the limit for silence.
    let stop = Cancel::new();
    let mut body = bench.fetch(&Request::new(&server.url, None), &stop).unwrap().body;
    body.read_exact(&mut vec![0; 5 * MIB]).unwrap();
    stop.set();
    let error = body.read(&mut [0]).unwrap_err();
    assert!(error.to_string().contains(&FetchError::Stopped.to_string()), "{error}");
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
    assert!(started.elapsed() >= Duration::from_secs(10), "it was not silent for long enough: {:?}", started.elapsed());
    assert_eq!(server.asked().iter().map(|asked| asked.range).collect::<Vec<_>>(), [None, Some(5 * MIB as u64)]);
}
