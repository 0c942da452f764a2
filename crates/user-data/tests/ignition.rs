//! Additions to an Ignition config. They are read with Fedora CoreOS's own data structures and carried out by Ignition.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use ignition_config::Config;
use serde_json::{Value, json};
use slipway_protocol::PhoneHome;
use slipway_user_data::ignition::{Additions, Service, ServiceFile, add_service, complete};
use tempfile::TempDir;
use xtask::host::debian;

/// Path of the program in the package, in the folder of dracut's module.
const IGNITION: &str = "usr/lib/dracut/modules.d/30ignition/ignition";
/// User and group of `core`.
const CORE: u32 = 1000;
const KEY: &str = "ssh-ed25519 AAAA operator";

/// The config with everything that can be added.
fn completed(config: &Value) -> String {
    let phone_home = Some(&PhoneHome { url: "https://s.example/p".to_owned(), tries: Some(3) });
    let ssh_keys = &[KEY.to_owned()];
    let (hostname, ca) = (Some("web1"), Some("PEM\n"));
    let additions = Additions { hostname, ssh_keys, phone_home, ca, instance_id: "i-1" };
    let completed = complete(&config.to_string(), &additions).unwrap();
    let file =
        |name: &str, mode| ServiceFile { path: format!("/var/lib/slipway/{name}"), mode, content: format!("{name}\n") };
    let files = vec![file("report.json", 0o600), file("fetch.sh", 0o755)];
    let unit = "[Unit]\nDescription=Ours\n[Service]\nExecStart=/var/lib/slipway/fetch.sh\n\
                [Install]\nWantedBy=multi-user.target emergency.target\n";
    add_service(&completed, &Service { name: "slipway-report.service", unit: unit.to_owned(), files }).unwrap()
}

#[test]
fn every_version_reads_what_is_added_without_a_key_it_does_not_know() {
    for version in ["3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0", "3.6.0"] {
        let hash = format!("sha512-{}", "0".repeat(128));
        let replace = json!({"source": "https://s.example/other", "verification": {"hash": hash}});
        for config in [json!({}), json!({"replace": replace})] {
            let config = json!({"ignition": {"version": version, "config": config}});
            let completed = completed(&config);
            let (read, warnings) = Config::parse_str(&completed).expect(version);
            assert!(warnings.is_empty(), "{version}: {warnings:?}");
            let read = serde_json::to_value(read).expect("JSON");
            assert_eq!(read["passwd"]["users"][0]["sshAuthorizedKeys"], json!([KEY]), "{version}");
            let files = read["storage"]["files"].as_array().expect("files");
            let paths: Vec<_> = files.iter().filter_map(|file| file["path"].as_str()).collect();
            let expect = ["/etc/hostname", "/etc/slipway/phone-home.pem", "/etc/slipway/phone-home.curl"];
            let service = ["/var/lib/slipway/report.json", "/var/lib/slipway/fetch.sh"];
            assert_eq!(paths, [&expect[..], &service].concat(), "{version}");
            assert_eq!(read["systemd"]["units"][0]["enabled"], true, "{version}");
        }
    }
}

#[test]
fn ignition_sets_up_what_the_operator_wrote_and_what_is_added() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not checked: Ignition works as root only");
    }
    let own = json!({
        "ignition": {"version": "3.3.0"},
        "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["ssh-ed25519 BBBB own"]}]},
        "storage": {"files": [{"path": "/etc/motd", "contents": {"source": "data:,welcome"}}]},
        "systemd": {"units": [{"name": "own.service", "enabled": true, "contents": "[Service]\n\
                                                                                    ExecStart=/bin/true\n"}]},
    });
    let root = system();
    ignite(&completed(&own), root.path());

    let read = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
    let mode = |path: &str| fs::metadata(root.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((read("etc/hostname").as_str(), read("etc/motd").as_str()), ("web1\n", "welcome"));
    let fragment = "home/core/.ssh/authorized_keys.d/ignition";
    let authorized = read(fragment);
    assert!(authorized.contains("AAAA operator\n") && authorized.contains("BBBB own\n"), "{authorized}");
    assert_eq!(fs::metadata(root.path().join(fragment)).unwrap().uid(), CORE);
    assert_eq!(read("etc/slipway/phone-home.pem"), "PEM\n");
    assert!(read("etc/slipway/phone-home.curl").contains("https://s.example/p"));
    assert_eq!(mode("etc/slipway/phone-home.curl"), 0o600);
    assert_eq!(read("var/lib/slipway/report.json"), "report.json\n");
    assert_eq!((mode("var/lib/slipway/report.json"), mode("var/lib/slipway/fetch.sh")), (0o600, 0o755));
    let presets = read("etc/systemd/system-preset/20-ignition.preset");
    for unit in ["own.service", "slipway-phone-home.service", "slipway-report.service"] {
        assert!(presets.lines().any(|line| line == format!("enable {unit}")), "{presets}");
        assert!(read(&format!("etc/systemd/system/{unit}")).contains("ExecStart="));
    }
}

#[test]
fn the_host_keys_that_there_are_are_posted() {
    let phone_home = PhoneHome { url: "https://s.example/p".to_owned(), tries: None };
    let additions = Additions { phone_home: Some(&phone_home), instance_id: "i-1", ..Additions::default() };
    let completed = complete("{\"ignition\": {\"version\": \"3.3.0\"}}", &additions).unwrap();
    let config: Value = serde_json::from_str(&completed).unwrap();
    let (_, unit) = config["systemd"]["units"][0]["contents"].as_str().unwrap().split_once("-c '").unwrap();
    let (script, _) = unit.split_once("'\n").unwrap();

    let root = tempfile::tempdir().unwrap();
    let etc = root.path().join("etc");
    for path in ["slipway/phone-home.curl", "ssh/ssh_host_rsa_key.pub", "ssh/ssh_host_ed25519_key.pub"] {
        fs::create_dir_all(etc.join(path).parent().unwrap()).unwrap();
        fs::write(etc.join(path), "x\n").unwrap();
    }
    let etc = etc.display();
    // The script as systemd passes it to the shell, with a function in place of curl.
    let script = script.replace("$$", "$").replace("%H", "web1").replace("/etc/", &format!("{etc}/"));
    let script = format!("curl() {{ printf '%s\\n' \"$@\"; }}; {script}");
    let output = Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
    let expect = format!(
        "--config\n{etc}/slipway/phone-home.curl\n--data-urlencode\nhostname=web1\n\
         --data-urlencode\npub_key_rsa@{etc}/ssh/ssh_host_rsa_key.pub\n\
         --data-urlencode\npub_key_ed25519@{etc}/ssh/ssh_host_ed25519_key.pub\n--output\n/dev/null\n"
    );
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expect);
    assert!(!root.path().join("etc/slipway/phone-home.curl").exists(), "it was heard");
}

/// The root of a system that has the user `core`.
fn system() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let home = root.path().join("home/core");
    fs::create_dir_all(&home).unwrap();
    chown(&home, Some(CORE), Some(CORE)).unwrap();
    for (path, content) in [
        ("etc/passwd", "root:x:0:0::/root:/bin/sh\ncore:x:1000:1000::/home/core:/bin/sh\n"),
        ("etc/group", "root:x:0:\ncore:x:1000:\n"),
        ("etc/shadow", "root:*:1::::::\ncore:*:1::::::\n"),
        ("etc/selinux/config", "SELINUX=disabled\nSELINUXTYPE=targeted\n"),
    ] {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    root
}

/// Has Ignition do to a root what it does in the initramfs at first boot.
fn ignite(config: &str, root: &Path) {
    let program = debian::unpacked(&debian::IGNITION).unwrap().join(IGNITION);
    let state = tempfile::tempdir().unwrap();
    let path = |name: &str| state.path().join(name);
    fs::write(path("config.ign"), config).unwrap();
    // Stands in for the program that labels files for SELinux. This root has no SELinux policy.
    symlink("/bin/true", path("setfiles")).unwrap();
    for stage in ["fetch", "files"] {
        let mut ignition = Command::new(&program);
        ignition.args(["--platform", "file", "--log-to-stdout", "--stage", stage, "--root"]).arg(root);
        ignition.arg("--config-cache").arg(path("cache")).arg("--state-file").arg(path("state"));
        ignition.env("PATH", format!("{}:{}", state.path().display(), env::var("PATH").unwrap()));
        let output = ignition.env("IGNITION_CONFIG_FILE", path("config.ign")).output().unwrap();
        assert!(output.status.success(), "{stage}: {}", String::from_utf8_lossy(&output.stdout));
    }
}
