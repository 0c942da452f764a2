//! `slipway user-data` as a filter.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write as _;
use std::process::{Command, Stdio};

const BLOCK: &str = "phone_home:\n  url: \"https://s.example/p\"\n  post: [hostname, fqdn]\n  tries: 3\n";
const INJECT: &[&str] =
    &["inject", "--phone-home-url", "https://s.example/p", "--post", "hostname,fqdn", "--tries", "3"];
const REMOVE: &[&str] = &["remove", "--phone-home-url", "https://s.example/p"];

/// Runs the command with `input` as standard input, and checks its exit status, its output, and the start of its error
/// message.
fn check(arguments: &[&str], input: &str, (status, output, complaint): (i32, &str, &str)) {
    let mut slipway = Command::new(env!("CARGO_BIN_EXE_slipway"));
    slipway.arg("user-data").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = slipway.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The command exits before it reads the input if the usage is wrong.
    _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let found = child.wait_with_output().unwrap();
    let said = String::from_utf8(found.stderr).unwrap();
    assert_eq!(
        (found.status.code(), String::from_utf8(found.stdout).unwrap().as_str()),
        (Some(status), output),
        "{said}"
    );
    assert!(said.starts_with(complaint) && said.is_empty() == complaint.is_empty(), "{said:?} is not {complaint:?}");
}

#[test]
fn a_block_is_put_in_and_taken_out() {
    let with = format!("#cloud-config\na: 1 # b\n{BLOCK}");
    check(INJECT, "#cloud-config\na: 1 # b\n", (0, &with, ""));
    check(REMOVE, &with, (0, "#cloud-config\na: 1 # b\n", ""));
    check(INJECT, "", (0, &format!("#cloud-config\n{BLOCK}"), ""));
    check(REMOVE, &format!("#cloud-config\n{BLOCK}"), (0, "", ""));
}

#[test]
fn what_is_refused_is_told_with_its_place() {
    check(INJECT, "#cloud-config\na: [1\nb: 2\n", (1, "", "3:2: this is not YAML: "));
    check(&["check"], "#cloud-config\n\n- a\n", (1, "", "3:1: the root of the document is a list"));
    check(&["check"], "#!/bin/sh\n", (0, "", ""));
    check(REMOVE, "hello\n", (0, "hello\n", ""));
}

#[test]
fn files_of_a_seed_are_checked_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (right, config) = (file("right", "#!/bin/sh\n"), file("config", "{\"ignition\": {\"version\": \"3.4.0\"}}"));
    let network = file("network", "version: 2\nethernets: {eth0: {dhcp4: true}}\n");
    check(&["check", &right, &config, "--network", &network], "", (0, "", ""));
    check(&["check", "--network", &network], "hello\n", (0, "", ""));
    let (encoded, cut) = (file("encoded", "I2Nsb3VkLWNvbmZpZwo=\n"), file("cut", "version: 2\nethernets: {a: {}\n"));
    let expect = format!("{encoded}:1:1: cloud-init does not recognise the text: it is in base64");
    check(&["check", &encoded, &right, "--network", &cut], "", (1, "", &expect));
    check(&["check", "--network", &cut], "", (1, "", &format!("{cut}:2:12: this is not YAML")));
    check(&["check"], "{\"ignition\": {}}", (1, "", "1:1: the config has no ignition.version"));
    check(&["check", "/nonexistent"], "", (1, "", "slipway: opening /nonexistent: "));
}

#[test]
fn what_is_too_large_is_refused_and_not_cut() {
    let large = "a".repeat(17 << 20);
    for arguments in [INJECT, REMOVE, &["check"]] {
        check(arguments, &large, (1, "", "1:1: the user-data has more than 16 MiB"));
    }
}

#[test]
fn what_cloud_init_cannot_do_is_a_wrong_argument() {
    check(&["inject", "--phone-home-url", "https://a/$TOKEN"], "", (2, "", "error: invalid value"));
    check(&["inject", "--phone-home-url", "https://a/", "--post", "password"], "", (2, "", "error: invalid value"));
    check(&["inject", "--phone-home-url", "https://a/", "--tries", "0"], "", (2, "", "error: invalid value"));
}
