//! `seed-cloud-init` refuses what the installed system would not understand, before any disk is looked at.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Bench;
use slipway_protocol::{Action, PhoneHome, SeedCloudInit};

fn check(inputs: SeedCloudInit, expect: &str) {
    let inputs = SeedCloudInit { instance_id: "run-7".to_owned(), ..inputs };
    let refusal = Bench::without_disks().refusal(&Action::SeedCloudInit(inputs));
    assert!(refusal.starts_with(expect), "{refusal:?} is not {expect:?}");
}

fn user_data(text: &str) -> SeedCloudInit {
    SeedCloudInit { user_data: text.to_owned(), ..SeedCloudInit::default() }
}

#[test]
fn user_data_is_judged_with_a_report_and_without() {
    let report = |inputs: SeedCloudInit| {
        let url = "https://s.example/p".to_owned();
        SeedCloudInit { phone_home: Some(PhoneHome { url, tries: None }), ..inputs }
    };
    for (text, expect) in [
        ("I2Nsb3VkLWNvbmZpZwphOiAxCg==\n", "reading the user-data: line 1, column 1: cloud-init does not recognise"),
        ("#cloud-config\na: [b\n", "reading the user-data: line 2, column 4: this is not YAML"),
        ("#cloud-config\n- a\n", "reading the user-data: line 2, column 1: the root of the document is a list"),
        ("{\"ignition\": {}}", "reading the Ignition config: line 1, column 1: the config has no ignition.version"),
    ] {
        check(user_data(text), expect);
        check(report(user_data(text)), expect);
    }
}

#[test]
fn vendor_data_and_the_network_are_judged_too() {
    let vendor_data = Some("packages: [a]\n".to_owned());
    let expect = "reading the vendor-data: line 1, column 1: cloud-init does not recognise";
    check(SeedCloudInit { vendor_data, ..user_data("#!/bin/sh\n") }, expect);
    let network_config = Some("version: 2\nethernets: {eth0: {addresses: [192.0.2.5/24]}\n".to_owned());
    let expect = "reading the network configuration: line 2, column 12: this is not YAML";
    check(SeedCloudInit { network_config, ..user_data("#!/bin/sh\n") }, expect);
}
