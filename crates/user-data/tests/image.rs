//! The judgement of an image, against Debian's ds-identify and cloud-init.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "cloud_init/packages.rs"]
mod packages;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use slipway_user_data::image::{File, Image, Seed, judge};

const SEED: Seed = Seed { has_network: true, has_vendor_data: true, has_phone_home: false, is_partition: false };
const USER_DATA: &str = "#cloud-config\n";

/// An image: names below /etc/cloud and contents. `cmdline` is what the kernel is started with.
fn image(files: &[(&str, &str)], cmdline: &str) -> Image {
    let mut image = Image::default();
    for (name, text) in files {
        let file = File { path: format!("/etc/cloud/{name}"), text: (*text).to_owned() };
        match *name {
            "cloud.cfg" => image.main = Some(file),
            "ds-identify.cfg" => image.ds_identify = Some(file),
            _ => image.parts.push(file),
        }
    }
    image.boot.push(File { path: "/boot/loader/entries/x.conf".to_owned(), text: format!("options {cmdline}\n") });
    image
}

/// Whether the real programs take a seed in this image as it is. `shell` runs ds-identify.
fn is_taken(image: &Image, cmdline: &str, shell: &[&str]) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let put = |path: &str, text: &str| {
        let path = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let files = image.main.iter().chain(&image.parts).chain(&image.ds_identify);
    files.for_each(|file| put(&file.path, &file.text));
    put("proc/cmdline", &format!("{cmdline}\n"));
    // In a container, ds-identify reads this file.
    put("proc/1/cmdline", cmdline);
    let seed = [
        ("user-data", USER_DATA),
        ("meta-data", "instance-id: run-7\n"),
        ("vendor-data", "#cloud-config\n"),
        ("network-config", "version: 2\n"),
    ];
    seed.iter().for_each(|(name, text)| put(&format!("var/lib/cloud/seed/nocloud/{name}"), text));
    let packages = packages::packages();
    let program = packages.ancestors().nth(3).unwrap().join("lib/cloud-init/ds-identify");
    let mut identify = Command::new(shell[0]);
    identify.args(&shell[1..]).arg(program).env("PATH_ROOT", root).env("DI_LOG", root.join("log"));
    if !identify.output().unwrap().status.success() {
        return false;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/image.py");
    let mut python = Command::new("/usr/bin/python3");
    python.arg(script).arg(root).env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = python.output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let taken = json!({
        "found": true, "user_data": USER_DATA, "instance_id": "run-7", "network": {"version": 2}, "allowed": true,
        "vendor_data": true,
    });
    found == taken
}

/// Checks that the judgement is that of the real programs, before and after our settings are added.
fn check(files: &[(&str, &str)], cmdline: &str) {
    let mut image = image(files, cmdline);
    let shell = ["sh"];
    let obstacles = judge(&image, SEED).0;
    assert_eq!(is_taken(&image, cmdline, &shell), obstacles.is_empty(), "{files:?} {cmdline} {obstacles:?}");
    image.configure(SEED);
    let obstacles = judge(&image, SEED).0;
    // The shells of Debian and of Fedora.
    let shells = if files.len() > 1 { &[&["sh"][..], &["bash", "--posix"]][..] } else { &[&["sh"][..]] };
    for shell in shells {
        assert_eq!(is_taken(&image, cmdline, shell), obstacles.is_empty(), "ours: {image:?} {obstacles:?}");
    }
}

#[test]
fn the_judgement_is_that_of_the_real_programs() {
    let part = |name: &'static str, text: &'static str| -> Vec<(&'static str, &'static str)> { vec![(name, text)] };
    let (main, ds) = ("cloud.cfg", "ds-identify.cfg");
    for text in [
        "users: [default]\n",
        "datasource_list: [ Ec2, None ]\n",
        "datasource_list: [ Ec2 ]\n",
        "datasource_list: [ Ec2 ] # x\n",
        "datasource_list: [ \"NoCloud\", 'None' ] # x\n",
        "datasource_list: NoCloud\n",
        "datasource_list: [ None, NoCloud ]\n",
        "datasource_list: [ Azure, Ec2 ]\n",
        "datasource_list: [ Azure, NoCloud, Ec2 ]\n",
        "datasource_list: []\n",
        "datasource_list: ['None']\n",
        "datasource_list:\n- Ec2\n- None\n",
        "datasource_list: [ Ec2,\n  None ]\n",
        "{datasource_list: [Ec2, None]}\n",
        "x:\n  datasource_list: [ Ec2 ]\n",
        "datasource: {NoCloud: {seedfrom: /nowhere/}}\n",
        "datasource:\n  NoCloud:\n    seedfrom:\n",
        "datasource:\n  NoCloud:\n    user-data: a\n    meta-data: {}\n",
        "datasource:\n  NoCloud:\n    user-data: a\n",
        "datasource: {NoCloud: {fs_label: null}}\n",
        "system_info: {paths: {cloud_dir: /data/cloud}}\n",
        "allow_userdata: false\n",
        "allow_userdata: 'Yes'\n",
        "vendor_data: {enabled: off}\n",
        "network: {config: disabled}\n",
        "network: {version: 1, config: []}\n",
        "manual_cache_clean: true\n",
        "a: &a {enabled: no}\nvendor_data: *a\n",
        "merge_how: dict(replace)+list()\nallow_userdata: false\n",
        "merge_how: [{name: dict, settings: [replace]}]\nnetwork: {config: disabled}\n",
        "merge_how: dict(no_replace,recurse_list)+list(append)\nnetwork: {config: disabled}\n",
    ] {
        check(&part(main, text), "");
        check(&[(main, "users: []\n"), ("cloud.cfg.d/zz-site.cfg", text)], "");
    }
    check(
        &[(main, ""), ("cloud.cfg.d/a.cfg", "users: [\n"), ("cloud.cfg.d/b.cfg.old", "datasource_list: [ Ec2 ]")],
        "",
    );
    check(
        &[("cloud.cfg.d/b.cfg", "datasource_list: [ Ec2 ]\n"), ("cloud.cfg.d/B.cfg", "datasource_list: [ Azure ]\n")],
        "",
    );
    for text in [
        "policy: disabled\n",
        "policy: enabled\n",
        "policy: report\n",
        "policy: search,found=first,notfound=enabled\n",
        "policy: what\n",
        "datasource: Ec2\n",
        "datasource: 'NoCloud'\npolicy: search\n",
        "datasource: Ec2\npolicy: enabled\n",
        "# datasource: Ec2\n",
        "datasource: # none\n",
    ] {
        check(&part(ds, text), "");
        check(&[(ds, text), (main, "datasource_list: [ Ec2, None ]\n")], "");
    }
    for cmdline in [
        "root=/dev/sda1 ro quiet",
        "ci.ds=Ec2",
        "ci.datasource=NoCloud ci.di.policy=search",
        "ci.di.policy=disabled",
        "ci.di.policy=enabled",
        "ds=nocloud",
        "ds=nocloud-net;",
        "ds=nocloud;i=other",
        "ds=nocloud;s=/nowhere/",
    ] {
        check(&part(main, "users: []\n"), cmdline);
        check(&part(ds, "datasource: Ec2\npolicy: enabled\n"), cmdline);
    }
}
