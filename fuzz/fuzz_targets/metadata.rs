//! What metadata says changes nothing of a machine's configuration but the server and the token. A server that is
//! accepted stands in the text, and has an HTTPS URL.
#![no_main]

use slipway_installer::config::{BAKED, Loaded, from_yaml};
use slipway_installer::metadata::{Answer, of_meta_data, of_user_data};
use slipway_protocol::MetadataSource;

const BOOT_IMAGE: &str = "ca: -----BEGIN CERTIFICATE-----\nmetadata: config-drive,openstack,ec2\nhostname: a\n";

fn check(answer: &Answer) {
    let baked = from_yaml(BAKED, BOOT_IMAGE).expect("it is YAML");
    let loaded = Loaded::of(vec![baked], true).expect("it is a configuration");
    let Ok(mut config) = loaded.complete(Some(&answer.metadata)) else { return };
    assert_eq!(config.server.scheme(), "https");
    assert_eq!((config.ca.as_str(), config.require), ("-----BEGIN CERTIFICATE-----", loaded.require));
    assert_eq!(config.machine.token.take(), answer.metadata.token);
    assert_eq!(config.machine, loaded.machine);
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(Some(answer)) = of_user_data(MetadataSource::Ec2, text) {
        check(&answer);
    }
    if let Ok(Some(answer)) = of_meta_data(MetadataSource::Openstack, text) {
        let json: serde_json::Value = serde_json::from_str(text).expect("it was JSON");
        assert_eq!(json["meta"]["slipway.server"], *answer.metadata.server);
        check(&answer);
    }
});
