use slipway_protocol::Proxy;

use super::*;

const CA: &str = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";

fn source(place: &str, values: &[(&str, &str)]) -> Source {
    let values = values.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Source { place: place.to_owned(), values }
}

#[test]
fn later_sources_win() {
    let baked = source(BAKED, &[("server", "https://a.example"), ("ca", CA), ("token", "t")]);
    let later =
        from_command_line("quiet slipway.server=https://b.example:8443 slipway.boot_medium=LABEL=x slipway.colour=red")
            .unwrap();
    let (config, warnings) = merge(&[baked, later], false).unwrap();
    assert_eq!(config.server.as_str(), "https://b.example:8443/");
    assert_eq!(warnings, ["the kernel command line sets \"colour\", which slipway does not know"]);
    assert!(!format!("{config:?}").contains("\"t\""), "a token must not be printed");
}

#[test]
fn a_key_without_a_value_is_refused_from_any_source() {
    let baked = source(BAKED, &[("server", "https://a.example"), ("ca", CA), ("token", "t")]);
    let check = |source: Source, key: &str| {
        let place = source.place.clone();
        let error = merge(&[baked.clone(), source], false).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{key} from {place} has no value")), "{error}");
    };
    for key in ["token", "network", "proxy", "no_proxy"] {
        for place in [OF_MACHINE, "the SMBIOS OEM strings", "fw_cfg opt/slipway"] {
            for none in ["", "  ", "\u{a0}", "\0"] {
                check(source(place, &[(key, none)]), key);
            }
        }
        for word in [format!("slipway.{key}="), format!("slipway.{key}"), format!("slipway.{key}=\"\"")] {
            check(from_command_line(&word).unwrap(), key);
        }
    }
    for key in ["server", "ca", "require"] {
        check(from_command_line(&format!("slipway.{key}=")).unwrap(), key);
    }
    check(from_yaml(OF_MACHINE, "token: ''\n").unwrap(), "token");
    let (_, warnings) =
        merge(&[baked, from_command_line("slipway.colour slipway.boot_medium=").unwrap()], false).unwrap();
    assert_eq!(warnings, ["the kernel command line sets \"colour\", which slipway does not know"]);
}

#[test]
fn a_key_has_one_value_in_each_source() {
    let check = |words: &str, expect: Option<&str>| {
        let error = from_command_line(words).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), expect, "{words}");
    };
    let twice = "token is given twice in the kernel command line, with different values: leave one of them out";
    check("slipway.token=a quiet slipway.token=b", Some(twice));
    check("slipway.token=a slipway.token", Some(twice));
    check("slipway.token=a slipway.token=a slipway.colour=red slipway.colour=blue", None);
    let oem = from_words("the SMBIOS OEM strings", &["slipway.ca=a".to_owned(), "slipway.ca=b".to_owned()]);
    assert!(oem.unwrap_err().to_string().starts_with("ca is given twice in the SMBIOS OEM strings"));
}

#[test]
fn a_locked_down_machine_takes_its_server_and_ca_from_what_is_signed() {
    let baked = source(BAKED, &[("server", "https://a.example"), ("ca", CA)]);
    let other = |place: &str| source(place, &[("server", "https://evil.example"), ("ca", "evil"), ("token", "t")]);
    for place in [OF_MACHINE, "the SMBIOS OEM strings", COMMAND_LINE] {
        let (config, warnings) = merge(&[baked.clone(), other(place)], true).unwrap();
        assert_eq!((config.server.as_str(), config.ca.as_str()), ("https://a.example/", CA));
        assert!(config.machine.token.is_some());
        let ignored = format!(
            "{place} sets \"server\", which is ignored: Secure Boot is on, so only signed configuration may set it"
        );
        assert!(warnings.contains(&ignored), "{warnings:?}");
    }
    let error = merge(&[other(OF_MACHINE)], true).unwrap_err();
    assert!(error.to_string().starts_with("no server is configured"), "{error}");
}

#[test]
fn a_machine_without_the_required_token_has_no_configuration() {
    let baked = |require| source(BAKED, &[("server", "https://a.example"), ("ca", CA), ("require", require)]);
    let token = source(OF_MACHINE, &[("token", "t")]);
    let error = merge(&[baked("token")], false).unwrap_err().to_string();
    assert!(error.starts_with("/etc/slipway/config.yaml requires a bootstrap token"), "{error}");
    assert_eq!(merge(&[baked("token"), token.clone()], true).unwrap().0.require, Proof::Token);
    assert_eq!(merge(&[baked("attested")], false).unwrap().0.require, Proof::Attested);
    let error = merge(&[baked("tpm")], false).unwrap_err().to_string();
    let expect = "require from /etc/slipway/config.yaml is \"tpm\", which must be one of registered, token, attested";
    assert_eq!(error, expect);

    // Under Secure Boot, no unsigned source lowers the required proof, and no source at all lowers `attested`.
    let lower = from_command_line("slipway.require=registered slipway.server=https://evil.example").unwrap();
    for (require, is_locked_down) in [("attested", false), ("attested", true), ("token", true)] {
        let (config, warnings) = merge(&[baked(require), token.clone(), lower.clone()], is_locked_down).unwrap();
        assert_eq!((config.require.name(), config.server.as_str()), (require, "https://a.example/"));
        let ignored = "the kernel command line sets \"require\", which is ignored";
        assert!(warnings.iter().any(|warning| warning.starts_with(ignored)), "{warnings:?}");
    }
    let (config, _) = merge(&[baked("registered"), lower], false).unwrap();
    assert_eq!(config.server.as_str(), "https://evil.example/");
    // The settings of one machine never say where the server is.
    let of_machine = source(OF_MACHINE, &[("server", "https://evil.example")]);
    let (config, warnings) = merge(&[baked("registered"), of_machine], false).unwrap();
    assert_eq!(config.server.as_str(), "https://a.example/");
    assert!(warnings[0].ends_with("which is ignored: the settings of one machine may not set it"), "{warnings:?}");
}

#[test]
fn the_server_of_the_loader_counts_if_no_other_is_configured() {
    let folder = tempfile::tempdir().unwrap();
    let roots = Roots { sys: folder.path().to_owned(), ..Roots::default() };
    assert_eq!(from_loader(&roots), None);
    let variables = folder.path().join("firmware/efi/efivars");
    std::fs::create_dir_all(&variables).unwrap();
    let url = "https://10.0.2.2:8443/boot/x86_64/slipway.efi\0";
    let value: Vec<u8> = url.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let variable = "LoaderDeviceURL-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
    std::fs::write(variables.join(variable), [&[6, 0, 0, 0], &*value].concat()).unwrap();
    let loader = from_loader(&roots).unwrap();

    let (ca, both) = (&[("ca", CA)][..], &[("ca", CA), ("server", "https://a.example")][..]);
    for (values, expect) in [(ca, "https://10.0.2.2:8443/"), (both, "https://a.example/")] {
        let (config, warnings) = merge(&[loader.clone(), source(BAKED, values)], false).unwrap();
        assert_eq!((config.server.as_str(), warnings.as_slice()), (expect, &[][..]));
    }
    let error = merge(&[loader], false).unwrap_err();
    assert!(error.to_string().starts_with("no ca is configured"), "{error}");
}

#[test]
fn the_command_line_is_split_at_the_first_equals_sign() {
    let source = from_command_line("a=b slipway.token=\"x=y z==\" slipway.server=https://s/?a=b\n").unwrap();
    assert_eq!(source.values["token"], "x=y z==");
    assert_eq!(source.values["server"], "https://s/?a=b");
}

#[test]
fn a_wrong_value_is_named_with_its_place() {
    let check = |server: &str, expect: &str| {
        let error = merge(&[source(BAKED, &[("server", server), ("ca", CA)])], false).unwrap_err();
        assert!(error.to_string().contains(expect), "{error}");
    };
    check("http://s.example", "does not begin with https://");
    check("s.example", "does not begin with https://");
    check("https://user:pw@s.example", "is \"...@s.example\", which must be a host without user name");
    let error = merge(&[source(BAKED, &[("server", "https://s")])], false).unwrap_err();
    assert!(error.to_string().starts_with("no ca is configured"), "{error}");
    let error = merge(&[source(BAKED, &[("server", "https://s"), ("ca", "x")])], false).unwrap_err();
    assert!(error.to_string().contains("contains no"), "{error}");
}

#[test]
fn a_network_is_read_from_any_source_also_under_lockdown() {
    let baked = source(BAKED, &[("server", "https://s"), ("ca", CA), ("network", "x")]);
    let network = |value: &str| merge(&[baked.clone(), source(OF_MACHINE, &[("network", value)])], true);
    let (config, warnings) = network(r#"{"interfaces": [{"name": "any", "dhcp4": true}]}"#).unwrap();
    assert_eq!(config.machine.network.unwrap().interfaces.first().map(|any| any.dhcp4), Some(true));
    assert_eq!(warnings, [""; 0]);
    for (value, expect) in [
        ("any", "which is not a network in JSON"),
        (r#"{"interfaces": [{"name": "a", "dhcp": true}]}"#, "unknown field `dhcp`"),
        (r#"{"interfaces": [{"name": "a", "mac": null}]}"#, "(interfaces[0].mac has no value"),
        (r#"{"interfaces": [{"name": ""}]}"#, "(interfaces[0].name has no value"),
        (r#"{"interfaces": [{"name": "any"}]} {}"#, "trailing characters"),
        (r#"{"interfaces": [{"name": "a", "bond": {"of": ["b", "c"]}}]}"#, "\"a\" is a bond, which"),
    ] {
        let error = network(value).unwrap_err().to_string();
        assert!(error.starts_with(&format!("network from {OF_MACHINE} is")) && error.contains(expect), "{error}");
    }
}

#[test]
fn a_proxy_is_read_from_any_source_also_under_lockdown() {
    let baked = source(BAKED, &[("server", "https://s"), ("ca", CA), ("no_proxy", "10.0.0.0/8")]);
    let (config, warnings) = merge(std::slice::from_ref(&baked), true).unwrap();
    assert_eq!(config.machine.proxy(), None);
    assert_eq!(warnings, [r#"/etc/slipway/config.yaml sets "no_proxy", which has no effect without "proxy""#]);
    let later = from_command_line("slipway.proxy=http://proxy.example:3128").unwrap();
    let (config, warnings) = merge(&[baked.clone(), later], true).unwrap();
    let expect = Proxy { url: "http://proxy.example:3128".to_owned(), except: "10.0.0.0/8".to_owned() };
    assert_eq!((config.machine.proxy(), warnings.as_slice()), (Some(expect), &[][..]));
    let with_password = from_command_line("slipway.proxy=http://user:pw@proxy.example:3128").unwrap();
    let error = merge(&[baked, with_password], true).unwrap_err().to_string();
    let expect = "proxy from the kernel command line is \"...@proxy.example:3128\", which must be a host without user";
    assert!(error.starts_with(expect), "{error}");
}

#[test]
fn bad_yaml_is_reported_with_its_place_and_without_its_text() {
    let error = from_yaml(BAKED, "server: https://s\ntoken: [s3cret]\n").unwrap_err();
    let failure = slipway_protocol::Failure::of(&error);
    let told = format!("{failure:?} {error:?}");
    assert!(failure.causes.join(" ").starts_with("line 2, column 8: "), "{failure:?}");
    assert!(told.contains(BAKED) && !told.contains("s3cret"), "{told}");
}

const TOLD: &str = "metadata: config-drive,ec2\n";

fn told(by: MetadataSource, server: &str, token: Option<&str>) -> Metadata {
    Metadata { by, server: server.to_owned(), token: token.map(|token| token.to_owned().into()) }
}

fn allowing(more: &str) -> Source {
    let ca = CA.replace('\n', "\n  ");
    from_yaml(BAKED, &format!("ca: |\n  {ca}\n{TOLD}{more}")).unwrap()
}

#[test]
fn metadata_names_the_server_if_the_boot_image_allows_it_and_nobody_else_does() {
    let ec2 = told(MetadataSource::Ec2, "https://told.example:8443", Some("t"));
    for is_locked_down in [false, true] {
        for more in ["", "require: attested\n", "require: token\n"] {
            let loaded = Loaded::of(vec![allowing(more)], is_locked_down).unwrap();
            assert!(loaded.config.is_none() && loaded.warnings.is_empty(), "{loaded:?}");
            assert_eq!(loaded.metadata, BTreeSet::from([MetadataSource::ConfigDrive, MetadataSource::Ec2]));
            let config = loaded.complete(Some(&ec2)).unwrap();
            assert_eq!((config.server.as_str(), config.ca.trim()), ("https://told.example:8443/", CA.trim()));
            assert_eq!((config.machine.token, config.require), (ec2.token.clone(), loaded.require));
        }
    }
    // Any other server and any other token wins.
    let line = || from_command_line("slipway.server=https://b.example slipway.token=b").unwrap();
    let loaded = Loaded::of(vec![allowing(""), line()], false).unwrap();
    assert_eq!(loaded.complete(Some(&ec2)).unwrap().server.as_str(), "https://b.example/");
    let loaded = Loaded::of(vec![allowing("token: a\n")], false).unwrap();
    assert_eq!(loaded.complete(Some(&ec2)).unwrap().machine.token, Some("a".to_owned().into()));
    let loader = source(LOADER, &[("server", "https://loader.example")]);
    let loaded = Loaded::of(vec![loader, allowing("")], true).unwrap();
    assert_eq!(loaded.complete(Some(&ec2)).unwrap().server.as_str(), "https://loader.example/");

    let loaded = Loaded::of(vec![allowing("require: token\n")], false).unwrap();
    let error = loaded.complete(Some(&told(MetadataSource::Ec2, "https://a", None))).unwrap_err().to_string();
    assert!(error.starts_with("/etc/slipway/config.yaml requires a bootstrap token"), "{error}");
    assert!(loaded.complete(None).unwrap_err().to_string().starts_with("no server is configured"));
}

#[test]
fn only_the_boot_image_allows_metadata() {
    let baked = source(BAKED, &[("ca", CA)]);
    for (place, why) in [
        (COMMAND_LINE, "only the boot image may allow metadata"),
        ("fw_cfg opt/slipway", "only the boot image may allow metadata"),
        (OF_MACHINE, "the settings of one machine may not set it"),
    ] {
        let other = source(place, &[("metadata", "ec2")]);
        let error = Loaded::of(vec![baked.clone(), other.clone()], false).unwrap_err().to_string();
        assert!(error.starts_with("no server is configured"), "{error}");
        let server = source(BAKED, &[("ca", CA), ("server", "https://a.example")]);
        let (_, warnings) = merge(&[server, other], false).unwrap();
        assert_eq!(warnings, [format!("{place} sets \"metadata\", which is ignored: {why}")]);
    }
    let loaded = Loaded::of(vec![allowing("")], false).unwrap();
    let error = loaded.complete(Some(&told(MetadataSource::Openstack, "https://a", None))).unwrap_err().to_string();
    assert!(error.starts_with("no server is configured"), "{error}");
    for names in ["imds", "ec2,,openstack", "ec2 openstack"] {
        let error = Loaded::of(vec![source(BAKED, &[("ca", CA), ("metadata", names)])], false).unwrap_err().to_string();
        let expect = "which must be names of places, separated by commas: write it as config-drive,openstack,ec2";
        assert!(error.ends_with(expect), "{error}");
    }
}

#[test]
fn metadata_is_trusted_for_nothing_else_and_is_not_shown() {
    let place = MetadataSource::Ec2.title();
    let all = [
        ("server", "https://told.example"),
        ("token", "t"),
        ("ca", "evil"),
        ("require", "registered"),
        ("metadata", "openstack"),
        ("network", "evil"),
        ("proxy", "http://evil:1"),
        ("no_proxy", "evil"),
        ("hostname", "evil"),
    ];
    let (config, warnings) = merge(&[source(place, &all), allowing("require: token\n")], true).unwrap();
    assert_eq!((config.server.as_str(), config.require), ("https://told.example/", Proof::Token));
    assert_eq!(config.machine, MachineSettings { token: Some("t".to_owned().into()), ..MachineSettings::default() });
    assert_eq!(config.ca.trim(), CA.trim());
    let ignored = "which is ignored: metadata is trusted for the server and a token alone";
    assert_eq!(warnings.iter().filter(|warning| warning.ends_with(ignored)).count(), all.len() - 2, "{warnings:?}");

    let loaded = Loaded::of(vec![allowing("")], false).unwrap();
    for (server, token, key) in [
        ("http://s3cret.example", None, "server"),
        ("https://s3cret:x@a", None, "server"),
        ("https://s3cret\u{1b}[2J", None, "server"),
        ("s3cret", None, "server"),
        ("https://a", Some("s3cret\u{1b}"), "token"),
        ("https://a", Some("s3cret s3cret"), "token"),
        (" ", None, "server"),
        ("https://a", Some(""), "token"),
    ] {
        let error = loaded.complete(Some(&told(MetadataSource::Ec2, server, token))).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{key} from {place} ")) && !error.contains("s3cret"), "{error}");
    }
}
