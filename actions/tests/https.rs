//! TLS is always verified, against the certificates given and no others.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use common::{Bench, MIB, chain, image, ok, stream};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use slipway_actions::{Error, is_retryable};
use slipway_protocol::{Action, StreamImage};

const DISK: usize = 4 * MIB;

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    authority_named("CA")
}

fn authority_named(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Serves the same answer to everybody. Returns its URL and the count of connections.
fn serve(issuer: &CertifiedIssuer<KeyPair>, answer: Vec<u8>) -> (String, Arc<AtomicUsize>) {
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, issuer).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}/image", listener.local_addr().unwrap().port());
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    thread::spawn(move || {
        for connection in listener.incoming() {
            count.fetch_add(1, Ordering::Relaxed);
            let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(tls, connection.unwrap());
            // A client that does not trust the certificate hangs up.
            if stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) && stream.write_all(&answer).is_ok() {
                stream.conn.send_close_notify();
                drop(stream.flush());
            }
        }
    });
    (url, connections)
}

#[test]
fn the_machines_own_authority_is_trusted_and_one_given_with_the_image() {
    let authority = authority();
    let raw = image(MIB);
    let (url, _) = serve(&authority, ok(&raw));
    for (trust, ca) in [(vec![authority.pem()], None), (vec![self::authority().pem()], Some(authority.pem()))] {
        let mut bench = Bench::with_trust(trust);
        bench.add_disk("disk", DISK);
        let done = bench.run(&Action::StreamImage(StreamImage { ca, ..stream(&url) })).0;
        let done = done.unwrap_or_else(|error| panic!("{}", chain(&error)));
        assert!(bench.disk()[..MIB] == raw);
        assert_eq!(done.outcome.warnings, ["the image was written without a digest to check it against"]);
    }
}

#[test]
fn another_authority_is_refused_at_once_even_under_the_same_name() {
    for (name, expect) in [("CA", "BadSignature"), ("another CA", "UnknownIssuer")] {
        let (url, connections) = serve(&authority(), ok(b"never sent"));
        let mut bench = Bench::with_trust(vec![authority_named(name).pem()]);
        bench.add_disk("disk", DISK);
        let error = bench.run(&Action::StreamImage(stream(&url))).0.unwrap_err();
        assert!(chain(&error).ends_with(&format!("invalid peer certificate: {expect}")), "{}", chain(&error));
        let remedy = "its CA is not trusted, only the certificate of the CA given to this machine or by hand; if the \
                      server is the right one, give its CA as `ca` of the step, or by hand with --ca FILE";
        assert!(chain(&error).contains(remedy), "{}", chain(&error));
        assert!(!is_retryable(&error));
        assert_eq!(connections.load(Ordering::Relaxed), 1);
        assert!(bench.disk().iter().all(|byte| *byte == 0xAA), "the disk is as it was");
    }
}

#[test]
fn a_ca_without_a_certificate_is_named_before_anything_is_sent() {
    let (url, connections) = serve(&authority(), ok(b"never sent"));
    let key = KeyPair::generate().unwrap().serialize_pem();
    for (trust, ca, expect) in [
        (vec![key], None, "the CA given to this machine or by hand: there is no certificate in it"),
        (vec![authority().pem()], Some("ca.pem".to_owned()), "`ca` of the step: there is no certificate in it"),
    ] {
        let mut bench = Bench::with_trust(trust);
        bench.add_disk("disk", DISK);
        let error = bench.run(&Action::StreamImage(StreamImage { ca, ..stream(&url) })).0.unwrap_err();
        assert!(chain(&error).contains(expect), "{}", chain(&error));
        assert!(!is_retryable(&error));
    }
    assert_eq!(connections.load(Ordering::Relaxed), 0);
}

#[test]
fn a_redirect_out_of_tls_is_refused() {
    let authority = authority();
    let answer = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/image\r\nContent-Length: 0\r\n\r\n".to_vec();
    let (url, _) = serve(&authority, answer);
    let mut bench = Bench::with_trust(vec![authority.pem()]);
    bench.add_disk("disk", DISK);
    let error = bench.run(&Action::StreamImage(stream(&url))).0.unwrap_err();
    assert!(matches!(error, Error::Fetch { .. }));
    assert!(chain(&error).contains("redirects from https:// to http://"), "{}", chain(&error));
    assert!(!is_retryable(&error));
}
