//! `seed-cloud-init` on a disk that carries an image.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::disk_image::{LINUX, Part, can_mount, make, read_file, spoil};
use common::installed::{ROOT_AT, installed};
use common::{Bench, MIB, chain};
use slipway_actions::{Error, TargetError};
use slipway_protocol::{Action, PhoneHome, SeedCloudInit};

fn seed() -> SeedCloudInit {
    SeedCloudInit {
        instance_id: "run-7".to_owned(),
        hostname: Some("node7".to_owned()),
        user_data: "#cloud-config\nhostname: x\n".to_owned(),
        ..SeedCloudInit::default()
    }
}

#[test]
fn the_seed_is_what_cloud_init_reads_and_the_leftovers_are_gone() {
    let true = can_mount() else { return };
    let bench = installed(
        &[
            ("etc/os-release", "NAME=Debian"),
            ("usr/bin/cloud-init", ""),
            ("etc/cloud/cloud-init.disabled", ""),
            ("etc/cloud/cloud.cfg", "kept: true\n"),
            ("var/lib/cloud/instance", "-> instances/old"),
            ("var/lib/cloud/instances/old/sem/x", ""),
            ("var/lib/cloud/sem/y", ""),
            ("var/lib/cloud/data/instance-id", "old"),
            ("var/lib/cloud/seed/nocloud/vendor-data", "of another run"),
        ],
        &[],
    );
    let inputs = SeedCloudInit {
        network_config: Some("version: 2\n".to_owned()),
        phone_home: Some(PhoneHome { url: "https://s.example/p".to_owned(), tries: Some(3) }),
        ..seed()
    };
    let (done, reports) = bench.succeeds(&Action::SeedCloudInit(inputs));
    assert_eq!(done.outcome.warnings, [""; 0]);
    assert!(reports.notes[1].contains("partition 3 (system)"), "{:?}", reports.notes);

    let disk = bench.path("disk");
    let found = |path: &str| read_file(&disk, ROOT_AT, path);
    let secret = |content: &str| Some((content.to_owned(), "0600 0:0".to_owned()));
    let user_data =
        "#cloud-config\nhostname: x\nphone_home:\n  url: \"https://s.example/p\"\n  post: all\n  tries: 3\n";
    assert_eq!(found("/var/lib/cloud/seed/nocloud/user-data"), secret(user_data));
    let meta_data = "instance-id: \"run-7\"\nlocal-hostname: \"node7\"\n";
    assert_eq!(found("/var/lib/cloud/seed/nocloud/meta-data"), secret(meta_data));
    assert_eq!(found("/var/lib/cloud/seed/nocloud/network-config"), secret("version: 2\n"));
    assert_eq!(found("/var/lib/cloud/seed/nocloud/vendor-data"), None);
    let gate = Some(("datasource_list: [ NoCloud, None ]\n".to_owned(), "0644 0:0".to_owned()));
    assert_eq!(found("/etc/cloud/cloud.cfg.d/99_slipway.cfg"), gate);
    assert!(found("/etc/cloud/cloud.cfg").is_some());
    for gone in
        ["/etc/cloud/cloud-init.disabled", "/var/lib/cloud/instance", "/var/lib/cloud/instances", "/var/lib/cloud/sem"]
    {
        assert_eq!(found(gone), None, "{gone}");
    }
}

#[test]
fn user_data_that_cannot_take_the_block_is_refused_before_the_disk_is_looked_at() {
    let bench = Bench::without_disks();
    let phone_home = Some(PhoneHome { url: "https://s.example/p".to_owned(), tries: None });
    let inputs = SeedCloudInit { user_data: "#cloud-config\n- a\n".to_owned(), phone_home, ..seed() };
    let refusal = bench.refusal(&Action::SeedCloudInit(inputs));
    let expect = "reading the user-data: line 2, column 1: the root of the document is a list";
    assert!(refusal.starts_with(expect), "{refusal}");
}

#[test]
fn without_a_root_file_system_every_place_looked_at_is_named() {
    let true = can_mount() else { return };
    let bench = Bench::new(MIB);
    let parts = [Part { mib: 1..9, type_guid: LINUX, name: "data", files: &[] }];
    make(&bench.path("disk"), 10, &parts);
    let error = bench.run(&Action::SeedCloudInit(seed())).0.unwrap_err();
    assert_error!(error, Error::Target(TargetError::NotFound { .. }));
    assert!(chain(&error).contains("partition 1 (data) of "), "{}", chain(&error));
    assert!(chain(&error).ends_with("(ext4) has no /etc/os-release"), "{}", chain(&error));
}

#[test]
fn another_system_is_not_seeded_in_place_of_a_root_that_does_not_mount() {
    let true = can_mount() else { return };
    let bench = installed(&[("etc/os-release", "")], &[]);
    spoil(&bench.path("disk"), ROOT_AT);
    let error = bench.run(&Action::SeedCloudInit(seed())).0.expect_err("partition 3 is the root, by its type");
    assert!(chain(&error).contains("partition 3 (system)"), "{}", chain(&error));
    assert!(!chain(&error).contains("partition 2 (data)"), "{}", chain(&error));
}
