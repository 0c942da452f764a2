//! What is added to an Ignition config, read by the data structures of the makers of Fedora CoreOS.

use ignition_config::Config;
use serde_json::json;
use slipway_protocol::PhoneHome;
use slipway_user_data::ignition::{Additions, complete};

#[test]
fn every_version_reads_what_is_added_without_a_key_it_does_not_know() {
    let keys = ["ssh-ed25519 AAAA operator".to_owned()];
    let phone_home = PhoneHome { url: "https://s.example/p".to_owned(), tries: Some(3) };
    let additions = Additions {
        hostname: Some("web1"),
        ssh_keys: &keys,
        phone_home: Some(&phone_home),
        ca: Some("PEM\n"),
        instance_id: "i-1",
    };
    for version in ["3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0", "3.6.0"] {
        let replace = json!({"source": "https://s.example/other", "verification": {"hash": "sha512-00"}});
        for config in [json!({}), json!({"replace": replace})] {
            let config = json!({"ignition": {"version": version, "config": config}});
            let completed = complete(&config.to_string(), &additions).expect("a config");
            let (read, warnings) = Config::parse_str(&completed).expect(version);
            assert!(warnings.is_empty(), "{version}: {warnings:?}");
            let read = serde_json::to_value(read).expect("JSON");
            assert_eq!(read["passwd"]["users"][0]["sshAuthorizedKeys"], json!(keys), "{version}");
            let files = read["storage"]["files"].as_array().expect("files");
            let paths: Vec<_> = files.iter().filter_map(|file| file["path"].as_str()).collect();
            let expect = ["/etc/hostname", "/etc/slipway/phone-home.pem", "/etc/slipway/phone-home.curl"];
            assert_eq!(paths, expect, "{version}");
            assert_eq!(read["systemd"]["units"][0]["enabled"], true, "{version}");
        }
    }
}
