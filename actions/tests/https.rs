//! TLS is always verified, against only the given certificates.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use slipway_actions::{Error, SourceError, is_transient};
use slipway_protocol::{Action, StreamImage};

use common::tls::{Acceptor, Authority, authority, authority_named};
use common::{Answer, Bench, MIB, Server, chain, image, ok, sha256, stream};

const DISK: usize = 4 * MIB;

/// Serves the same answer to every request.
fn serve(issuer: &Authority, answer: Vec<u8>) -> Server {
    Server::start_with(Some(Acceptor::new(issuer)), move |_, _| Answer::Bytes(answer.clone()))
}

#[test]
fn the_machines_own_authority_is_trusted_and_one_given_with_the_image() {
    let authority = authority();
    let raw = image(MIB);
    let server = serve(&authority, ok(&raw));
    for (trust, ca) in [(vec![authority.pem()], None), (vec![authority_named("another").pem()], Some(authority.pem()))]
    {
        let mut bench = Bench::with_trust(trust);
        bench.add_disk("disk", DISK);
        let done = bench.run(&Action::StreamImage(StreamImage { ca, ..stream(&server.url) })).0;
        let done = done.unwrap_or_else(|error| panic!("{}", chain(&error)));
        assert!(bench.disk()[..MIB] == raw);
        assert_eq!(done.outcome.warnings, ["the image was written without a digest to check it against"]);
    }
}

#[test]
fn another_authority_is_refused_at_once_even_under_the_same_name() {
    for (name, expect) in [("CA", "BadSignature"), ("another CA", "UnknownIssuer")] {
        let server = serve(&authority(), ok(b"never sent"));
        let mut bench = Bench::with_trust(vec![authority_named(name).pem()]);
        bench.add_disk("disk", DISK);
        let error = bench.run(&Action::StreamImage(stream(&server.url))).0.unwrap_err();
        assert!(chain(&error).ends_with(&format!("invalid peer certificate: {expect}")), "{}", chain(&error));
        let remedy = "its CA is not trusted (trusted: the certificate of the CA given to this machine or by hand); if \
                      this is the right server, give its CA as `ca` of the step, or by hand with --ca FILE";
        assert!(chain(&error).contains(remedy), "{}", chain(&error));
        assert!(!is_transient(&error));
        assert_eq!(server.connections(), 1);
        assert!(bench.disk().iter().all(|byte| *byte == 0xAA), "the disk is as it was");
    }
}

#[test]
fn a_ca_without_a_certificate_is_named_before_anything_is_sent() {
    let server = serve(&authority(), ok(b"never sent"));
    let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    for (trust, ca, expect) in [
        (vec![key], None, "the CA given to this machine or by hand: it has no certificate"),
        (vec![authority().pem()], Some("ca.pem".to_owned()), "`ca` of the step: it has no certificate"),
    ] {
        let mut bench = Bench::with_trust(trust);
        bench.add_disk("disk", DISK);
        let error = bench.run(&Action::StreamImage(StreamImage { ca, ..stream(&server.url) })).0.unwrap_err();
        assert!(chain(&error).contains(expect), "{}", chain(&error));
        assert!(!is_transient(&error));
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_redirect_out_of_tls_is_refused() {
    let authority = authority();
    let answer = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/image\r\nContent-Length: 0\r\n\r\n".to_vec();
    let server = serve(&authority, answer);
    let mut bench = Bench::with_trust(vec![authority.pem()]);
    bench.add_disk("disk", DISK);
    let error = bench.run(&Action::StreamImage(stream(&server.url))).0.unwrap_err();
    assert!(matches!(error, Error::Source(SourceError::Fetch { .. })));
    assert!(chain(&error).contains("redirects from https:// to http://"), "{}", chain(&error));
    assert!(!is_transient(&error));
}

#[test]
fn a_body_that_ends_with_its_connection_needs_something_to_tell_it_is_whole() {
    let authority = authority();
    let raw = image(MIB);
    let server = serve(&authority, [b"HTTP/1.1 200 OK\r\n\r\n", raw.as_slice()].concat());
    let mut bench = Bench::with_trust(vec![authority.pem()]);
    bench.add_disk("disk", DISK);
    let error = bench.run(&Action::StreamImage(stream(&server.url))).0.unwrap_err();
    assert!(chain(&error).contains("does not say how long the source is or where it ends"), "{}", chain(&error));
    assert!(!is_transient(&error));
    assert!(bench.disk().iter().all(|byte| *byte == 0xAA), "the disk is as it was");
    let sized = StreamImage { raw_size: Some(MIB as u64), ..stream(&server.url) };
    let digested = StreamImage { digest: Some(sha256(&raw)), ..stream(&server.url) };
    for image in [sized, digested] {
        let done = bench.run(&Action::StreamImage(image)).0;
        done.unwrap_or_else(|error| panic!("{}", chain(&error)));
        assert!(bench.disk()[..MIB] == raw);
    }
}
