//! TLS is always verified, against only the given certificates.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use rcgen::{BasicConstraints, IsCa, SanType};
use slipway_actions::{Error, SourceError};
use slipway_protocol::StreamImage;

use common::tls::{Acceptor, Authority, authority, authority_named};
use common::written::{check_untouched, fails, fails_for};
use common::{Answer, Bench, MIB, Server, chain, image, ok, sha256, stream};

const DISK: usize = 4 * MIB;

/// Serves the same answer to every request.
fn serve(issuer: &Authority, answer: Vec<u8>) -> Server {
    Server::start_with(Some(Acceptor::new(issuer)), move |_, _| Answer::Bytes(answer.clone()))
}

/// A machine with a disk that trusts this authority.
fn trusting(authority: &Authority) -> Bench {
    let mut bench = Bench::with_trust(vec![authority.pem()]);
    bench.add_disk("disk", DISK);
    bench
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
        let done = bench.streams(StreamImage { ca, ..stream(&server.url) }).0;
        assert!(bench.disk()[..MIB] == raw);
        assert_eq!(done.outcome.warnings, ["the image was written without a digest to check it against"]);
    }
}

#[test]
fn another_authority_is_refused_at_once_even_under_the_same_name() {
    for name in ["CA", "another CA"] {
        let server = serve(&authority(), ok(b"never sent"));
        let bench = trusting(&authority_named(name));
        let expect = "the server is not trusted, so nothing was sent: its certificate is not signed by a CA that is \
                      trusted here (trusted: the certificate of the CA given to this machine or by hand); if this is \
                      the right server, give its CA as `ca` of the step, or by hand with --ca FILE";
        let error = fails_for(&bench, stream(&server.url), expect);
        assert!(chain(&error).ends_with(expect), "{}", chain(&error));
        assert_eq!(server.connections(), 1);
        check_untouched(&bench);
    }
}

#[test]
fn a_certificate_that_is_out_of_date_is_told_with_both_times() {
    let authority = authority();
    for (years, expect) in [
        (1990..2000, "valid until Sat, 01 Jan 2000 00:00:00 GMT, but this machine's clock says "),
        (3000..3001, "valid from Wed, 01 Jan 3000 00:00:00 GMT, but this machine's clock says "),
    ] {
        let acceptor = Acceptor::with(&authority, |certificate| {
            certificate.not_before = rcgen::date_time_ymd(years.start, 1, 1);
            certificate.not_after = rcgen::date_time_ymd(years.end, 1, 1);
        });
        let server = Server::start_with(Some(acceptor), |_, _| Answer::Bytes(ok(b"never sent")));
        let bench = trusting(&authority);
        let error = fails_for(&bench, stream(&server.url), expect);
        assert!(chain(&error).ends_with("if the clock is wrong, set it, otherwise renew the certificate"));
        assert_eq!(server.connections(), 1);
        check_untouched(&bench);
    }
}

#[test]
fn a_certificate_for_other_names_is_told_with_its_names() {
    let authority = authority();
    let name = |text: &str| SanType::DnsName(text.try_into().unwrap());
    for (names, expect) in [
        (
            vec![name("other.test"), SanType::IpAddress([192, 0, 2, 1].into())],
            "its certificate is for another name (other.test, 192.0.2.1), not for 127.0.0.1; change the URL, or make a \
             certificate for this name (slipway-server: `serve --san 127.0.0.1`)",
        ),
        (
            vec![],
            "its certificate names no server, because a common name does not count: make one whose subjectAltName has \
             127.0.0.1",
        ),
    ] {
        let acceptor = Acceptor::with(&authority, |certificate| certificate.subject_alt_names = names);
        let server = Server::start_with(Some(acceptor), |_, _| Answer::Bytes(ok(b"never sent")));
        let bench = trusting(&authority);
        let error = fails_for(&bench, stream(&server.url), expect);
        assert!(chain(&error).ends_with(expect), "{}", chain(&error));
        assert_eq!(server.connections(), 1);
    }
}

/// `openssl req -x509` makes a certificate that signs itself, by default that of a CA.
#[test]
fn a_certificate_that_signs_itself_is_taken_if_it_is_no_ca() {
    let raw = image(MIB);
    let start = |is_ca| {
        let (acceptor, pem) = Acceptor::self_signed(is_ca);
        let answer = ok(&raw);
        let mut bench = Bench::with_trust(vec![pem]);
        bench.add_disk("disk", DISK);
        (Server::start_with(Some(acceptor), move |_, _| Answer::Bytes(answer.clone())), bench)
    };
    let (server, bench) = start(IsCa::ExplicitNoCa);
    bench.streams(stream(&server.url));
    assert!(bench.disk()[..MIB] == raw);
    let (server, bench) = start(IsCa::Ca(BasicConstraints::Unconstrained));
    let expect = "the server is not trusted, so nothing was sent: it uses a CA certificate, as `openssl req -x509` \
                  makes it, but slipway does not accept a CA certificate as a server's: make one with `openssl req \
                  -x509 -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:NAME ...`, and give it \
                  as the CA, or sign one with a CA";
    let error = fails_for(&bench, stream(&server.url), expect);
    assert!(chain(&error).ends_with(expect), "{}", chain(&error));
    assert_eq!(server.connections(), 1);
    check_untouched(&bench);
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
        fails_for(&bench, StreamImage { ca, ..stream(&server.url) }, expect);
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_redirect_out_of_tls_is_refused() {
    let authority = authority();
    let answer = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/image\r\nContent-Length: 0\r\n\r\n".to_vec();
    let server = serve(&authority, answer);
    let bench = trusting(&authority);
    let error = fails_for(&bench, stream(&server.url), "redirects from https:// to http://");
    assert_error!(error, Error::Source(SourceError::Fetch { .. }));
}

#[test]
fn a_body_that_ends_with_its_connection_needs_something_to_tell_it_is_whole() {
    let authority = authority();
    let raw = image(MIB);
    let server = serve(&authority, [b"HTTP/1.1 200 OK\r\n\r\n", raw.as_slice()].concat());
    let bench = trusting(&authority);
    fails_for(&bench, stream(&server.url), "does not say how long the source is or where it ends");
    check_untouched(&bench);
    let sized = StreamImage { raw_size: Some(MIB as u64), ..stream(&server.url) };
    let digested = StreamImage { digest: Some(sha256(&raw)), ..stream(&server.url) };
    for image in [sized, digested] {
        bench.streams(image);
        assert!(bench.disk()[..MIB] == raw);
    }
}

#[test]
fn a_server_that_ends_the_connection_without_the_end_of_tls_is_understood() {
    let authority = authority();
    let raw = image(MIB);
    let hangs_up = |head: &'static str, body: &[u8]| {
        let answer = [format!("HTTP/1.{head}\r\n").as_bytes(), body].concat();
        Server::start_with(Some(Acceptor::new(&authority)), move |_, _| Answer::HangUp(answer.clone()))
    };
    let chunks = [format!("{:x}\r\n", raw.len()).as_bytes(), &raw, b"\r\n0\r\n\r\n"].concat();
    let by_digest = |server: &Server| StreamImage { digest: Some(sha256(&raw)), ..stream(&server.url) };
    let by_size = |server: &Server| StreamImage { raw_size: Some(MIB as u64), ..stream(&server.url) };
    for (head, body, asked) in [
        ("0 200 OK\r\n", &raw, 1),
        ("1 200 OK\r\nConnection: close\r\n", &raw, 1),
        ("1 200 OK\r\nContent-Length: 1048576\r\n", &raw, 1),
        ("1 200 OK\r\nTransfer-Encoding: chunked\r\n", &chunks, 1),
        ("1 200 OK\r\nTransfer-Encoding: chunked\r\n", &chunks[..chunks.len() - 5].to_vec(), 3),
    ] {
        let server = hangs_up(head, body);
        let bench = trusting(&authority);
        bench.streams(by_digest(&server));
        assert!(bench.disk()[..MIB] == raw, "{head}");
        assert_eq!(server.asked().len(), asked, "{head}");
    }
    trusting(&authority).streams(by_size(&hangs_up("0 200 OK\r\n", &raw)));
    // What is cut is found out.
    let cut = hangs_up("0 200 OK\r\n", &raw[..MIB / 2]);
    fails_for(&trusting(&authority), by_digest(&cut), "checking the digest of the stream");
    fails_for(&trusting(&authority), by_size(&cut), "expected 1048576 bytes, got 524288");
    fails_for(&trusting(&authority), stream(&cut.url), "the server does not say how long the source is");
    let silent = Server::start_with(Some(Acceptor::new(&authority)), |_, _| Answer::HangUp(Vec::new()));
    let error = chain(&fails(&trusting(&authority), by_digest(&silent)));
    assert!(error.ends_with("sending the request: the server ended the connection without an answer"), "{error}");
}
