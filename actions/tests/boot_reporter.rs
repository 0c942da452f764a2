//! `boot-reporter` on a disk that carries an image.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::Command;

use slipway_protocol::boot_report::places;
use slipway_protocol::{Action, BootReporter, BootReporterConfig, Proxy};

use common::disk_image::{Part, ROOT, can_mount, debugfs, make, read_file};
use common::{Bench, MIB, chain};

const ROOT_AT: usize = 1;
const SYSTEMD: (&str, &str) = ("usr/lib/systemd/systemd", "");
const PROGRAM: &str = "the program\n";

fn installed(files: &[(&str, &str)]) -> Bench {
    let mut bench = Bench::new(MIB);
    let files = [&[("etc/os-release", "NAME=Debian")], files].concat();
    make(&bench.path("disk"), 20, &[Part { mib: ROOT_AT..19, type_guid: ROOT, name: "system", files: &files }]);
    std::fs::write(bench.path("program"), PROGRAM).unwrap();
    bench.setup.program = bench.path("program");
    bench
}

fn reporter() -> BootReporter {
    BootReporter {
        url: "https://s.example:8443".to_owned(),
        token: "T0KEN".to_owned().into(),
        ca: "-----BEGIN CERTIFICATE-----\n".to_owned(),
        hours: 2,
        ..BootReporter::default()
    }
}

/// Runs the action and returns its outcome as text.
fn outcome(bench: &Bench) -> String {
    match bench.run(&Action::BootReporter(reporter())).0 {
        Ok(done) => done.outcome.summary,
        Err(error) => chain(&error),
    }
}

#[test]
fn the_program_is_left_with_its_secret_and_a_unit_of_the_boot() {
    let true = can_mount() else { return };
    let wants = "etc/systemd/system/multi-user.target.wants/other.service";
    let mut bench = installed(&[SYSTEMD, (wants, "-> /lib/systemd/system/other.service")]);
    bench.setup.proxy = Some(Proxy { url: "http://proxy.example:3128".to_owned(), except: String::new() });
    // The second pass stands for a repeat after a power cut during the step.
    for _ in 0..2 {
        let outcome = outcome(&bench);
        assert!(outcome.starts_with("installed the boot reporter in partition 1 (system)"), "{outcome}");
    }
    let found = |place: &str| read_file(&bench.path("disk"), ROOT_AT, &format!("/{place}")).unwrap();
    assert_eq!(found(places::PROGRAM), (PROGRAM.to_owned(), "0755 0:0".to_owned()));
    let (config, owner) = found(places::CONFIG);
    assert_eq!(owner, "0600 0:0");
    let config: BootReporterConfig = serde_json::from_str(&config).unwrap();
    let expect = reporter();
    assert_eq!((config.url, config.token, config.ca), (expect.url, expect.token, expect.ca));
    assert_eq!((config.hours, config.every, &config.proxy), (2, 600, &bench.setup.proxy));
    assert_eq!(found(places::UNIT).1, "0644 0:0");
    let link = debugfs(&bench.path("disk"), ROOT_AT, &format!("stat /{}", places::LINK));
    assert!(link.contains("\"/etc/systemd/system/slipway-report.service\""), "{link}");
    let wanted = debugfs(&bench.path("disk"), ROOT_AT, "ls /etc/systemd/system/multi-user.target.wants");
    assert!(wanted.contains("other.service"), "{wanted}");
}

#[test]
fn a_system_that_looks_at_labels_gets_them() {
    let true = can_mount() else { return };
    let bench = installed(&[SYSTEMD, ("etc/selinux/config", "SELINUX=enforcing\nSELINUXTYPE=targeted\n")]);
    assert!(outcome(&bench).starts_with("installed the boot reporter in "), "{}", outcome(&bench));
    for (place, kind) in
        [(places::PROGRAM, "bin_t"), (places::UNIT, "systemd_unit_file_t"), (places::LINK, "systemd_unit_file_t")]
    {
        let labels = debugfs(&bench.path("disk"), ROOT_AT, &format!("ea_get /{place} security.selinux"));
        assert!(labels.contains(&format!("system_u:object_r:{kind}:s0")), "{place}: {labels}");
    }
}

#[test]
fn a_system_without_systemd_is_refused_and_left_as_it_is() {
    let true = can_mount() else { return };
    let bench = installed(&[("usr/sbin/openrc", "")]);
    let refused = outcome(&bench);
    assert!(refused.starts_with("installing the boot reporter in partition 1 (system)"), "{refused}");
    assert!(refused.ends_with("it does not use systemd, and only systemd can start the reporter; leave the step out"));
    assert_eq!(read_file(&bench.path("disk"), ROOT_AT, &format!("/{}", places::PROGRAM)), None);
}

#[test]
fn a_full_system_is_told_and_its_boot_does_not_change() {
    let true = can_mount() else { return };
    let bench = installed(&[SYSTEMD]);
    std::fs::write(bench.path("program"), vec![7; 30 * MIB]).unwrap();
    let refused = outcome(&bench);
    assert!(refused.starts_with("writing /usr/local/lib/slipway/slipway of the installed system: "), "{refused}");
    assert_eq!(read_file(&bench.path("disk"), ROOT_AT, &format!("/{}", places::LINK)), None);
    assert_eq!(read_file(&bench.path("disk"), ROOT_AT, &format!("/{}", places::PROGRAM)), None);
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let found = Command::new("systemd-analyze").arg("--version").output();
    if found.is_err() {
        eprintln!("not checked: there is no systemd-analyze");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unit = include_str!("../src/action/boot_reporter/slipway-report.service");
    // `systemd-analyze verify` checks that the program exists.
    let unit = unit.replace("/usr/local/lib/slipway/slipway", "/bin/true");
    let file = folder.path().join("slipway-report.service");
    std::fs::write(&file, unit).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("slipway-report")).collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}
