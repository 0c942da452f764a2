//! `seed-cloud-init` and what the image says to cloud-init: it is written over, or the step fails with the file's name.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::disk_image::{ESP, Part, ROOT, can_mount, make, read_file};
use common::{Bench, MIB};
use slipway_protocol::{Action, SeedCloudInit, SeedPlace};

const SYSTEM: &[(&str, &str)] = &[("etc/os-release", "ID=x"), ("usr/bin/cloud-init", ""), ("etc/cloud/cloud.cfg", "")];
const ROOT_AT: usize = 10;

fn seed(seed: SeedPlace) -> SeedCloudInit {
    SeedCloudInit { seed, instance_id: "run-7".to_owned(), ..SeedCloudInit::default() }
}

/// A disk with boot files on the ESP and a system.
fn bench(esp: &[(&str, &str)], files: &[(&str, &str)]) -> Bench {
    let bench = Bench::new(MIB);
    let files = [SYSTEM, files].concat();
    let parts = [
        Part { mib: 1..9, type_guid: ESP, name: "esp", files: esp },
        Part { mib: ROOT_AT..40, type_guid: ROOT, name: "system", files: &files },
    ];
    make(&bench.path("disk"), 60, &parts);
    bench
}

fn content(bench: &Bench, path: &str) -> Option<String> {
    read_file(&bench.path("disk"), ROOT_AT, path).map(|(content, _)| content)
}

#[test]
fn a_seed_wins_over_what_the_image_says() {
    let true = can_mount() else { return };
    let files = [
        ("etc/cloud/cloud.cfg.d/zz-aws.cfg", "datasource_list: [ Ec2, None ]\n"),
        ("etc/cloud/cloud.cfg.d/99_slipway.cfg", "datasource_list: [ NoCloud, None ]\n"),
        ("etc/cloud/cloud.cfg.d/99-disable-network-config.cfg", "network: {config: disabled}\n"),
        ("etc/cloud/ds-identify.cfg", "policy: disabled\n"),
        ("etc/cloud/cloud-init.disabled", ""),
    ];
    for place in [SeedPlace::Auto, SeedPlace::Cidata] {
        let bench = bench(&[], &files);
        let inputs = SeedCloudInit { network_config: Some("version: 2\n".to_owned()), ..seed(place) };
        let (done, _) = bench.succeeds(&Action::SeedCloudInit(inputs));
        let ours = content(&bench, "/etc/cloud/cloud.cfg.d/zzzz_slipway.cfg").unwrap();
        assert!(
            ours.starts_with("datasource_list: [ NoCloud, None ]\n") && ours.contains("\nnetwork: null\n"),
            "{ours}"
        );
        for gone in ["cloud.cfg.d/99_slipway.cfg", "ds-identify.cfg", "cloud-init.disabled"] {
            assert_eq!(content(&bench, &format!("/etc/cloud/{gone}")), None, "{gone}");
        }
        assert!(
            done.outcome.warnings[0].starts_with("removed /etc/cloud/ds-identify.cfg"),
            "{:?}",
            done.outcome.warnings
        );
        assert_eq!(content(&bench, "/etc/cloud/cloud.cfg.d/zz-aws.cfg").as_deref(), Some(files[0].1), "it stays");
    }
}

#[test]
fn what_cannot_be_written_over_is_named_before_anything_is_written() {
    let true = can_mount() else { return };
    let entry = |options: &'static str| [("loader/entries/a.conf", options)];
    let check = |esp: &[(&str, &str)], files: &[(&str, &str)], expect: &str| {
        for place in [SeedPlace::Auto, SeedPlace::Root, SeedPlace::Cidata] {
            let old = [files, &[("var/lib/cloud/instance/obj.pkl", "old")]].concat();
            let bench = bench(esp, &old);
            let refusal = bench.refusal(&Action::SeedCloudInit(seed(place)));
            assert!(refusal.contains(expect), "{refusal}");
            assert!(content(&bench, "/var/lib/cloud/instance/obj.pkl").is_some(), "nothing was changed: {expect}");
        }
    };
    let list = "datasource_list: [ Ec2, None ]\n";
    check(&[], &[("etc/cloud/cloud.cfg.d/~aws.cfg", list)], "/etc/cloud/cloud.cfg.d/~aws.cfg (line 1)");
    check(
        &[],
        &[("etc/cloud/cloud.cfg", "conf_d: /etc/other\n")],
        "/etc/cloud/cloud.cfg (line 1) makes cloud-init read",
    );
    check(&[], &[("etc/cloud/cloud.cfg", "users: [\n")], "/etc/cloud/cloud.cfg (line 1) cannot be read by cloud-init");
    let mask = ("etc/systemd/system/cloud-init-local.service", "-> /dev/null");
    check(&[], &[mask], "/etc/systemd/system/cloud-init-local.service masks what runs cloud-init");
    check(&[], &[("etc/systemd/system/cloud-init.target", "")], "/etc/systemd/system/cloud-init.target masks");
    check(&[], &[("etc/systemd/system-generators/cloud-init-generator", "-> /dev/null")], "cloud-init-generator masks");
    let menu = ("boot/grub/grub.cfg", "menuentry x {\n linux /vmlinuz ro cloud-init=disabled\n}\n");
    check(&[], &[menu], "/boot/grub/grub.cfg (line 2) gives the kernel cloud-init=disabled");
    let custom = ("boot/grub/custom.cfg", menu.1);
    check(&[], &[custom], "/boot/grub/custom.cfg (line 2) gives the kernel cloud-init=disabled");
    let menu = ("boot/extlinux/extlinux.conf", "label a\n linux /vmlinuz\n append ro ds=Ec2\n");
    check(&[], &[menu], "/boot/extlinux/extlinux.conf (line 3) gives the kernel ds=Ec2");
    let expect = "/loader/entries/a.conf of partition 1 (esp) of ";
    check(&entry("linux /v\noptions ro ci.ds=Ec2\n"), &[], expect);
    let from_elsewhere = entry("linux /v\noptions ro ds=nocloud;s=http://x/\n");
    check(&from_elsewhere, &[], "ds=nocloud;s=http://x/, which takes precedence");
}

#[test]
fn what_does_not_stop_a_seed_is_a_warning() {
    let true = can_mount() else { return };
    let unit = "[Service]\nExecStart=x\n[Install]\nWantedBy=cloud-init.target\n";
    let local = ("usr/lib/systemd/system/cloud-init-local.service", unit);
    let warnings = |files: &[(&str, &str)]| {
        bench(&[], files).succeeds(&Action::SeedCloudInit(seed(SeedPlace::Auto))).0.outcome.warnings
    };
    let found = warnings(&[local, ("etc/cloud/cloud.cfg.d/a.cfg", "users: [\n")]);
    assert!(found[0].starts_with("cloud-init skips /etc/cloud/cloud.cfg.d/a.cfg: line "), "{found:?}");
    assert!(found[1].starts_with("nothing starts cloud-init-local.service in the installed system"), "{found:?}");
    let link = ("etc/systemd/system/cloud-init.target.wants/cloud-init-local.service", "-> /lib/systemd/x");
    assert_eq!(warnings(&[local, link]), [""; 0]);
    let target = ("usr/lib/systemd/system/cloud-init.target", "[Unit]\n");
    let found = warnings(&[local, link, target]);
    assert!(found[0].starts_with("nothing starts cloud-init.target in the installed system"), "{found:?}");
    let generator = ("usr/lib/systemd/system-generators/cloud-init-generator", "#!/bin/sh\n");
    let wanted = ("etc/systemd/system/multi-user.target.wants/cloud-init.target", "-> /lib/systemd/x");
    assert_eq!(warnings(&[local, link, target, generator]), [""; 0]);
    assert_eq!(warnings(&[local, link, target, wanted]), [""; 0]);
    for script in ["#!/usr/bin/python3\n", "#! /usr/bin/env -S python3 -s\n", "#!/bin/python3 -E\n"] {
        let program = ("usr/bin/cloud-init", script);
        let found = warnings(&[program]);
        assert!(found[0].contains("bin/python3, which runs /usr/bin/cloud-init: nothing will read"), "{found:?}");
        assert_eq!(warnings(&[program, ("usr/bin/python3", "-> python3.11")]), [""; 0]);
    }
}
