//! `slipway network` in a network namespace without interfaces: which rights it keeps.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A program that is killed on drop.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Shell script that mounts a tmpfs over each folder that slipway writes to, and adds the configuration as in the boot
/// image.
const SURROUNDINGS: &str = "mount -t tmpfs none /run && mount -t tmpfs none /etc && mkdir /etc/slipway && \
    cp \"$1\" /etc/slipway/config.yaml && mount -t sysfs none /sys && exec \"$2\" network";

#[test]
fn what_parses_dhcp_has_none_of_roots_rights_but_those_over_the_network() {
    if !rustix::process::getuid().is_root() {
        eprintln!("not checked: only root has rights to give away");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    let ca = rcgen::generate_simple_self_signed(vec!["ca".to_owned()]).unwrap().cert.pem();
    let indented = ca.lines().map(|line| format!("  {line}\n")).collect::<String>();
    std::fs::write(&config, format!("server: https://192.0.2.1:8443\nca: |\n{indented}")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-c", SURROUNDINGS, "sh"]).arg(&config);
    let child = command.arg(env!("CARGO_BIN_EXE_slipway")).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = Ended(child);
    let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
    let said = lines.by_ref().map(Result::unwrap).find(|line| line.contains("looking for interfaces"));
    assert!(said.is_some(), "it ended");
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.0.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!((field("Uid"), field("Gid")), ("65534 65534 65534 65534".into(), "65534 65534 65534 65534".into()));
    assert_eq!(field("Groups"), "");
    // Bits 10, 12 and 13 of capabilities(7).
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(field(set), "0000000000003400", "{set}");
    }
    assert_eq!((field("CapInh"), field("CapAmb")), ("0000000000000000".into(), "0000000000000000".into()));
    assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1".into(), "2".into()));
}
