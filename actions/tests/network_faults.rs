//! `stream-image` over a misbehaving network, server or proxy: the image arrives, or the disk does not boot.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slipway_actions::{
    Cancel, Error, FetchError, Host, HostOptions, ImageError, Machine, Report, Request, SourceError, is_transient,
};
use slipway_protocol::{Action, DetachedSignature, Digest, Proxy, StreamImage};

use common::written::{
    DISK, IMAGE, check_does_not_boot, check_untouched, check_untouched_or_does_not_boot, check_written, fails, file,
};
use common::{
    Answer, Bench, MIB, Server, bzip2, chain, gzip, image, ok, ranges, sha256, status, stream, xz, zstd, zstd_sized,
};

#[test]
fn secrets_in_a_url_are_not_in_its_errors() {
    let server = Server::start(|_, _| status("403 No", ""));
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
fn a_proxy_is_asked_for_what_is_not_excepted() {
    let (proxy, origin) = (Server::giving(ok(b"proxy")), Server::giving(ok(b"origin")));
    let get = |except: &str, url: &str| {
        let proxy = Proxy { url: proxy.url.replace("/image", ""), except: except.to_owned() };
        let host = Host::new(HostOptions { proxy: Some(proxy), ..HostOptions::default() });
        let mut body = String::new();
        host.fetch(&Request::new(url, None), &Cancel::new()).unwrap().body.read_to_string(&mut body).unwrap();
        body
    };
    assert_eq!(get("", "http://nowhere.example/image?a=b"), "proxy");
    assert_eq!(proxy.asked()[0].path, "http://nowhere.example/image?a=b");
    assert_eq!(get("other.example", &origin.url), "proxy");
    assert_eq!(get("other.example, 127.0.0.0/8", &origin.url), "origin");
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
        let answer = format!("HTTP/1.1 400 No\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let server = Server::giving(answer.into_bytes());
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

/// Streams an image that arrives in the end. Returns the warnings, the notes, and the offset of each request.
#[track_caller]
fn arrives(digest: Digest, raw: &[u8], server: &Server) -> (Vec<String>, Vec<String>, Vec<Option<u64>>) {
    let bench = Bench::new(DISK);
    let (done, reports) = bench.streams(StreamImage { digest: Some(digest), ..stream(&server.url) });
    check_written(&bench, raw);
    (done.outcome.warnings, reports.notes, ranges(server))
}

/// Streams an image that never arrives, for this reason. The disk does not boot.
#[track_caller]
fn never_arrives(digest: Digest, server: &Server, expect: &str) -> Error {
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { digest: Some(digest), ..stream(&server.url) });
    assert!(chain(&error).contains(expect), "{}", chain(&error));
    check_does_not_boot(&bench);
    error
}

#[test]
fn dropped_connections_are_resumed_at_the_byte_where_they_broke_off() {
    let raw = image(IMAGE);
    let body = Arc::new(zstd(&raw));
    let digest = sha256(&body);
    let cuts = [3 * MIB + 11, 3 * MIB + 12, 9 * MIB];
    let server = Server::start(move |n, _| Answer::file(&body, "\"v1\"", cuts.get(n).copied().unwrap_or(usize::MAX)));
    let (warnings, notes, ranges) = arrives(digest, &raw, &server);
    assert_eq!(warnings, ["fetching took 4 attempts"]);
    assert_eq!(ranges, [None, Some(cuts[0] as u64), Some(cuts[1] as u64), Some(cuts[2] as u64)]);
    assert!(server.asked()[1..].iter().all(|asked| asked.if_range.as_deref() == Some("\"v1\"")));
    assert!(notes.iter().any(|note| note.starts_with("fetching again from byte 3145739, because ")), "{notes:?}");
}

#[test]
fn a_source_that_changed_is_fetched_from_its_beginning() {
    let (old, new) = (Arc::new(image(6 * MIB)), Arc::new(image(7 * MIB)));
    let (digest, raw) = (sha256(&new), new.to_vec());
    let server = Server::start(move |n, asked| match (n, asked.range) {
        (0, _) => Answer::file(&old, "\"old\"", 4 * MIB),
        // If-Range did not match, so the whole new file is sent.
        (1, _) => Answer::Bytes(ok(&new)),
        (_, None) => Answer::file(&new, "\"new\"", usize::MAX),
        (_, Some(_)) => status("500 No", ""),
    });
    let (warnings, notes, ranges) = arrives(digest, &raw, &server);
    assert_eq!(warnings, ["fetching took 3 attempts, and 4 MiB were fetched again"]);
    assert!(notes.iter().any(|note| note.starts_with("starting over: resuming at byte")), "{notes:?}");
    assert_eq!(ranges, [None, Some(4 * MIB as u64), None]);
}

#[test]
fn a_server_that_never_resumes_is_an_error_in_the_end() {
    let body = Arc::new(image(6 * MIB));
    let digest = sha256(&body);
    let server = Server::start(move |_, asked| match asked.range {
        None => Answer::file(&body, "\"a\"", 4 * MIB),
        Some(_) => Answer::Bytes(ok(&body)),
    });
    let error = never_arrives(digest, &server, "");
    let Error::Source(SourceError::Fetch { source: FetchError::NotResumable { offset, .. }, .. }) = &error else {
        panic!("{}", chain(&error))
    };
    assert!(*offset == 4 * MIB as u64 && is_transient(&error));
    assert_eq!(server.asked().len(), 8, "four beginnings, each with one try to resume");
}

/// A part of a file with this Content-Range.
fn part(range: &str, bytes: &[u8]) -> Answer {
    let head = format!("HTTP/1.1 206 P\r\nContent-Range: bytes {range}\r\nContent-Length: {}\r\n\r\n", bytes.len());
    Answer::Bytes([head.as_bytes(), bytes].concat())
}

#[test]
fn a_rest_that_does_not_fit_to_what_came_before_is_not_taken() {
    type Rest = fn(&Arc<Vec<u8>>, usize, usize) -> Answer;
    let elsewhere: Rest = |body, at, len| part(&format!("{}-{}/{len}", at - 1, len - 1), &body[at - 1..len - 1]);
    // The server ignores If-Range. Only the ETag shows that the file is another one.
    let of_another_file: Rest = |body, _, _| Answer::file(body, "\"new\"", usize::MAX);
    let too_long: Rest = |body, at, len| part(&format!("{at}-{}/{len}", len - 1), &[&body[at..], b"and more"].concat());
    for (rest, expect) in [
        (elsewhere, "the server answered with Content-Range"),
        (of_another_file, "resuming at byte 4194304: the entity tag has changed"),
        (too_long, "the server sent more than the 6291456 bytes it announced"),
    ] {
        let body = Arc::new(image(6 * MIB));
        let digest = sha256(&body);
        let server = Server::start(move |_, asked| match asked.range {
            None => Answer::file(&body, "\"a\"", 4 * MIB),
            Some(at) => rest(&body, at as usize, body.len()),
        });
        never_arrives(digest, &server, expect);
    }
}

#[test]
fn a_body_longer_or_shorter_than_announced_is_never_an_image() {
    let body = zstd(&image(6 * MIB));
    let digest = sha256(&body);
    // The server announces one byte more than it has, also when asked for the rest.
    let server = Server::start(move |_, asked| match asked.range {
        None => {
            let head = format!("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: {}\r\n\r\n", body.len() + 1);
            Answer::Bytes([head.as_bytes(), &body].concat())
        }
        Some(_) => status("416 No", ""),
    });
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { digest: Some(digest), ..stream(&server.url) });
    assert!(chain(&error).contains("resuming at byte"), "{}", chain(&error));
    check_untouched_or_does_not_boot(&bench);
}

#[test]
fn a_416_to_a_request_for_the_rest_starts_over() {
    let body = Arc::new(image(6 * MIB));
    let raw = body.to_vec();
    let server = Server::start(move |n, asked| match (n, asked.range) {
        (_, Some(_)) => status("416 No", ""),
        (0, None) => Answer::file(&body, "\"a\"", 4 * MIB),
        (_, None) => Answer::file(&body, "\"a\"", usize::MAX),
    });
    let (warnings, ..) = arrives(sha256(&raw), &raw, &server);
    assert_eq!(warnings, ["fetching took 3 attempts, and 4 MiB were fetched again"]);
}

/// Bytes as one chunk (RFC 9112, 7.1).
fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

#[test]
fn the_end_of_an_image_is_not_where_a_range_contradicts_itself() {
    let body = image(4 * MIB);
    let digest = sha256(&image(5 * MIB));
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nETag: \"a\"\r\n\r\n";
    let first = [&head[..], &chunk(&body)].concat();
    // The first answer has no size and is cut. The second claims that it was complete. After that, only the digest says
    // that it was not.
    let server = Server::start(move |_, asked| match asked.range {
        None => Answer::Bytes(first.clone()),
        Some(at) => status("206 P", &format!("Content-Range: bytes {at}-{}/{at}\r\n", at - 1)),
    });
    never_arrives(digest, &server, "checking the digest of the stream");
}

#[test]
fn a_body_in_chunks_is_resumed_when_it_is_cut() {
    let raw = image(6 * MIB);
    let body = raw.clone();
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
    let (warnings, ..) = arrives(sha256(&raw), &raw, &server);
    assert_eq!(warnings, ["fetching took 2 attempts"]);
}

#[test]
fn a_body_that_breaks_off_at_its_end_is_taken_when_its_digest_is_right() {
    let raw = image(3 * MIB);
    let chunked = |etag: &str, raw: &[u8]| {
        let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{etag}\r\n");
        [head.as_bytes(), &chunk(raw)].concat()
    };
    let of_chunks = |etag: &str| chunked(etag, &raw);
    // The server says where the source ends once it is asked for the rest.
    let whole = of_chunks("ETag: \"a\"\r\n");
    let server = Server::start(move |_, asked| match asked.range {
        None => Answer::Bytes(whole.clone()),
        Some(at) => status("416 No", &format!("Content-Range: bytes */{at}\r\n")),
    });
    let (_, _, ranges) = arrives(sha256(&raw), &raw, &server);
    assert_eq!(ranges, [None, Some(3 * MIB as u64)]);
    // The server knows no ranges. It is asked once more for everything.
    for etag in ["", "ETag: \"a\"\r\n", "ETag: W/\"a\"\r\n", "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n"] {
        let (_, _, ranges) = arrives(sha256(&raw), &raw, &Server::giving(of_chunks(etag)));
        assert_eq!(ranges, [None, Some(3 * MIB as u64), None], "{etag}");
    }
    // Without a digest, nothing shows that all is there. A small image could fail before the disk is written to.
    let bench = Bench::new(DISK);
    let server = Server::giving(chunked("", &image(IMAGE)));
    let error = fails(&bench, StreamImage { raw_digest: Some(sha256(b"another")), ..stream(&server.url) });
    assert!(chain(&error).contains("the server ended the connection too early"), "{}", chain(&error));
    check_does_not_boot(&bench);
}

/// A whole file with this `Content-Encoding`.
fn coded(coding: &str, body: &[u8]) -> Server {
    let head = format!("HTTP/1.1 200 OK\r\n{coding}Content-Length: {}\r\n\r\n", body.len());
    Server::giving([head.as_bytes(), body].concat())
}

#[test]
fn a_source_that_the_server_compressed_on_the_way_is_told_as_that() {
    let raw = image(MIB);
    let (packed, twice) = (zstd(&raw), gzip(&zstd(&raw)));
    let told = |coding: &str| format!("the server sent the file with Content-Encoding: {coding}, although slipway");
    let of = |body: &[u8]| StreamImage { digest: Some(sha256(body)), ..StreamImage::default() };
    let of_raw = StreamImage { raw_digest: Some(sha256(&raw)), ..StreamImage::default() };
    for (header, body, image, coding) in [
        ("gzip", &twice, of(&packed), "gzip"),
        ("gzip", &twice, of_raw.clone(), "gzip"),
        ("identity, X-Gzip", &gzip(&raw), of(&raw), "X-Gzip"),
        ("gzip\r\nContent-Encoding: br", &twice, of_raw.clone(), "gzip, br"),
        ("br", &raw, of_raw.clone(), "br"),
        ("deflate", &packed, of(&packed), "deflate"),
    ] {
        let server = coded(&format!("Content-Encoding: {header}\r\n"), body);
        let bench = Bench::new(DISK);
        let error = fails(&bench, StreamImage { url: server.at("/disk.raw.zst"), ..image });
        assert!(chain(&error).contains(&told(coding)), "{}", chain(&error));
        assert!(!is_transient(&error));
        check_untouched_or_does_not_boot(&bench);
    }
    // Once more than its name says. It is so large that its first block is judged before its end arrives.
    let large = gzip(&image(20 * MIB));
    let server = coded("Content-Encoding: gzip\r\n", &gzip(&large));
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { url: server.at("/disk.raw.gz"), ..of(&large) });
    assert!(chain(&error).contains(&told("gzip")), "{}", chain(&error));
    // The file itself is compressed so, or the coding says nothing.
    for (header, body, path) in [
        ("x-gzip", &gzip(&raw), "/disk.raw.gz?a"),
        ("zstd", &packed, "/disk.raw.zst"),
        ("aws-chunked", &packed, "/disk"),
        ("identity", &packed, "/disk"),
        ("gzip", &gzip(&raw), "/disk"),
    ] {
        let server = coded(&format!("Content-Encoding: {header}\r\n"), body);
        let bench = Bench::new(DISK);
        bench.streams(StreamImage { url: server.at(path), ..of(body) });
        check_written(&bench, &raw);
    }
    let bench = Bench::new(DISK);
    let sums = Server::giving(ok(b""));
    let server = coded("Content-Encoding: gzip\r\n", &gzip(b"sums"));
    let image = StreamImage { url: sums.url, signature: None, sums: None, bmap: None, ..of(b"") };
    let signature = Some(DetachedSignature { url: server.at("/x.sig"), public_key: "x".to_owned() });
    let error = fails(&bench, StreamImage { signature, ..image });
    assert!(chain(&error).contains(&told("gzip")), "{}", chain(&error));
}

#[test]
fn a_truncated_body_whose_length_is_said_to_be_right_does_not_boot() {
    let raw = image(3 * MIB);
    for whole in [raw.clone(), zstd(&raw), gzip(&raw), xz(&raw), bzip2(&raw)] {
        let digest = sha256(&whole);
        let server = Server::giving(ok(&whole[..whole.len() / 2]));
        let proofs = [
            StreamImage { digest: Some(digest), ..stream(&server.url) },
            StreamImage { raw_digest: Some(sha256(&raw)), ..stream(&server.url) },
        ];
        for image in proofs {
            let bench = Bench::new(DISK);
            let error = fails(&bench, image);
            assert_error!(error, Error::Image(ImageError::Decode { .. } | ImageError::Digest { .. }));
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
        let server = Server::giving(ok(&stream_bytes));
        let bench = Bench::new(DISK);
        let error = fails(&bench, StreamImage { digest: Some(digest), ..stream(&server.url) });
        assert_error!(error, Error::Image(ImageError::Decode { .. } | ImageError::Digest { .. }), "{name}");
        check_untouched_or_does_not_boot(&bench);
        // The formats' own checksums also find it. Raw bytes have none.
        if name != "raw" {
            let bench = Bench::new(DISK);
            let error = fails(&bench, file(&bench, &stream_bytes));
            assert_error!(error, Error::Image(ImageError::Decode { .. }), "{name}");
            check_untouched_or_does_not_boot(&bench);
        }
    }
}

#[test]
fn statuses_that_will_not_change_are_final() {
    for status in ["404 Not Found", "403 Forbidden", "400 Bad Request", "410 Gone"] {
        let server = Server::start(move |_, _| common::status(status, ""));
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
        let body = ok(&raw);
        let server =
            Server::start(move |n, _| if n < 2 { common::status(status, "") } else { Answer::Bytes(body.clone()) });
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
        "/image" => status("302 F", "Location: /real\r\n"),
        "/real" => Answer::Bytes(body.clone()),
        _ => status("302 F", "Location: /loop\r\n"),
    });
    let bench = Bench::new(DISK);
    let image = StreamImage { digest: Some(sha256(&raw)), ..stream(&server.url) };
    bench.streams(image.clone());
    let bench = Bench::new(DISK);
    let error = fails(&bench, StreamImage { url: server.url.replace("/image", "/loop"), ..image });
    assert!(chain(&error).contains("redirects too often"), "{}", chain(&error));
    assert!(!is_transient(&error));
    check_untouched(&bench);
}

#[test]
fn where_a_redirect_leads_is_asked_for_again_when_it_has_expired_and_learns_no_secret() {
    let raw = Arc::new(image(2 * MIB));
    let body = Arc::clone(&raw);
    let server = Server::start(move |n, asked| match (n, asked.path.as_str()) {
        (_, "/image?token=secret") => status("307 T", &format!("Location: /signed?{n}\r\n")),
        (1, _) => Answer::file(&body, "\"v1\"", MIB),
        (3, _) => status("403 Expired", ""),
        _ => Answer::file(&body, "\"v1\"", usize::MAX),
    });
    let url = server.url.replace("/image", "/image?token=secret");
    let bench = Bench::new(DISK);
    bench.streams(StreamImage { digest: Some(sha256(&raw)), ..stream(&url) });
    assert!(bench.disk()[..raw.len()] == **raw);
    let paths: Vec<String> = server.asked().into_iter().map(|asked| asked.path).collect();
    let asked = "/image?token=secret";
    assert_eq!(paths, [asked, "/signed?0", asked, "/signed?2", asked, "/signed?4"]);
    assert_eq!(ranges(&server)[2..], [Some(MIB as u64); 4]);
    assert!(server.asked().iter().all(|asked| asked.referer.is_none()), "{:?}", server.asked());
    // An answer of the server that was asked stays final.
    let refusing = Server::start(|_, _| status("403 No", ""));
    fails(&Bench::new(DISK), StreamImage { digest: Some(sha256(&raw)), ..stream(&refusing.url) });
    assert_eq!(refusing.asked().len(), 1);
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
        _ => Answer::file(&body, "\"a\"", usize::MAX),
    });
    let started = Instant::now();
    let (_, _, ranges) = arrives(sha256(&raw), &raw, &server);
    assert!(started.elapsed() >= Duration::from_secs(10), "it was not silent for long enough: {:?}", started.elapsed());
    assert_eq!(ranges, [None, Some(5 * MIB as u64)]);
}
