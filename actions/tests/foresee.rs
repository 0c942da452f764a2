//! What is known of a run before its first step.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use common::disk_image::run;
use common::written::DISK;
use common::{Bench, MIB, gzip, image, sha256, stream, xz, zstd};
use slipway_protocol::{Action, EraseDisk, Step, StreamImage};

/// The problem that an image is known to have before the disk is erased for it.
fn problem(bench: &Bench, image: StreamImage) -> Option<String> {
    let actions = [Action::EraseDisk(EraseDisk::default()), Action::StreamImage(image)];
    let step = |action: Action| Step { name: action.name().to_owned(), action, retries: 0, timeout: None };
    slipway_actions::foresee(&actions.map(step), bench).map(|foreseen| foreseen.problem)
}

/// A server that sends two bytes, and the rest a moment later.
fn hesitating(body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/image", listener.local_addr().unwrap());
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            _ = connection.read(&mut [0; 4096]);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let (first, rest) = body.split_at(2);
            _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(first));
            thread::sleep(Duration::from_millis(300));
            _ = connection.write_all(rest);
        }
    });
    url
}

#[test]
fn an_image_that_begins_slowly_is_what_it_is() {
    let raw = image(MIB);
    for (name, body) in [("xz", xz(&raw)), ("zstd", zstd(&raw)), ("gzip", gzip(&raw)), ("raw", raw.clone())] {
        assert_eq!(problem(&Bench::new(DISK), stream(hesitating(body))), None, "{name}");
    }
    let text = "# Notes\n".repeat(1000).into_bytes();
    let found = problem(&Bench::new(DISK), stream(hesitating(text))).unwrap();
    assert!(found.contains("text"), "{found}");
}

#[test]
fn a_qcow2_image_that_cannot_be_checked_in_one_pass_is_known_before() {
    let bench = Bench::new(DISK);
    let raw = image(MIB);
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]);
    run(convert.arg(bench.put("raw", &raw)).arg(bench.path("image")));
    let digest = Some(sha256(&std::fs::read(bench.path("image")).unwrap()));
    let (plain, raw_digest) = (stream(bench.place("image")), Some(sha256(&raw)));
    let both = StreamImage { digest: digest.clone(), raw_digest: raw_digest.clone(), ..plain.clone() };
    let found = problem(&bench, both).unwrap();
    assert!(found.contains("the blocks of a qcow2 image are in another order; leave out `digest`"), "{found}");
    for image in [StreamImage { digest, ..plain.clone() }, StreamImage { raw_digest, ..plain.clone() }, plain] {
        assert_eq!(problem(&bench, image), None);
    }
}
