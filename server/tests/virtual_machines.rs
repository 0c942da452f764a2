//! Virtual machines of the server: they are created, switched, and found again by a server that is started again.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use slipway_qemu::lasting;
use tempfile::TempDir;

const UUID: &str = "4c4c4544-0042-3010-8058-b7c04f503432";

/// A server as a process of its own, whose machines end with the test.
struct Server {
    folder: TempDir,
    port: u16,
    process: Option<Child>,
}

impl Server {
    fn new() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Self { folder: tempfile::tempdir().unwrap(), port, process: None };
        server.start();
        server
    }

    fn start(&mut self) {
        let (address, url) = (format!("127.0.0.1:{}", self.port), format!("https://10.0.2.2:{}", self.port));
        let mut serve = self.command(&[
            "serve",
            "--virtual-machines",
            "--url",
            &url,
            "--listen",
            &address,
            "--boot-listen",
            "127.0.0.1:0",
        ]);
        serve.arg("--boot").arg(self.folder.path().join("boot"));
        let mut process = serve.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with('{'), "{ready}");
        self.process = Some(process);
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipway-server"));
        command.args(arguments).arg("--data").arg(self.folder.path().join("data")).env("SLIPWAY_ACCEL", "tcg");
        command
    }

    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let output = self.command(arguments).stdin(Stdio::null()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap().trim().to_owned())
    }

    fn succeed(&self, arguments: &[&str]) -> String {
        let (is_done, said) = self.run(arguments);
        assert!(is_done, "{arguments:?}: {said}");
        said
    }

    fn fail(&self, arguments: &[&str]) -> String {
        let (is_done, said) = self.run(arguments);
        assert!(!is_done, "{arguments:?}: {said}");
        said
    }

    fn machine(&self, node: &str) -> PathBuf {
        self.folder.path().join("data/machines").join(node)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let machines = fs::read_dir(self.folder.path().join("data/machines")).into_iter().flatten().flatten();
        for machine in machines.filter_map(|machine| lasting::find(&machine.path()).ok().flatten()) {
            machine.stop().unwrap();
        }
    }
}

fn pid(folder: &Path) -> u32 {
    lasting::find(folder).unwrap().expect("it runs").pid()
}

fn has_qemu() -> bool {
    let has =
        ["qemu-system-x86_64", "swtpm"].iter().all(|program| Command::new(program).arg("--version").output().is_ok());
    if !has {
        println!("not checked: virtual machines, because QEMU and swtpm are not installed");
    }
    has
}

#[test]
fn a_virtual_machine_is_switched_and_outlives_its_server() {
    if !has_qemu() {
        return;
    }
    let mut server = Server::new();
    let node = server.succeed(&["node", "add", "--name", "vm1", "--uuid", UUID, "--release"]);
    let folder = server.machine(&node);
    let set = ["node", "power", "set", "vm1", "--provider", "qemu", "--option", "memory=256M", "--option", "disk=64M"];
    let said = server.succeed(&[&set[..], &["--option", "tpm=yes"]].concat());
    assert!(said.contains("Provider: qemu\nOption:   disk=64M\n") && !said.contains("Password"), "{said}");
    let wrong = server.fail(&["node", "power", "set", "vm1", "--option", "memory=lots"]);
    assert!(wrong.contains("is not an amount of memory from 256M to 1T"), "{wrong}");

    server.succeed(&["node", "power", "set", "vm1", "--mode", "recorder"]);
    assert!(server.succeed(&["node", "power", "on", "vm1"]).contains("nothing was switched"));
    assert!(!folder.exists(), "a recorder makes nothing");
    server.succeed(&["node", "power", "set", "vm1", "--mode", "disabled"]);
    assert!(server.fail(&["node", "power", "on", "vm1"]).contains("is disabled"));
    server.succeed(&["node", "power", "set", "vm1", "--mode", "real"]);

    assert_eq!(server.succeed(&["node", "power", "status", "vm1"]), "vm1 is off");
    assert_eq!(server.succeed(&["node", "power", "on", "vm1"]), "vm1 is on");
    let first = pid(&folder);
    let arguments = fs::read(format!("/proc/{first}/cmdline")).unwrap();
    assert!(String::from_utf8_lossy(&arguments).contains(UUID), "it has the UUID of the node");
    assert_eq!(fs::metadata(folder.join("disk.raw")).unwrap().len(), 64 << 20);

    server.kill();
    assert_eq!(pid(&folder), first, "it outlives its server");
    server.start();
    assert_eq!(server.succeed(&["node", "power", "status", "vm1"]), "vm1 is on");
    assert_eq!(server.succeed(&["node", "power", "on", "vm1"]), "vm1 is on");
    assert_eq!(pid(&folder), first, "it is not started twice");
    assert_eq!(server.succeed(&["node", "power", "cycle", "--yes", "vm1"]), "vm1 is on");
    assert_ne!(pid(&folder), first);
    assert_eq!(server.succeed(&["node", "power", "boot", "--yes", "vm1"]), "vm1 is on");
    let variables = fs::read(folder.join("vars.fd")).unwrap();
    assert!(variables.windows(11).any(|text| text == b"slipway.efi"), "it boots slipway next");
    assert_eq!(server.succeed(&["node", "power", "off", "--yes", "vm1"]), "vm1 is off");
    assert!(lasting::find(&folder).unwrap().is_none());
}
