//! What boot files say is what their machine reads, for every setting, and the manual has every setting.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use slipway_installer::config::{BAKED, Config, Source, from_command_line, from_yaml, merge};
use slipway_media::{machine_settings, to_yaml};
use slipway_protocol::{BootSettings, Interface, MachineSettings, MetadataSource, Network, Proof};

const CA: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

fn every_setting() -> BootSettings {
    let any = Interface { name: "any".to_owned(), dhcp4: true, ..Interface::default() };
    let settings = BootSettings {
        server: Some("https://install.example:8443".to_owned()),
        ca: CA.to_owned(),
        require: Proof::Token,
        metadata: MetadataSource::ALL.into(),
        machine: MachineSettings {
            token: Some("a\"token\\:#".to_owned().into()),
            network: Some(Network { interfaces: vec![any], ..Network::default() }),
            proxy: Some("http://proxy.example:3128".to_owned()),
            no_proxy: Some("10.0.0.0/8,a.example".to_owned()),
            hostname: Some("rack3-u12".to_owned()),
        },
    };
    assert_eq!(settings.check(), Ok(()));
    settings
}

/// Lists the keys of settings, and whether each has a value.
fn keys(settings: &impl serde::Serialize) -> Vec<(String, bool)> {
    let json = serde_json::to_value(settings).unwrap();
    json.as_object().unwrap().iter().map(|(key, value)| (key.clone(), !value.is_null())).collect()
}

/// Reads a configuration from these sources, as a machine does. Fails on a warning.
fn read(sources: &[Source]) -> Config {
    let (config, warnings) = merge(sources, false).unwrap();
    assert_eq!(warnings, [""; 0]);
    config
}

#[test]
fn a_machine_reads_every_setting_that_its_medium_has() {
    let settings = every_setting();
    assert!(keys(&settings).iter().all(|(_, is_there)| *is_there), "a setting is missing here: {settings:?}");
    let expect = Config {
        server: settings.server.as_ref().unwrap().parse().unwrap(),
        ca: settings.ca.clone(),
        require: settings.require,
        machine: settings.machine.clone(),
    };
    assert_eq!(read(&[from_yaml(BAKED, &to_yaml(&settings)).unwrap()]), expect);

    let only = |require| BootSettings { require, machine: MachineSettings::default(), ..settings.clone() };
    let site = |require| from_yaml(BAKED, &to_yaml(&only(require))).unwrap();
    let of_machine = String::from_utf8(machine_settings::to_bytes(&settings.machine).unwrap()).unwrap();
    let of_machine = from_yaml("the settings of the machine", &of_machine).unwrap();
    assert_eq!(read(&[site(settings.require), of_machine.clone()]), expect);

    // The command line loses the quotes that JSON needs, and gives a warning about a token.
    let words = of_machine.values.iter().filter(|(_, value)| !value.contains('"'));
    let words: Vec<String> = words.map(|(key, value)| format!("slipway.{key}={value}")).collect();
    let read = read(&[site(Proof::Registered), from_command_line(&words.join(" ")).unwrap()]).machine;
    assert_eq!(read, MachineSettings { token: None, network: None, ..settings.machine });
}

#[test]
fn the_manual_has_a_line_for_every_setting() {
    let manual = include_str!("../../docs/how-to/boot.md");
    let (_, table) = manual.split_once("| key | option of `media build` |").unwrap();
    let table = table.split("\n\n").next().unwrap();
    let in_table =
        |key: &str| table.lines().any(|line| line.split('|').nth(1).unwrap_or("").contains(&format!("`{key}`")));
    for (key, _) in keys(&BootSettings::default()) {
        assert!(in_table(&key), "docs/how-to/boot.md has no line for the key {key}");
    }
}
