//! `boot-reporter` on a disk that carries an image.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::Command;

use slipway_protocol::node::boot_report::places;
use slipway_protocol::{Action, BootReporter, BootReporterConfig, Proxy};

use common::disk_image::{LINUX, Part, ROOT, can_mount, debugfs, make, read_file, run};
use common::{Bench, MIB, chain};

const ROOT_AT: usize = 1;
const SYSTEMD: (&str, &str) = ("usr/lib/systemd/systemd", "");
const PROGRAM: &str = "the program\n";

fn installed(files: &[(&str, &str)]) -> Bench {
    let mut bench = Bench::new(MIB);
    let files = [&[("etc/os-release", "NAME=Debian")], files].concat();
    make(&bench.path("disk"), 20, &[Part { mib: ROOT_AT..19, type_guid: ROOT, name: "system", files: &files }]);
    std::fs::write(bench.path("program"), PROGRAM).unwrap();
    bench.setup.program = bench.path("program");
    bench
}

/// A file of the reporter in the usual folder.
fn usual(name: &str) -> String {
    format!("{}/{name}", places::USR_LOCAL)
}

fn reporter() -> BootReporter {
    BootReporter {
        optional: false,
        url: "https://s.example:8443".to_owned(),
        token: "T0KEN".to_owned().into(),
        ca: "-----BEGIN CERTIFICATE-----\n".to_owned(),
        hours: 2,
        ..BootReporter::default()
    }
}

fn bench(parts: &[Part]) -> Bench {
    let mut bench = Bench::new(MIB);
    make(&bench.path("disk"), 60, parts);
    std::fs::write(bench.path("program"), PROGRAM).unwrap();
    bench.setup.program = bench.path("program");
    bench
}

fn part<'a>(
    mib: std::ops::Range<usize>,
    type_guid: &'a str,
    name: &'a str,
    files: &'a [(&'a str, &'a str)],
) -> Part<'a> {
    Part { mib, type_guid, name, files }
}

fn set_label(bench: &Bench, mib: usize, label: &str) {
    let file = format!("{}?offset={}", bench.path("disk").display(), mib * MIB);
    run(Command::new("tune2fs").args(["-L", label, &file]));
}

/// Runs the action and returns its outcome as text.
fn outcome(bench: &Bench) -> String {
    match bench.run(&Action::BootReporter(reporter())).0 {
        Ok(done) => done.outcome.summary,
        Err(error) => chain(&error),
    }
}

#[test]
fn the_program_is_left_with_its_secret_and_a_unit_of_the_boot() {
    let true = can_mount() else { return };
    let wants = "etc/systemd/system/multi-user.target.wants/other.service";
    let mut bench = installed(&[SYSTEMD, (wants, "-> /lib/systemd/system/other.service")]);
    bench.setup.proxy = Some(Proxy { url: "http://proxy.example:3128".to_owned(), except: String::new() });
    // The second pass stands for a repeat after a power cut during the step.
    for _ in 0..2 {
        let outcome = outcome(&bench);
        assert!(outcome.starts_with("installed the boot reporter in partition 1 (system)"), "{outcome}");
    }
    let found = |place: &str| read_file(&bench.path("disk"), ROOT_AT, &format!("/{place}")).unwrap();
    assert_eq!(found(&usual(places::PROGRAM)), (PROGRAM.to_owned(), "0755 0:0".to_owned()));
    let (config, owner) = found(&usual(places::CONFIG));
    assert_eq!(owner, "0600 0:0");
    let config: BootReporterConfig = serde_json::from_str(&config).unwrap();
    let expect = reporter();
    assert_eq!((config.url, config.token, config.ca), (expect.url, expect.token, expect.ca));
    assert_eq!((config.hours, config.every, config.machine.proxy()), (2, 600, bench.setup.proxy.clone()));
    assert_eq!(found(places::UNIT).1, "0644 0:0");
    for place in places::LINKS {
        let link = debugfs(&bench.path("disk"), ROOT_AT, &format!("stat /{place}"));
        assert!(link.contains("\"/etc/systemd/system/slipway-report.service\""), "{link}");
    }
    let wanted = debugfs(&bench.path("disk"), ROOT_AT, "ls /etc/systemd/system/multi-user.target.wants");
    assert!(wanted.contains("other.service"), "{wanted}");
}

#[test]
fn a_system_that_looks_at_labels_gets_them() {
    let true = can_mount() else { return };
    let bench = installed(&[SYSTEMD, ("etc/selinux/config", "SELINUX=enforcing\nSELINUXTYPE=targeted\n")]);
    assert!(outcome(&bench).starts_with("installed the boot reporter in "), "{}", outcome(&bench));
    let units = places::LINKS.iter().chain([&places::UNIT]).map(|place| ((*place).to_owned(), "systemd_unit_file_t"));
    for (place, kind) in units.chain([(usual(places::PROGRAM), "bin_t"), (usual(places::CONFIG), "lib_t")]) {
        let labels = debugfs(&bench.path("disk"), ROOT_AT, &format!("ea_get /{place} security.selinux"));
        assert!(labels.contains(&format!("system_u:object_r:{kind}:s0")), "{place}: {labels}");
    }
}

#[test]
fn a_system_without_systemd_is_refused_and_left_as_it_is() {
    let true = can_mount() else { return };
    let bench = installed(&[("usr/sbin/openrc", "")]);
    let refused = outcome(&bench);
    assert!(refused.starts_with("installing the boot reporter in partition 1 (system)"), "{refused}");
    assert!(refused.ends_with("it does not use systemd, and only systemd can start the reporter; leave the step out"));
    assert_eq!(read_file(&bench.path("disk"), ROOT_AT, &format!("/{}", usual(places::PROGRAM))), None);
}

#[test]
fn a_full_system_is_told_and_its_boot_does_not_change() {
    let true = can_mount() else { return };
    let bench = installed(&[SYSTEMD]);
    std::fs::write(bench.path("program"), vec![7; 30 * MIB]).unwrap();
    let refused = outcome(&bench);
    assert!(refused.starts_with("writing /usr/local/lib/slipway/slipway of the installed system: "), "{refused}");
    assert_eq!(read_file(&bench.path("disk"), ROOT_AT, &format!("/{}", places::LINKS[0])), None);
    assert_eq!(read_file(&bench.path("disk"), ROOT_AT, &format!("/{}", usual(places::PROGRAM))), None);
}

#[test]
fn an_optional_step_is_left_out_where_the_reporter_has_no_place() {
    let true = can_mount() else { return };
    let no_systemd = installed(&[("usr/sbin/openrc", "")]);
    let no_root = bench(&[part(1..9, LINUX, "data", &[("a", "")])]);
    for (bench, reason) in [(&no_systemd, "it does not use systemd"), (&no_root, "looking for a root file system on ")]
    {
        let optional = BootReporter { optional: true, ..reporter() };
        let done = bench.succeeds(&Action::BootReporter(optional)).0;
        assert!(done.outcome.left_out && done.outcome.summary.contains("could not be installed"), "{done:?}");
        assert!(done.outcome.warnings[0].contains(reason), "{done:?}");
        assert!(outcome(bench).contains(reason), "it fails where it is not optional");
    }
}

const DEPLOY: &str = "ostree/deploy/fedora-iot/deploy/";

/// An OSTree system with these deployments. `started` is the one that its boot entry names.
fn ostree(deployments: &[&str], started: &str) -> Bench {
    let mut files = vec![
        ("ostree/repo/config".to_owned(), String::new()),
        ("ostree/deploy/fedora-iot/var/log/x".to_owned(), String::new()),
        ("ostree/boot.1".to_owned(), "-> boot.1.1".to_owned()),
        ("ostree/boot.1.1/fedora-iot/abc/0".to_owned(), format!("-> ../../../deploy/fedora-iot/deploy/{started}")),
    ];
    for name in deployments {
        let mut add = |path: &str, content: &str| files.push((format!("{DEPLOY}{name}/{path}"), content.to_owned()));
        add("usr/lib/os-release", "NAME=\"Fedora IoT\"\n");
        add("etc/os-release", "-> ../usr/lib/os-release");
        add("etc/selinux/config", "SELINUX=enforcing\n");
        add("usr/lib/systemd/systemd", "");
        add("usr/local", "-> ../var/usrlocal");
        add("var/.keep", "");
    }
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let entry = "title x\nversion 1\nlinux /ostree/v\noptions root=UUID=1 ostree=/ostree/boot.1/fedora-iot/abc/0 ro\n";
    let boot = [("loader/entries/ostree-1-fedora-iot.conf", entry), ("ostree/v", "")];
    let bench = bench(&[part(1..9, LINUX, "", &boot), part(10..40, LINUX, "", &files)]);
    set_label(&bench, 1, "boot");
    bench
}

#[test]
fn a_system_of_ostree_has_the_reporter_in_the_tree_that_starts_and_in_its_var() {
    let true = can_mount() else { return };
    for deployments in [&["aa.0"][..], &["aa.0", "bb.0"], &["aa.0", "aa.1", "cc.0"]] {
        for started in deployments {
            let bench = ostree(deployments, started);
            let said = outcome(&bench);
            let expect = format!("installed the boot reporter in Fedora IoT in /{DEPLOY}{started} in partition 2 of ");
            assert!(said.starts_with(&expect), "{said}");
            let found = |path: &str| read_file(&bench.path("disk"), 10, &format!("/{path}"));
            let var = "ostree/deploy/fedora-iot/var/lib/slipway";
            assert_eq!(found(&format!("{var}/slipway")), Some((PROGRAM.to_owned(), "0755 0:0".to_owned())));
            assert_eq!(found(&format!("{var}/report.json")).map(|file| file.1).as_deref(), Some("0600 0:0"));
            for name in deployments {
                let unit = found(&format!("{DEPLOY}{name}/{}", places::UNIT)).map(|file| file.0);
                assert_eq!(unit.is_some(), name == started, "{name}");
                let starts = |unit: String| unit.contains("ExecStart=-/var/lib/slipway/slipway report\n");
                assert!(unit.is_none_or(starts));
                assert_eq!(found(&format!("{DEPLOY}{name}/usr/local/lib")), None);
            }
            let label = debugfs(&bench.path("disk"), 10, &format!("ea_get /{var}/slipway security.selinux"));
            assert!(label.contains("system_u:object_r:bin_t:s0"), "{label}");
        }
    }
    let unknown = outcome(&ostree(&["aa.0", "bb.0"], "gone.0"));
    assert!(unknown.contains("says with ostree= which of these deployments is started: Fedora IoT in /"), "{unknown}");
}

#[test]
fn a_root_whose_usr_is_elsewhere_has_the_reporter_outside_of_it() {
    let true = can_mount() else { return };
    let (usr, etc) = ("8484680C-9521-48C6-9C11-B0720656F69E", ("etc/hostname", "x\n"));
    let release = ("lib/os-release", "NAME=X\n");
    let dangling = ("etc/os-release", "-> ../usr/lib/os-release");
    let mounted = ("etc/fstab", "UUID=1 / ext4 defaults 0 1\nUUID=2 /usr ext4 ro 0 2\n");
    for (root, usr_type, usr_name) in [
        // A /usr that is sealed, and a root that the first boot fills.
        (&[etc][..], usr, "usr"),
        (&[etc, dangling], usr, ""),
        // /usr in another partition, as in fstab.
        (&[dangling, mounted], LINUX, "data"),
        (&[etc], LINUX, "USR-A"),
        // A copy of os-release in /etc.
        (&[("etc/os-release", "NAME=X\n"), mounted, ("etc/systemd/system.conf", "")], LINUX, "x"),
    ] {
        let bench = bench(&[part(1..9, usr_type, usr_name, &[release]), part(10..40, ROOT, "root", root)]);
        let said = outcome(&bench);
        assert!(said.starts_with("installed the boot reporter in partition 2 (root)"), "{said} {root:?}");
        let found = |path: &str| read_file(&bench.path("disk"), 10, path);
        assert_eq!(found("/opt/slipway/slipway").map(|file| file.0).as_deref(), Some(PROGRAM));
        let unit = found(&format!("/{}", places::UNIT)).unwrap().0;
        assert!(unit.contains("ExecStart=-/opt/slipway/slipway report\n"), "{unit}");
        assert_eq!(found("/usr/local"), None);
    }
    let empty = bench(&[part(1..9, LINUX, "data", &[release]), part(10..40, ROOT, "root", &[etc])]);
    let refused = outcome(&empty);
    assert!(refused.contains("has no /etc/os-release"), "nothing says that this is a system: {refused}");
}

#[test]
fn a_sealed_root_is_left_as_it_is_and_that_is_said() {
    let true = can_mount() else { return };
    let entry = ("loader/entries/a.conf", "title a\nlinux /v\noptions roothash=0a1b\n");
    let bench = bench(&[
        part(1..9, LINUX, "", &[entry]),
        part(10..40, ROOT, "root", &[SYSTEMD, ("etc/os-release", "NAME=X\n")]),
    ]);
    set_label(&bench, 1, "boot");
    let before = bench.disk();
    let refused = outcome(&bench);
    assert!(refused.contains("which must not be changed: it is sealed by dm-verity"), "{refused}");
    assert!(bench.disk()[10 * MIB..] == before[10 * MIB..], "not a byte of the root");
}

#[test]
fn what_the_system_mounts_does_not_hide_the_reporter() {
    let true = can_mount() else { return };
    let disk = |fstab: &str| {
        let fstab = format!("/dev/sda1 / ext4\n{fstab}");
        let root = [SYSTEMD, ("etc/os-release", "NAME=X\n"), ("etc/fstab", fstab.as_str())];
        bench(&[part(1..30, ROOT, "root", &root), part(31..45, LINUX, "data", &[])])
    };
    let all = "PARTLABEL=data /usr/local ext4\nPARTLABEL=data /opt ext4\nPARTLABEL=data /var ext4\n";
    for (fstab, mib, path, folder) in [
        // What is in the root file system is there in the emergency shell too.
        ("PARTLABEL=data /usr/local ext4\n", 1, "/opt/slipway", places::OPT),
        ("tmpfs /usr/local tmpfs\nPARTLABEL=data /opt ext4\n", 1, "/var/lib/slipway", places::VAR),
        ("PARTLABEL=data /var ext4\n", 1, "/usr/local/lib/slipway", places::USR_LOCAL),
        (all, 31, "/lib/slipway", places::USR_LOCAL),
    ] {
        let bench = disk(fstab);
        let said = outcome(&bench);
        assert!(said.starts_with("installed the boot reporter in partition 1 (root)"), "{fstab}: {said}");
        let found = |mib, path: &str| read_file(&bench.path("disk"), mib, path).map(|file| file.0);
        assert_eq!(found(mib, &format!("{path}/{}", places::PROGRAM)).as_deref(), Some(PROGRAM), "{fstab}");
        let unit = found(1, &format!("/{}", places::UNIT)).unwrap();
        assert!(unit.contains(&format!("ExecStart=-/{folder}/slipway report\n")), "{fstab}: {unit}");
    }
    let nowhere = all.replace("PARTLABEL=data", "tmpfs").replace("ext4", "tmpfs");
    for (fstab, reason) in [
        (&*nowhere, "its fstab mounts tmpfs on /usr/local"),
        ("overlay /etc overlay", "its fstab mounts overlay on /etc"),
    ] {
        let refused = outcome(&disk(fstab));
        assert!(refused.contains(reason) && refused.contains("which would hide the reporter"), "{refused}");
    }
}

/// The Ignition config on a disk, as JSON.
fn config(bench: &Bench, mib: usize, path: &str) -> serde_json::Value {
    let (text, owner) = read_file(&bench.path("disk"), mib, path).unwrap();
    assert_eq!(owner, "0600 0:0");
    serde_json::from_str(&text).unwrap()
}

/// The content of a file in an Ignition config.
fn content(config: &serde_json::Value, path: &str) -> (String, u64) {
    use base64::Engine as _;
    let files = config["storage"]["files"].as_array().unwrap();
    let file = files.iter().find(|file| file["path"] == path).unwrap_or_else(|| panic!("no {path}: {config}"));
    let source = file["contents"]["source"].as_str().unwrap().strip_prefix("data:;base64,").unwrap().to_owned();
    let bytes = base64::engine::general_purpose::STANDARD.decode(source).unwrap();
    (String::from_utf8(bytes).unwrap(), file["mode"].as_u64().unwrap())
}

const OWN: &str = r#"{"ignition": {"version": "3.4.0"}, "systemd": {"units": [{"name": "mine.service"}]}}"#;

#[test]
fn a_system_of_coreos_has_the_reporter_in_its_ignition_config() {
    let true = can_mount() else { return };
    let made = |boot: &[(&str, &str)]| {
        let tree = [(&*format!("{DEPLOY}aa.0/usr/lib/systemd/systemd"), ""), (&*format!("{DEPLOY}aa.0/etc/x"), "")];
        let bench = bench(&[part(1..9, LINUX, "", boot), part(10..40, ROOT, "root", &tree)]);
        set_label(&bench, 1, "boot");
        bench
    };
    let entry = ("loader/entries/ostree-1.conf", "options $ignition_firstboot");
    let new = made(&[("ignition.firstboot", ""), entry, ("ignition/config.ign", OWN)]);
    // The second pass stands for a repeat after a power cut during the step.
    for _ in 0..2 {
        let done = new.succeeds(&Action::BootReporter(reporter())).0;
        let expect = "added the boot reporter to the Ignition config /ignition/config.ign in partition 1";
        assert!(done.outcome.summary.starts_with(expect), "{done:?}");
        let warning =
            "the system must fetch the reporter from the server, but it is unknown whether the server has it: ";
        assert!(done.outcome.warnings[0].starts_with(warning), "nobody answers: {done:?}");
    }
    let found = config(&new, 1, "/ignition/config.ign");
    assert_eq!(
        (&found["ignition"]["version"], &found["systemd"]["units"][0]["name"]),
        (&"3.4.0".into(), &"mine.service".into())
    );
    let unit = &found["systemd"]["units"][1];
    assert_eq!((&unit["name"], &unit["enabled"]), (&places::UNIT_NAME.into(), &true.into()));
    let text = unit["contents"].as_str().unwrap();
    assert!(text.contains("ExecStart=-/bin/sh /var/lib/slipway/fetch.sh\n") && !text.contains("T0KEN"), "{text}");
    let (settings, mode) = content(&found, "/var/lib/slipway/report.json");
    let settings: BootReporterConfig = serde_json::from_str(&settings).unwrap();
    assert_eq!((settings.url, settings.token.reveal(), mode), (reporter().url, "T0KEN", 0o600));
    let (curl, mode) = content(&found, "/var/lib/slipway/fetch.curl");
    let url = format!("url = \"https://s.example:8443/boot/{}/slipway\"\n", std::env::consts::ARCH);
    assert!(
        curl.starts_with(&url) && curl.contains("cacert = \"/var/lib/slipway/ca.pem\"\n") && mode == 0o600,
        "{curl}"
    );
    let (script, mode) = content(&found, "/var/lib/slipway/fetch.sh");
    let sum = run(Command::new("sha256sum").arg(new.path("program")));
    assert!(script.contains(sum.split(' ').next().unwrap()) && !script.contains('@') && mode == 0o755, "{script}");
    assert_eq!(read_file(&new.path("disk"), 10, &format!("/{DEPLOY}aa.0/{}", places::UNIT)), None);

    // Ignition does not run again, so the reporter goes into the files.
    let used = made(&[entry, ("ignition/config.ign", OWN)]);
    let said = outcome(&used);
    assert!(said.starts_with("installed the boot reporter in fedora-iot in /ostree/deploy/"), "{said}");
    assert_eq!(config_text(&used), OWN);

    let own = r#"{"ignition": {"version": "3.4.0"}, "systemd": {"units": [{"name": "slipway-report.service"}]}}"#;
    let taken = made(&[("ignition.firstboot", ""), ("ignition/config.ign", own)]);
    let refused = outcome(&taken);
    assert!(
        refused.starts_with("adding the boot reporter to the Ignition config /ignition/config.ign in "),
        "{refused}"
    );
    assert!(refused.contains("the config has a unit slipway-report.service of its own"), "{refused}");
    assert_eq!(config_text(&taken), own);
}

fn config_text(bench: &Bench) -> String {
    read_file(&bench.path("disk"), 1, "/ignition/config.ign").unwrap().0
}

#[test]
fn a_system_of_flatcar_has_the_reporter_in_its_ignition_config() {
    let true = can_mount() else { return };
    let flatcar = |root: &[(&str, &str)]| {
        let parts =
            [part(1..9, LINUX, "USR-A", &[]), part(10..20, LINUX, "OEM", &[]), part(21..40, LINUX, "ROOT", root)];
        let bench = bench(&parts);
        set_label(&bench, 10, "OEM");
        bench
    };
    let new = flatcar(&[]);
    let said = outcome(&new);
    assert!(
        said.starts_with("added the boot reporter to the Ignition config /config.ign in partition 2 (OEM)"),
        "{said}"
    );
    let found = config(&new, 10, "/config.ign");
    assert_eq!(found["ignition"]["version"], "2.3.0");
    assert_eq!(found["storage"]["files"][0]["filesystem"], "root");

    let used = flatcar(&[("etc/machine-id", "0123456789abcdef0123456789abcdef\n")]);
    let said = outcome(&used);
    assert!(said.starts_with("installed the boot reporter in partition 3 (ROOT)"), "{said}");
}

/// Runs the script that fetches the program, as the installed system does.
fn fetched(served: &str, is_there: bool) -> (String, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let sum = run(Command::new("sha256sum").arg("/bin/true"));
    let script = include_str!("../src/action/boot_reporter/fetch.sh")
        .replace("/@FOLDER@", folder.path().to_str().unwrap())
        .replace("@SHA256@", sum.split(' ').next().unwrap())
        .replace("@UNITS@", at("unit").to_str().unwrap())
        .replace("@TRIES@", "2")
        .replace("@PAUSE@", "0");
    let curl = format!("url = \"file://{served}\"\noutput = \"{}\"\nfail\nsilent\n", at("slipway").display());
    for (name, content) in [("fetch.sh", script), ("fetch.curl", curl)] {
        std::fs::write(at(name), content).unwrap();
    }
    for name in ["report.json", "ca.pem", "unit"] {
        std::fs::write(at(name), "").unwrap();
    }
    if is_there {
        std::fs::copy("/bin/true", at("slipway")).unwrap();
    }
    let output = Command::new("/bin/sh").arg(at("fetch.sh")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut left: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    (String::from_utf8(output.stdout).unwrap(), left)
}

#[test]
fn the_program_is_fetched_and_run_only_if_it_is_the_right_one() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("not checked: there is no curl");
        return;
    }
    let all = ["ca.pem", "fetch.curl", "fetch.sh", "report.json", "slipway", "unit"];
    for (served, is_there) in [("/bin/true", false), ("/nonexistent", true)] {
        let (said, left) = fetched(served, is_there);
        assert_eq!((said.as_str(), left), ("", all.map(str::to_owned).to_vec()), "{served}");
    }
    for served in ["/bin/false", "/nonexistent"] {
        let (said, left) = fetched(served, false);
        assert!(said.contains("is not the one that installed this system, or there is none"), "{said}");
        assert_eq!(left, [""; 0], "{served}");
    }
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let found = Command::new("systemd-analyze").arg("--version").output();
    if found.is_err() {
        eprintln!("not checked: there is no systemd-analyze");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unit = include_str!("../src/action/boot_reporter/slipway-report.service");
    // `systemd-analyze verify` checks that the program exists.
    let unit = unit.replace("@START@", "/bin/true").replace("@PARENT@", "/usr/local/lib");
    let file = folder.path().join("slipway-report.service");
    std::fs::write(&file, unit).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("slipway-report")).collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}
