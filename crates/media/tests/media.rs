//! Tests boot files with other projects' programs that read such files.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use slipway_media::{Config, Inputs, Kind, Manifest, UkiError, assemble, build, id, machine_settings};
use slipway_parts::{About, Arch, Component, Parts, RareDrivers};
use slipway_protocol::node::rare_drivers;
use slipway_protocol::{BootSettings, Interface, MachineSettings, Medium, Network, Proof, Secret, Vlan};
use slipway_secure_boot::{KeySize, SigningKey, authenticode};
use time::{Duration, OffsetDateTime};

const CA: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

fn config() -> Config {
    config_of(settings())
}

fn config_of(settings: BootSettings) -> Config {
    Config { settings, consoles: Vec::new(), arguments: Vec::new() }
}

fn settings() -> BootSettings {
    BootSettings { server: Some("https://10.0.2.2:8443".to_owned()), ca: CA.to_owned(), ..BootSettings::default() }
}

/// The settings of one machine with this token.
fn with_token(token: &str) -> MachineSettings {
    MachineSettings { token: Some(Secret::from(token.to_owned())), ..MachineSettings::default() }
}

fn with_network(network: Network) -> MachineSettings {
    MachineSettings { network: Some(network), ..MachineSettings::default() }
}

/// Returns a network with DHCP on a VLAN of every interface.
fn vlan(id: u32) -> Network {
    let any = Interface { name: "any".to_owned(), ..Interface::default() };
    let vlan = Some(Vlan { of: "any".to_owned(), id });
    let vlan = Interface { name: "v".to_owned(), vlan, dhcp4: true, ..Interface::default() };
    Network { interfaces: vec![any, vlan], ..Network::default() }
}

/// The smallest stub: headers of 512 bytes, and one section in memory from 0x1000 to 0x1234.
fn stub() -> Vec<u8> {
    let mut stub = vec![0; 1024];
    stub[..2].copy_from_slice(b"MZ");
    stub[0x3c] = 0x40;
    stub[0x40..0x44].copy_from_slice(b"PE\0\0");
    let fields: [(usize, u32); 9] = [
        (0x46, 1),
        (0x54, 112),
        (0x58 + 32, 0x1000),
        (0x58 + 36, 512),
        (0x58 + 60, 512),
        (0xd0, 0x234),
        (0xd4, 0x1000),
        (0xd8, 512),
        (0xdc, 512),
    ];
    for (at, value) in fields {
        let bytes = value.to_le_bytes();
        let len = if at < 0x58 { 2 } else { 4 };
        stub[at..at + len].copy_from_slice(&bytes[..len]);
    }
    stub
}

fn parts(arch: Arch, size: usize) -> Parts {
    let component = |name: &str| Component {
        name: name.to_owned(),
        version: "1".to_owned(),
        supplier: "Debian".to_owned(),
        license: Some("MIT".to_owned()),
    };
    let about = About::new(arch, "generic", "6.1.0-1-amd64", 1_767_225_600, vec![component("b"), component("a")]);
    let noise = |seed: usize| (0..size).map(|n| ((n * 31 + seed) % 251) as u8).collect::<Vec<_>>();
    Parts::new(about, noise(1), noise(2), stub())
}

fn inputs<'a>(config: &'a Config, parts: &'a [Parts]) -> Inputs<'a> {
    Inputs { config, parts, kinds: &Kind::ALL, signer: None }
}

/// The files of a build, and its manifest.
fn made(config: &Config, parts: &[Parts]) -> (BTreeMap<String, Vec<u8>>, Manifest) {
    made_of(&inputs(config, parts))
}

fn made_of(inputs: &Inputs) -> (BTreeMap<String, Vec<u8>>, Manifest) {
    let mut files = BTreeMap::new();
    let manifest = build(inputs, &mut |path, pieces| {
        files.insert(path.to_owned(), pieces.concat());
        Ok(())
    });
    (files, manifest.unwrap())
}

#[test]
fn the_program_is_among_the_files_whatever_a_machine_starts_from() {
    let config = config();
    let with = [parts(Arch::X86_64, 3000).with_program(b"program".to_vec())];
    let (files, manifest) = made_of(&Inputs { kinds: &[Kind::Stick], ..inputs(&config, &with) });
    let path = "x86_64/slipway";
    assert_eq!(path, slipway_protocol::node::boot_report::program_of("x86_64"), "the boot reporter fetches it there");
    assert_eq!(files[path], b"program");
    assert!(
        manifest.assets.iter().any(|asset| asset.path == path && asset.sha256 == slipway_parts::sha256(b"program"))
    );
}

#[test]
fn rare_drivers_are_among_the_files_whatever_a_machine_starts_from() {
    let rare = RareDrivers { index: b"{}".to_vec(), pack: b"drivers".to_vec() };
    let with = [parts(Arch::X86_64, 3000).with_rare_drivers(rare), parts(Arch::Aarch64, 3000)];
    let config = config();
    let (files, manifest) = made_of(&Inputs { kinds: &[Kind::Stick], ..inputs(&config, &with) });
    let index = format!("x86_64/{}", rare_drivers::INDEX);
    let pack = format!("x86_64/{}", rare_drivers::PACK);
    assert_eq!((&files[&index][..], &files[&pack][..]), (&b"{}"[..], &b"drivers"[..]));
    let listed: Vec<&str> = manifest.assets.iter().map(|asset| asset.path.as_str()).collect();
    assert!(listed.contains(&index.as_str()) && listed.contains(&pack.as_str()), "{listed:?}");
    assert!(!files.keys().any(|path| path.starts_with("aarch64/")), "{listed:?}");
    let without = [parts(Arch::X86_64, 3000), parts(Arch::Aarch64, 3000)];
    assert_ne!(manifest.id, id(&Inputs { kinds: &[Kind::Stick], ..inputs(&config, &without) }));
}

/// Returns what a program prints about a file, which replaces `FILE` in the arguments. Prints a note and returns None
/// if there is no such program.
fn judge(program: &str, arguments: &str, file: &Path) -> Option<String> {
    let arguments = arguments.split(' ').map(|word| if word == "FILE" { file.as_os_str() } else { word.as_ref() });
    match Command::new(program).args(arguments).env("LC_ALL", "C.UTF-8").output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(output.status.success(), "{program}: {said}");
            Some(said)
        }
        Err(error) => {
            eprintln!("not checked: {program}: {error}");
            None
        }
    }
}

fn written(folder: &Path, files: &BTreeMap<String, Vec<u8>>, name: &str) -> std::path::PathBuf {
    let path = folder.join(name);
    fs::write(&path, &files[name]).unwrap();
    path
}

#[test]
fn the_same_inputs_give_the_same_bytes_and_each_input_another_id() {
    let both = [parts(Arch::X86_64, 3000), parts(Arch::Aarch64, 5000)];
    let (files, manifest) = made(&config(), &both);
    assert_eq!(made(&config(), &both), (files.clone(), manifest.clone()));
    assert_eq!(manifest.id, id(&inputs(&config(), &both)));

    let others = [
        config_of(BootSettings { server: Some("https://other:1".to_owned()), ..settings() }),
        config_of(BootSettings { ca: CA.replace("MIIB", "MIIC"), ..settings() }),
        config_of(BootSettings { machine: with_token("t"), ..settings() }),
        config_of(BootSettings { machine: with_network(vlan(120)), ..settings() }),
        config_of(BootSettings { require: Proof::Attested, ..settings() }),
        Config { consoles: vec!["ttyS1,115200".to_owned()], ..config() },
        Config { arguments: vec!["panic=30".to_owned()], ..config() },
    ];
    let mut ids: Vec<String> = others.iter().map(|config| id(&inputs(config, &both))).collect();
    ids.push(id(&inputs(&config(), &both[..1])));
    ids.push(id(&inputs(&config(), &[parts(Arch::X86_64, 3001)])));
    ids.push(id(&Inputs { kinds: &[Kind::Disc], ..inputs(&config(), &both) }));
    ids.push(manifest.id);
    let all = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), all);
}

#[test]
fn sections_follow_the_stub_in_memory_and_in_the_file() {
    let mut whole = stub();
    // Symbols, and the header field with their offset.
    whole.extend([7; 30]);
    whole[0x4c..0x50].copy_from_slice(&1024_u32.to_le_bytes());
    let image = assemble(&whole, &[(".cmdline", b"quiet"), (".linux", &[7; 700])]).unwrap();
    assert_eq!(image[0x46], 3);
    assert_eq!(image[0x4c..0x54], [0; 8], "there are no symbols any more");
    let field = |section: usize, at: usize| {
        let at = 0xc8 + section * 40 + at;
        u32::from_le_bytes(image[at..at + 4].try_into().unwrap())
    };
    assert_eq!(&image[0xc8 + 40..][..8], b".cmdline");
    // The kernel needs its own page, and no gap is left in the file.
    assert_eq!((field(1, 8), field(1, 12), field(1, 16), field(1, 20)), (5, 0x2000, 512, 1024));
    assert_eq!((field(2, 8), field(2, 12), field(2, 16), field(2, 20)), (700, 0x3000, 1024, 1536));
    assert_eq!(image[0x58 + 56..0x58 + 60], 0x4000_u32.to_le_bytes());
    assert_eq!(&image[1024..1029], b"quiet");
    assert_eq!(image.len(), 1536 + 1024);
}

#[test]
fn what_is_no_stub_or_has_no_room_is_refused() {
    assert_eq!(assemble(b"#!/bin/sh", &[]), Err(UkiError::Stub("it is not a PE file")));
    assert_eq!(assemble(&stub()[..1000], &[]), Err(UkiError::Stub("it is truncated")));
    let many = [(".section", &b""[..]); 8];
    assert_eq!(assemble(&stub(), &many), Err(UkiError::NoRoom(".section".to_owned())));
}

#[test]
fn the_manifest_names_every_file_and_no_secret() {
    let secret = config_of(BootSettings { machine: with_token("s3cret"), ..settings() });
    let (files, manifest) = made(&secret, &[parts(Arch::X86_64, 3000)]);
    let mut named: Vec<&str> = manifest.assets.iter().map(|asset| asset.path.as_str()).collect();
    named.push("manifest.json");
    named.sort_unstable();
    assert_eq!(named, files.keys().collect::<Vec<_>>());
    for asset in &manifest.assets {
        let content = &files[&asset.path];
        assert_eq!(
            (asset.size, &asset.sha256),
            (content.len() as u64, &slipway_parts::sha256(content)),
            "{}",
            asset.path
        );
    }
    let stored: Manifest = serde_json::from_slice(&files["manifest.json"]).unwrap();
    assert_eq!(stored, manifest);
    assert!(manifest.has_token);
    assert_eq!(manifest.require, Proof::Registered);
    for open in ["manifest.json", "slipway.spdx.json"] {
        assert!(!String::from_utf8_lossy(&files[open]).contains("s3cret"), "{open}");
    }
}

#[test]
fn only_the_tail_of_the_initramfs_depends_on_the_site() {
    let part = parts(Arch::X86_64, 3001);
    let machine = with_token("s3\"cret");
    let other = BootSettings { server: Some("https://other:1".to_owned()), machine, ..settings() };
    let (files, _) = made(&config_of(other), std::slice::from_ref(&part));
    let initramfs = &files["x86_64/initramfs"];
    assert!(initramfs.starts_with(&part.initramfs));
    // The kernel looks for the next archive at a multiple of four.
    assert_eq!(&initramfs[3004..3010], b"070701");
    let text = String::from_utf8_lossy(initramfs).into_owned();
    let ca = "ca: |\n  -----BEGIN CERTIFICATE-----\n  MIIB\n  -----END CERTIFICATE-----\n";
    let rest = "require: \"registered\"\nserver: \"https://other:1\"\ntoken: \"s3\\\"cret\"\n\0";
    assert!(text.contains(&format!("{ca}{rest}")), "{text}");
}

#[test]
fn the_settings_of_a_machine_have_its_network_as_far_as_there_is_room() {
    let text = |network: Network| machine_settings::to_bytes(&with_network(network));
    let bytes = text(vlan(120)).unwrap();
    assert_eq!(bytes.len(), machine_settings::LEN);
    let text_of_it = String::from_utf8(bytes).unwrap();
    let value = text_of_it.lines().find_map(|line| line.strip_prefix("network: ")).unwrap();
    let json: String = serde_json::from_str(value).unwrap();
    assert_eq!(serde_json::from_str::<Network>(&json).unwrap(), vlan(120));
    let long = Network { search: vec!["example.com".to_owned(); 2000], ..vlan(120) };
    assert!(text(long).unwrap_err().to_string().contains("but a medium reserves 16384"));
    assert!(text(vlan(0)).unwrap_err().to_string().contains("interface \"v\" is VLAN 0"));
}

#[test]
fn each_initramfs_says_which_kernel_and_configuration_belong_to_it() {
    let about = |release: &str, arch| {
        let parts = parts(arch, 3000);
        let about = About::new(arch, "generic", release, parts.about.date, Vec::new());
        Parts::new(about, parts.vmlinuz, parts.initramfs, parts.stub)
    };
    let both = [about("6.1.0-1-amd64", Arch::X86_64), about("6.1.0-1-arm64", Arch::Aarch64)];
    let (files, manifest) = made(&config(), &both);
    for parts in &both {
        let initramfs = &files[&format!("{}/initramfs", parts.about.arch.name())];
        let text = String::from_utf8_lossy(&initramfs[3000..]).into_owned();
        let (_, json) = text.split_once("etc/slipway/medium.json").unwrap();
        let json = &json[json.find('{').unwrap()..=json.find('}').unwrap()];
        let medium: Medium = serde_json::from_str(json).unwrap();
        let config = &text[text.find("ca: |").unwrap()..];
        let config = &config[..config.find('\0').unwrap()];
        let config_sha256 = slipway_parts::sha256(config.as_bytes());
        assert_eq!(medium, Medium { build: manifest.id.clone(), release: parts.about.release.clone(), config_sha256 });
    }
}

#[test]
fn a_stick_has_both_programs_in_a_partition_that_others_can_read() {
    let folder = tempfile::tempdir().unwrap();
    let (files, manifest) = made(&config(), &[parts(Arch::X86_64, 3_000_000), parts(Arch::Aarch64, 5_000_001)]);
    let stick = written(folder.path(), &files, "slipway.img");
    if let Some(said) = judge("sgdisk", "--verify FILE", &stick) {
        assert!(said.contains("No problems found"), "{said}");
    }
    if let Some(said) = judge("sgdisk", "--print FILE", &stick) {
        assert!(said.contains("EF00  slipway"), "{said}");
    }
    check_partition(folder.path(), &files["slipway.img"], 1 << 20, &files);
    check_settings(&files["slipway.img"], &manifest, "slipway.img");
}

#[test]
fn a_disc_starts_the_same_partition_and_is_a_disk_too() {
    let folder = tempfile::tempdir().unwrap();
    let (files, manifest) = made(&config(), &[parts(Arch::X86_64, 3_000_000)]);
    let disc = written(folder.path(), &files, "slipway.iso");
    if let Some(said) = judge("isoinfo", "-d -i FILE", &disc) {
        for line in ["Volume id: SLIPWAY", "Nsect ", "Bootoff 17 23", "Boot media 0 (No Emulation Boot)"] {
            assert!(said.contains(line), "no {line} in {said}");
        }
    }
    if let Some(said) = judge("isoinfo", "-l -i FILE", &disc) {
        assert!(said.contains("EFI.IMG"), "{said}");
    }
    if let Some(said) = judge("xorriso", "-indev FILE -report_el_torito plain -report_system_area plain", &disc) {
        assert!(said.contains("UEFI") && said.contains("GPT"), "{said}");
    }
    if let Some(said) = judge("sgdisk", "--verify FILE", &disc) {
        assert!(said.contains("No problems found"), "{said}");
    }
    check_partition(folder.path(), &files["slipway.iso"], 23 * 2048, &files);
    check_settings(&files["slipway.iso"], &manifest, "slipway.iso");
}

/// Checks with mtools and fsck.fat that the EFI system partition of a medium has the programs.
fn check_partition(folder: &Path, medium: &[u8], start: usize, files: &BTreeMap<String, Vec<u8>>) {
    let entry = &medium[1024..1152];
    let sector = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap()) as usize;
    assert_eq!(sector(32) * 512, start);
    let partition = folder.join("partition");
    fs::write(&partition, &medium[start..(sector(40) + 1) * 512]).unwrap();
    judge("fsck.fat", "-n -v FILE", &partition);
    for (arch, name) in [("x86_64", "BOOTX64.EFI"), ("aarch64", "BOOTAA64.EFI")] {
        let Some(program) = files.get(&format!("{arch}/slipway.efi")) else { continue };
        let to = folder.join(name);
        let read = Command::new("mcopy")
            .args(["-n", "-o", "-i"])
            .arg(&partition)
            .arg(format!("::EFI/BOOT/{name}"))
            .arg(&to)
            .output();
        match read {
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                assert!(&fs::read(&to).unwrap() == program, "{name} differs");
            }
            Err(error) => eprintln!("not checked: mcopy: {error}"),
        }
    }
}

/// Checks that the place for the settings of a machine is where the manifest says, and is empty.
fn check_settings(medium: &[u8], manifest: &Manifest, name: &str) {
    let asset = manifest.assets.iter().find(|asset| asset.path == name).unwrap();
    let range = asset.machine_settings.unwrap();
    let (from, to) = (range.offset as usize, (range.offset + range.length) as usize);
    assert_eq!(&medium[from..to], machine_settings::to_bytes(&MachineSettings::default()).unwrap());
    assert_eq!(machine_settings::find(&medium[..8 << 20]), Some(from));
    assert_eq!(machine_settings::find(&medium[..from + 100]), None);
}

#[test]
fn a_wrong_value_is_named_before_anything_is_made() {
    let check = |config: Config, expect: &str| {
        let mut files = 0;
        let error = build(&inputs(&config, &[parts(Arch::X86_64, 100)]), &mut |_, _| {
            files += 1;
            Ok(())
        });
        let said = error.unwrap_err().to_string();
        assert!(said.contains(expect), "{said}");
        assert_eq!(files, 0);
    };
    let machine = |machine| config_of(BootSettings { machine, ..settings() });
    check(
        config_of(BootSettings { server: Some("http://a".to_owned()), ..settings() }),
        "server \"http://a\" does not begin with https://",
    );
    check(
        config_of(BootSettings { ca: "hello".to_owned(), ..settings() }),
        "ca \"hello\" contains no \"-----BEGIN CERTIFICATE-----\"",
    );
    check(machine(with_token("")), "token \"(secret)\" must be one word");
    check(machine(with_token("a b")), "token \"(secret)\" must be one word");
    check(machine(with_network(vlan(4095))), "network \"any v\" is not valid: interface \"v\" is VLAN 4095");
    let bond: Network = serde_json::from_str(r#"{"interfaces": [{"name": "b", "bond": {"of": ["x", "y"]}}]}"#).unwrap();
    check(machine(with_network(bond)), "network \"b\" is not valid: interface \"b\" is a bond, which");
    check(Config { consoles: vec!["ttyS0 ro".to_owned()], ..config() }, "console \"ttyS0 ro\" must be one word");
    check(Config { arguments: vec!["a=\"b".to_owned()], ..config() }, "argument \"a=\\\"b\" must be one word");
    check(Config { arguments: vec!["x".repeat(2048)], ..config() }, "makes a command line of 2048 bytes or more");
}

#[test]
fn a_medium_requires_a_token_only_if_it_has_one_or_a_place_for_one() {
    let part = [parts(Arch::X86_64, 3000)];
    let needs_token = config_of(BootSettings { require: Proof::Token, ..settings() });
    let made_for = |config: &Config, kinds: &[Kind]| {
        let mut files = BTreeMap::new();
        let made = build(&Inputs { kinds, ..inputs(config, &part) }, &mut |path, pieces| {
            files.insert(path.to_owned(), pieces.concat());
            Ok(())
        });
        made.map(|_| files).map_err(|error| error.to_string())
    };
    for kinds in [&[Kind::Network][..], &Kind::ALL] {
        let said = made_for(&needs_token, kinds).unwrap_err();
        assert!(said.contains("require \"token\" needs a bootstrap token in the files"), "{said}");
        let has_token = BootSettings { machine: with_token("t"), ..needs_token.settings.clone() };
        made_for(&config_of(has_token), kinds).unwrap();
    }
    made_for(&needs_token, &[Kind::Stick, Kind::Disc]).unwrap();

    let initramfs = |require| {
        let files = made_for(&config_of(BootSettings { require, ..settings() }), &[Kind::Network]).unwrap();
        String::from_utf8_lossy(&files["x86_64/initramfs"]).into_owned()
    };
    assert!(initramfs(Proof::Attested).contains("\nrequire: \"attested\"\n"));
    assert!(initramfs(Proof::Registered).contains("\nrequire: \"registered\"\n"));
}

#[test]
fn parts_that_are_damaged_or_of_another_version_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in parts(Arch::X86_64, 1000).files() {
        fs::write(folder.path().join(name), content).unwrap();
    }
    let opened = Parts::open(folder.path()).unwrap();
    assert_eq!(opened.digest, parts(Arch::X86_64, 1000).digest);

    let refused = |name: &str, change: &dyn Fn(&mut Vec<u8>), expect: &str| {
        let path = folder.path().join(name);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let said = Parts::open(folder.path()).unwrap_err().to_string();
        assert!(said.contains(expect) && said.contains(name), "{said}");
        fs::write(&path, whole).unwrap();
    };
    refused("vmlinuz", &|bytes| bytes[500] ^= 1, "does not have the digest that parts.json names");
    refused("initramfs", &|bytes| bytes.truncate(999), "does not have the digest");
    refused("stub.efi", &|bytes| bytes.push(0), "does not have the digest");
    refused("parts.json", &|bytes| bytes.truncate(20), "is not a description of parts");
    let earlier = |bytes: &mut Vec<u8>| {
        *bytes = String::from_utf8_lossy(bytes).replace("\"format\": 2", "\"format\": 1").into_bytes();
    };
    refused("parts.json", &earlier, "has format 1, but this version reads format 2");
    fs::remove_file(folder.path().join("vmlinuz")).unwrap();
    assert!(Parts::open(folder.path()).unwrap_err().to_string().ends_with(" of the parts of the boot image"));
}

#[test]
fn a_signed_program_is_accepted_by_others_and_a_changed_one_is_not() {
    let Ok(stub) = fs::read("/usr/lib/systemd/boot/efi/linuxx64.efi.stub") else {
        eprintln!("not checked: there is no package systemd-boot-efi");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
    let key =
        SigningKey::generate(KeySize::Rsa2048, "db", now - Duration::days(1000), now + Duration::days(5000)).unwrap();
    let whole = parts(Arch::X86_64, 30_000);
    let whole = [Parts::new(whole.about, whole.vmlinuz, whole.initramfs, stub)];
    let (files, manifest) = made_of(&Inputs { signer: Some(&key), ..inputs(&config(), &whole) });
    assert_eq!(manifest.signed_by.unwrap().subject, "CN=db");
    assert_ne!(manifest.id, id(&inputs(&config(), &whole)));
    authenticode::verify(&files["x86_64/slipway.efi"], std::slice::from_ref(key.certificate())).unwrap();

    let certificate = folder.path().join("db.pem");
    fs::write(&certificate, key.certificate().to_pem()).unwrap();
    let program = written(
        folder.path(),
        &BTreeMap::from([("program".to_owned(), files["x86_64/slipway.efi"].clone())]),
        "program",
    );
    let verified = || Command::new("sbverify").arg("--cert").arg(&certificate).arg(&program).output();
    let Ok(said) = verified() else {
        eprintln!("not checked: there is no sbverify");
        return;
    };
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let signed: Vec<&String> = files.keys().filter(|name| name.ends_with(".sig")).collect();
    assert_eq!(signed, ["x86_64/initramfs.sig", "x86_64/vmlinuz.sig"]);
    for name in ["vmlinuz", "initramfs"] {
        let [content, signature] = ["", ".sig"].map(|end| folder.path().join(format!("{name}{end}")));
        fs::write(&content, &files[&format!("x86_64/{name}")]).unwrap();
        fs::write(&signature, &files[&format!("x86_64/{name}.sig")]).unwrap();
        let verified = || {
            let mut cms = Command::new("openssl");
            cms.args(["cms", "-verify", "-binary", "-inform", "DER", "-purpose", "any", "-out", "/dev/null"]);
            cms.arg("-content").arg(&content).arg("-in").arg(&signature).arg("-CAfile").arg(&certificate).output()
        };
        let said = verified().unwrap();
        assert!(said.status.success(), "{name}: {}", String::from_utf8_lossy(&said.stderr));
        let mut changed = fs::read(&content).unwrap();
        changed[100] ^= 1;
        fs::write(&content, changed).unwrap();
        assert!(!verified().unwrap().status.success(), "{name}");
    }
    // iPXE asks for this key usage.
    let usage = judge("openssl", "x509 -noout -ext extendedKeyUsage -in FILE", &certificate);
    assert!(usage.is_none_or(|said| said.contains("Code Signing")));
    if let Some(said) = judge("objdump", "--section-headers FILE", &program) {
        for (name, len) in [(".linux", 30_000), (".cmdline", config().cmdline(Arch::X86_64).len())] {
            let line = said.lines().find(|line| line.contains(name)).unwrap();
            assert_eq!(line.split_whitespace().nth(2), Some(&*format!("{len:08x}")), "{line}");
        }
    }
    // Kernel, configuration and command line are covered by the signature.
    let marks: [&[u8]; 3] = [&whole[0].vmlinuz[100..132], b"https://10.0.2.2:8443", b"console=tty0"];
    for mark in marks {
        let mut changed = files["x86_64/slipway.efi"].clone();
        let at = changed.windows(mark.len()).position(|window| window == mark).unwrap();
        changed[at] ^= 1;
        fs::write(&program, &changed).unwrap();
        assert!(!verified().unwrap().status.success());
        authenticode::verify(&changed, std::slice::from_ref(key.certificate())).unwrap_err();
    }
}
