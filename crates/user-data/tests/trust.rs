//! The script that makes a system trust a CA.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use slipway_user_data::trusting;

/// A file with text before the certificate, as `openssl x509 -text` writes it.
const BUNDLE: &str =
    "# M\u{fc}ller CA\nData:\n-----BEGIN CERTIFICATE-----\r\nMIIB$(false)`false`\r\n-----END CERTIFICATE-----\r\nend\n";
const CA: &str = "-----BEGIN CERTIFICATE-----\nMIIB$(false)`false`\n-----END CERTIFICATE-----\n";

/// A root with these folders and these commands. The commands log their calls in `called`.
fn root(name: &str, folders: &[&str], commands: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("trust").join(name);
    _ = fs::remove_dir_all(&root);
    folders.iter().chain(&["bin", "usr"]).for_each(|folder| fs::create_dir_all(root.join(folder)).unwrap());
    for command in commands {
        let called = root.join("called");
        let text = format!("#!/bin/sh\necho {command} >>{}\n", called.display());
        executable(&root.join("bin").join(command), &text);
    }
    let script = "#!/bin/sh\ntest \"$1 ${2%-*}\" = 'instance slipway-ca' && shift 2 && exec \"$@\"\n";
    executable(&root.join("bin/cloud-init-per"), script);
    root
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the script like cloud-init. Returns the calls, and whether the script succeeded.
fn run(root: &Path) -> (String, bool) {
    let script = trusting("", BUNDLE).unwrap().replacen("#cloud-boothook\n", "", 1);
    let within = |top: &str| format!(" {}/{top}/", root.display());
    let script = script.replace(" /etc/", &within("etc")).replace(" /usr/", &within("usr"));
    let path = root.join("part-001");
    executable(&path, &script);
    let mut sh = Command::new("/bin/sh");
    let status = sh.arg(&path).env("PATH", format!("{}:/usr/bin:/bin", root.join("bin").display())).status().unwrap();
    (fs::read_to_string(root.join("called")).unwrap_or_default(), status.success())
}

fn check(name: &str, folders: &[&str], command: &str, expect: &str) {
    let root = root(name, folders, &[command]);
    assert_eq!(run(&root), (format!("{command}\n"), true), "{name}");
    assert_eq!(fs::read_to_string(root.join(expect)).unwrap(), CA, "{name}");
}

#[test]
fn every_distribution_has_its_folder_and_its_command_and_a_failure_is_one() {
    let local = "usr/local/share/ca-certificates";
    check("debian", &[local, "etc/ssl"], "update-ca-certificates", &format!("{local}/slipway.crt"));
    check("bare", &[], "update-ca-certificates", &format!("{local}/slipway.crt"));
    let anchors = "etc/pki/ca-trust/source/anchors";
    check("fedora", &[anchors], "update-ca-trust", &format!("{anchors}/slipway.crt"));
    let anchors = "etc/pki/trust/anchors";
    check("suse", &[anchors], "update-ca-certificates", &format!("{anchors}/slipway.crt"));
    let anchors = "etc/ca-certificates/trust-source/anchors";
    check("arch", &[anchors], "update-ca-trust", &format!("{anchors}/slipway.crt"));

    // In the same test, because a program that another thread has just written may be busy.
    let root = root("none", &[], &[]);
    fs::remove_dir_all(root.join("usr")).unwrap();
    fs::write(root.join("usr"), "").unwrap();
    assert_eq!(run(&root), (String::new(), false));
}
