//! Where an image may come from, and how it is verified.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use base16ct::lower::encode_string as hex;
use ring::signature::{Ed25519KeyPair, KeyPair};
use slipway_protocol::{DetachedSignature, StreamImage};

use common::tls::{Acceptor, authority};
use common::written::{check_untouched, check_untouched_or_does_not_boot, fails_for};
use common::{
    Answer, Bench, MIB, ReceivedRequest, Server, chain, gzip, image, ok, ranges, sha256, status, stream, stream_from,
};

const DISK: usize = 4 * MIB;

/// A server with only these files.
fn site<const N: usize>(files: [(&str, Vec<u8>); N]) -> impl Fn(usize, &ReceivedRequest) -> Answer + Send + 'static {
    let files: HashMap<String, Vec<u8>> = files.into_iter().map(|(path, body)| (path.to_owned(), ok(&body))).collect();
    move |_, asked| match files.get(asked.path.trim_end_matches("?part=1")) {
        Some(answer) => Answer::Bytes(answer.clone()),
        None => status("404 Not Found", ""),
    }
}

fn key() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
}

fn signature(url: String, public_key: &str) -> Option<DetachedSignature> {
    Some(DetachedSignature { url, public_key: public_key.to_owned() })
}

#[track_caller]
fn arrives(bench: &Bench, image: StreamImage, raw: &[u8]) -> common::Reports {
    let (done, reports) = bench.streams(image);
    assert!(bench.disk().starts_with(raw), "the image is on the disk");
    assert_eq!(done.outcome.warnings, [""; 0], "it was verified");
    reports
}

#[test]
fn a_list_of_sums_over_tls_vouches_for_an_image_over_plain_http() {
    let raw = image(MIB);
    let body = gzip(&raw);
    let authority = authority();
    let list = format!("{}  other.gz\n{}  image.gz\n", sha256(b"").hex(), sha256(&body).hex());
    let sums = Server::start_with(Some(Acceptor::new(&authority)), site([("/SUMS", list.into_bytes())]));
    let server = Server::start(site([("/image.gz", body.clone())]));
    let mut bench = Bench::with_trust(vec![authority.pem()]);
    bench.add_disk("disk", DISK);
    let image = StreamImage { sums: Some(sums.at("/SUMS")), ..stream(server.at("/image.gz?part=1")) };
    let reports = arrives(&bench, image, &raw);
    let expect = format!("the image must have the digest {}, according to {}", sha256(&body), sums.at("/SUMS"));
    assert_eq!(reports.notes[0], expect, "before the disk is chosen");
}

#[test]
fn an_image_that_is_not_that_of_the_list_of_sums_does_not_boot() {
    let raw = image(MIB);
    let bench = Bench::new(DISK);
    let image = bench.put("image.raw", &raw);
    let from_list = |list: &str| StreamImage { sums: Some(bench.put("SUMS", list.as_bytes())), ..stream(&image) };
    let wrong = sha256(b"another");
    let good = from_list(&format!("{} *image.raw\n", sha256(&raw).hex()));
    for (list, expect) in [
        (
            format!("{}  other.raw\n", wrong.hex()),
            "looking for \"image.raw\" in the list of sums: it has \"other.raw\"",
        ),
        ("<html>".to_owned(), "it has no line with a digest and a name"),
        (" ".repeat(MIB + 1), "the file has more than the allowed 1048576 bytes"),
    ] {
        fails_for(&bench, from_list(&list), expect);
        check_untouched(&bench);
    }
    let refused = |image, expect| _ = fails_for(&bench, image, expect);
    refused(StreamImage { sums: Some(bench.place("nowhere")), ..good.clone() }, "opening the file");
    refused(StreamImage { url: "https://127.0.0.1:1/".to_owned(), ..good.clone() }, "does not end in a file name");
    refused(StreamImage { digest: Some(wrong.clone()), ..good.clone() }, "has a digest and a list of sums");
    refused(StreamImage { sums: Some("http://127.0.0.1:1/SUMS".to_owned()), ..good.clone() }, "without a signature");
    check_untouched(&bench);
    fs::write(bench.path("SUMS"), format!("{}  image.raw\n", wrong.hex())).unwrap();
    fails_for(&bench, good, &format!("checking the digest of the stream: expected {wrong}"));
    check_untouched_or_does_not_boot(&bench);
}

#[test]
fn a_list_of_sums_over_plain_http_counts_when_it_is_signed() {
    let raw = image(MIB);
    let key = key();
    let public_key = hex(key.public_key().as_ref());
    let list = format!("{}  image.raw\n", sha256(&raw).hex());
    let forged = format!("{}  image.raw\n", sha256(b"forged").hex());
    let signed = key.sign(list.as_bytes()).as_ref().to_vec();
    let server = Server::start(site([
        ("/image.raw", raw.clone()),
        ("/SUMS", list.into_bytes()),
        ("/FORGED", forged.into_bytes()),
        ("/SUMS.sig", signed),
        ("/LONG.sig", vec![b'A'; 9000]),
    ]));
    let bench = Bench::new(DISK);
    let with = |sums: &str, signed: &str, public_key: &str| StreamImage {
        sums: Some(server.at(sums)),
        signature: signature(server.at(signed), public_key),
        ..stream(server.at("/image.raw"))
    };
    let wrong = "verifying the list of sums with its signature";
    let other = hex(Ed25519KeyPair::from_seed_unchecked(&[8; 32]).unwrap().public_key().as_ref());
    fails_for(&bench, with("/FORGED", "/SUMS.sig", &public_key), wrong);
    fails_for(&bench, with("/SUMS", "/SUMS.sig", &other), "it was made over other data or with another key");
    fails_for(&bench, with("/SUMS", "/SUMS.sig", "nonsense"), "reading the public key");
    fails_for(&bench, with("/SUMS", "/image.raw", &public_key), "the file has more than the allowed 8192 bytes");
    fails_for(&bench, with("/SUMS", "/LONG.sig", &public_key), "the file has more than the allowed 8192 bytes");
    fails_for(&bench, with("/SUMS", "/nowhere", &public_key), "the server answered 404");
    check_untouched(&bench);
    arrives(&bench, with("/SUMS", "/SUMS.sig", &public_key), &raw);
}

#[test]
fn a_signature_of_the_stream_is_verified_before_the_disk_can_boot() {
    let raw = image(MIB);
    let mut flipped = raw.clone();
    flipped[MIB / 2] ^= 1;
    let key = key();
    let public_key = hex(key.public_key().as_ref());
    let signed = key.sign(&raw).as_ref().to_vec();
    let server = Server::start(site([("/good", raw.clone()), ("/flipped", flipped), ("/sig", signed)]));
    let bench = Bench::new(DISK);
    let with = |path: &str, public_key: &str| StreamImage {
        signature: signature(server.at("/sig"), public_key),
        ..stream(server.at(path))
    };
    fails_for(&bench, with("/good", "nonsense"), "verifying the stream with its signature http");
    check_untouched(&bench);
    fails_for(&bench, with("/flipped", &public_key), "it was made over other data or with another key");
    check_untouched_or_does_not_boot(&bench);
    let digest = Some(sha256(b"another"));
    fails_for(&bench, StreamImage { digest, ..with("/good", &public_key) }, "checking the digest of the stream");
    check_untouched_or_does_not_boot(&bench);
    arrives(&bench, with("/good", &public_key), &raw);
    // An image of ten bytes, signed by minisign and by openssl.
    let bench = Bench::new(DISK);
    let url = bench.put("image", b"the image\0");
    let made = |name: &str| format!("{}/../crates/formats/tests/signatures/{name}", env!("CARGO_MANIFEST_DIR"));
    for (signed, public_key) in [("minisign.sig", "minisign.pub"), ("openssl.sig", "openssl.pem")] {
        let public_key = fs::read_to_string(made(public_key)).unwrap();
        let signature = signature(made(signed), &public_key);
        arrives(&bench, StreamImage { signature, ..stream(&url) }, b"the image\0");
    }
}

/// A server of the image that breaks off after this many bytes whenever it is asked from the beginning.
fn breaking(body: &Arc<Vec<u8>>, until: usize, etag: &'static str) -> Server {
    let body = Arc::clone(body);
    Server::start(move |n, _| match n {
        0 => Answer::file(&body, etag, until),
        _ => status("503 Busy", "Retry-After: 3600\r\n"),
    })
}

#[test]
fn a_mirror_goes_on_at_the_byte_where_there_is_a_digest() {
    let body = Arc::new(image(3 * MIB));
    let gone = Server::start(|_, _| status("404 Not Found", ""));
    let (first, second) = (breaking(&body, 2 * MIB, "\"1\""), Server::of(&body, "\"2\""));
    let bench = Bench::new(DISK);
    let mirrors = vec![first.url.clone(), second.url.clone(), "https://127.0.0.1:1/never".to_owned()];
    let image = StreamImage { mirrors, digest: Some(sha256(&body)), ..stream(&gone.url) };
    let (done, reports) = bench.streams(image);
    assert!(bench.disk().starts_with(&body));
    assert_eq!(done.outcome.warnings, ["fetching took 4 attempts"]);
    let told = |url: &str, from: usize, failed: &str, why: &str| {
        let note =
            format!("continuing with {url} from byte {from}, because {failed} failed: the server answered {why}");
        assert!(reports.notes.contains(&note), "{note}: {:?}", reports.notes);
    };
    told(&first.url, 0, &gone.url, "404 Not Found");
    told(&second.url, 2 * MIB, &first.url, "503 Service Unavailable");
    assert_eq!((ranges(&gone).len(), ranges(&second)), (1, vec![Some(2 * MIB as u64)]));
    assert_eq!(second.asked()[0].if_range, None, "the tag of one server means nothing to another");
}

#[test]
fn a_mirror_starts_over_without_a_digest_of_the_stream_or_with_another_size() {
    let body = Arc::new(image(3 * MIB));
    let longer = Arc::new([body.as_slice(), &[0; 512]].concat());
    for (served, digest) in [(&body, None), (&longer, Some(sha256(&longer)))] {
        let (first, second) = (breaking(&body, 2 * MIB, "\"1\""), Server::of(served, "\"1\""));
        let bench = Bench::new(DISK);
        let raw_digest = Some(sha256(served));
        let image = StreamImage { digest: digest.clone(), raw_digest, ..stream_from(&[&first, &second]) };
        let done = bench.streams(image).0;
        assert!(bench.disk().starts_with(served));
        assert_eq!(done.outcome.warnings.len(), 1);
        assert!(done.outcome.warnings[0].ends_with("attempts, and 2 MiB were fetched again"), "{:?}", done.outcome);
        assert_eq!(ranges(&second).last(), Some(&None), "from its beginning, and it is stayed with");
        assert_eq!(ranges(&first).len(), 2);
    }
}

#[test]
fn a_place_that_cannot_resume_is_left_for_the_next() {
    let body = Arc::new(image(3 * MIB));
    let served = Arc::clone(&body);
    let first = Server::start(move |_, asked| match asked.range {
        None => Answer::file(&served, "\"1\"", 2 * MIB),
        Some(_) => Answer::Bytes(ok(&served)),
    });
    let second = Server::of(&body, "\"2\"");
    let bench = Bench::new(DISK);
    let image = StreamImage { digest: Some(sha256(&body)), ..stream_from(&[&first, &second]) };
    let done = bench.streams(image).0;
    assert!(bench.disk().starts_with(&body));
    assert_eq!(done.outcome.warnings, ["fetching took 3 attempts, and 2 MiB were fetched again"]);
    assert_eq!(ranges(&second), [None]);
}

#[test]
fn a_place_that_gives_another_image_is_left_for_the_next() {
    let raw = image(2 * MIB);
    let body = gzip(&raw);
    let mut flipped = body.clone();
    flipped[MIB / 4] ^= 1;
    for (name, wrong) in [
        ("another", gzip(&image(MIB))),
        ("a bit", flipped),
        ("cut off", body[..body.len() / 2].to_vec()),
        ("a page", b"<html>".to_vec()),
        ("nothing", Vec::new()),
        ("too large", image(DISK + MIB)),
    ] {
        let by = |image| match name {
            "a bit" => StreamImage { raw_digest: Some(sha256(&raw)), ..image },
            _ => StreamImage { digest: Some(sha256(&body)), ..image },
        };
        let (first, second) = (Server::giving(ok(&wrong)), Server::giving(ok(&body)));
        let bench = Bench::new(DISK);
        let reports = bench.streams(by(stream_from(&[&first, &second]))).1;
        assert!(bench.disk().starts_with(&raw), "{name}");
        let note = format!("starting over with {}, because {} did not deliver a valid image: ", second.url, first.url);
        reports.tell(&note);
        assert_eq!((first.asked().len(), second.asked().len()), (1, 1), "{name}");
        // If the right source is first, the other is not even asked.
        let (first, second) = (Server::giving(ok(&body)), Server::giving(ok(&wrong)));
        arrives(&bench, by(stream_from(&[&first, &second])), &raw);
        assert_eq!(second.asked().len(), 0, "{name}");
    }
}

#[test]
fn an_image_that_is_too_large_and_not_verified_is_what_is_meant() {
    let bench = Bench::new(DISK);
    let (large, small) = (bench.put("large", &image(DISK + MIB)), bench.put("small", &image(MIB)));
    let image = StreamImage { mirrors: vec![small], ..stream(large) };
    let error = fails_for(&bench, image.clone(), "the disk has 4 MiB, but the image needs at least 5 MiB");
    assert!(chain(&error).starts_with("writing the image to "), "{}", chain(&error));
    check_untouched(&bench);
    // If all sources give an image that does not fit, the sources are not at fault.
    let same = bench.put("same", &fs::read(bench.path("large")).unwrap());
    let image = StreamImage { mirrors: vec![same], digest: Some(sha256(b"the image")), ..image };
    let error = fails_for(&bench, image, "the disk has 4 MiB, but the image needs at least 5 MiB");
    assert!(chain(&error).starts_with("writing the image to "), "{}", chain(&error));
    check_untouched(&bench);
}

#[test]
fn an_image_that_no_place_has_is_asked_for_once_at_each_and_does_not_boot() {
    let places: Vec<Server> = (1..4).map(|n| Server::giving(ok(&image(n * 256 * 1024)))).collect();
    let bench = Bench::new(DISK);
    let from = stream_from(&places.iter().collect::<Vec<_>>());
    let image = StreamImage { digest: Some(sha256(b"the image")), ..from };
    let error = fails_for(&bench, image, "fetching: all 3 URLs failed: ");
    for place in &places {
        let told = format!("{}: checking the digest of the stream: expected sha256:", place.url);
        assert!(chain(&error).contains(&told), "{}", chain(&error));
        assert_eq!(place.asked().len(), 1);
    }
    check_untouched_or_does_not_boot(&bench);
}

#[test]
fn places_whose_parts_do_not_fit_are_asked_for_all_of_it() {
    let body = Arc::new(image(3 * MIB));
    let mut other = image(3 * MIB);
    other[0] ^= 1;
    // The first part belongs to another image. The fetch resumes at the right source.
    let (first, second) = (breaking(&Arc::new(other), 2 * MIB, "\"1\""), Server::of(&body, "\"2\""));
    let bench = Bench::new(DISK);
    let image = StreamImage { digest: Some(sha256(&body)), ..stream_from(&[&first, &second]) };
    let (done, reports) = bench.streams(image);
    assert!(bench.disk().starts_with(&body));
    let (first, last) = (&first.url, &second.url);
    reports.tell(&format!(
        "starting over with {last}, because {first} and {last} did not deliver a valid image: checking"
    ));
    assert_eq!(ranges(&second), [Some(2 * MIB as u64), None]);
    assert_eq!(done.outcome.warnings, ["fetching took 4 attempts, and 3 MiB were fetched again"]);
}

#[test]
fn when_every_mirror_fails_the_error_has_each_with_its_reason() {
    let missing = Server::start(|_, _| status("404 Not Found", ""));
    let forbidden = Server::start(|_, _| status("403 Forbidden", ""));
    let bench = Bench::new(DISK);
    let digest = Some(sha256(b""));
    let mirrors = vec![forbidden.url.clone() + "?key=hidden"];
    let expect = format!(
        "fetching: all 2 URLs failed: {}: the server answered 404 Not Found; {}: the server answered 403 Forbidden",
        missing.url, forbidden.url
    );
    let error = fails_for(&bench, StreamImage { mirrors, digest, ..stream(&missing.url) }, &expect);
    assert_eq!(chain(&error), expect);
    check_untouched(&bench);
    let mirrors = vec!["http://127.0.0.1:1/x".to_owned()];
    fails_for(&bench, StreamImage { mirrors, ..stream("/x") }, "without a digest");
}

#[test]
fn the_place_that_gave_something_else_is_the_one_that_is_named() {
    let missing = Server::start(|_, _| status("404 Not Found", ""));
    let page = Server::giving(ok(b"<!DOCTYPE html><html>Sign in</html>"));
    let bench = Bench::new(DISK);
    let digest = Some(sha256(b"the image"));
    let image = StreamImage { digest, ..stream_from(&[&missing, &page]) };
    // Two stages find out in parallel: that it is a web page, and that its digest is another. Either may be first.
    let error = chain(&fails_for(&bench, image, &format!("; {}: ", page.url)));
    let (_, reason) = error.split_once(&format!("; {}: ", page.url)).unwrap();
    let reasons = ["reading the image: it is ", "checking the digest of the stream: "];
    assert!(reasons.iter().any(|known| reason.starts_with(known)), "{error}");
    assert!(!reason.contains(&missing.url), "{error}");
}

#[test]
fn an_image_that_lies_on_the_disk_is_refused_as_a_mirror_too() {
    let bench = Bench::new(DISK);
    let mirrors = vec![bench.place("disk")];
    fails_for(&bench, StreamImage { mirrors, ..stream("/nowhere/image") }, "the image is this disk or is stored on it");
    check_untouched(&bench);
}

#[test]
fn what_is_tried_again_is_told_with_its_reason_and_until_when() {
    let raw = image(MIB);
    let busy_once = |body: Vec<u8>| {
        Server::start(move |n, _| match n {
            0 => status("503 Busy", ""),
            _ => Answer::Bytes(ok(&body)),
        })
    };
    let server = busy_once(raw.clone());
    let list = busy_once(format!("{}  image\n", sha256(&raw).hex()).into_bytes());
    let key = key();
    let signed = busy_once(key.sign(format!("{}  image\n", sha256(&raw).hex()).as_bytes()).as_ref().to_vec());
    let bench = Bench::new(DISK);
    let signature = signature(signed.url.clone(), &hex(key.public_key().as_ref()));
    let image = StreamImage { sums: Some(list.url.clone()), signature, ..stream(&server.url) };
    let reports = bench.streams(image).1;
    for start in [
        format!("fetching {} failed: the server answered 503 Service Unavailable; trying again until ", signed.url),
        format!("fetching {} failed: the server answered 503 Service Unavailable; trying again until ", list.url),
        format!("fetching again from byte 0, because {} failed: the server answered 503", server.url),
    ] {
        let is_told = |note: &String| note.starts_with(&start) && note.ends_with(" UTC (5 s); Ctrl-C ends it");
        assert_eq!(reports.notes.iter().filter(|note| is_told(note)).count(), 1, "{start}: {:?}", reports.notes);
    }
}
