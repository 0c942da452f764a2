//! Machines are switched by Redfish, as sushy-tools has it: the emulator with which OpenStack tests its own client.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use xtask::host::command::{command, run_quietly, stdout};
use xtask::host::python;
use xtask::lab::server::{Lab, Place};

const UUID: &str = "27946b59-9e44-4fa7-8e91-f3527a1ef094";

/// An emulator of BMCs with one machine, which needs seconds to be on or off.
struct Bmc {
    emulator: Child,
    url: String,
}

impl Drop for Bmc {
    fn drop(&mut self) {
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}

impl Bmc {
    fn start(folder: &Path) -> Result<Self> {
        let programs = python::environment(python::SUSHY)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let make =
            ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2"];
        let name = ["-subj", "/CN=bmc", "-addext", "subjectAltName=IP:127.0.0.1"];
        run_quietly(command("openssl", make).args(name).current_dir(folder))?;
        let hash = "import bcrypt; print('slipway:' + bcrypt.hashpw(b'hunter2', bcrypt.gensalt(4)).decode())";
        fs::write(folder.join("htpasswd"), stdout(&mut command(programs.join("python"), ["-c", hash]))?)?;
        fs::create_dir(folder.join("state"))?;
        let path = |name: &str| format!("{:?}", folder.join(name));
        let config = format!(
            "SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = {port}\n\
             SUSHY_EMULATOR_SSL_CERT = {}\nSUSHY_EMULATOR_SSL_KEY = {}\nSUSHY_EMULATOR_AUTH_FILE = {}\n\
             SUSHY_EMULATOR_STATE_DIR = {}\nSUSHY_EMULATOR_FAKE_DRIVER = True\n",
            path("cert.pem"),
            path("key.pem"),
            path("htpasswd"),
            path("state")
        );
        fs::write(folder.join("config.py"), config)?;
        let log = fs::File::create(folder.join("log"))?;
        let mut emulator = command(programs.join("sushy-emulator"), ["--config"]);
        emulator.arg(folder.join("config.py")).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let bmc = Self { emulator: emulator.spawn()?, url: format!("https://127.0.0.1:{port}") };
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let said = || fs::read_to_string(folder.join("log")).unwrap_or_default();
            ensure!(Instant::now() < deadline, "the emulator does not listen: {}", said());
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(bmc)
    }
}

#[test]
fn a_machine_is_switched_and_boots_once_by_redfish() -> Result<()> {
    let (folder, bmc_folder) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let mut lab = Lab::at(folder.path(), Place { listen: "127.0.0.1", host: "127.0.0.1", arguments: &[] })?;
    lab.start_server()?;
    let bmc = Bmc::start(bmc_folder.path())?;
    let password = folder.path().join("password");
    fs::write(&password, "hunter2\n")?;
    let (password, certificate) = (password.display().to_string(), bmc_folder.path().join("cert.pem"));
    lab.operator(&["node", "add", "--name", "web1", "--uuid", UUID, "--release"])?;
    let set = ["node", "power", "set", "web1", "--password-file", &password];
    let certificate = certificate.display().to_string();
    lab.operator(&[&set[..], &["--url", &bmc.url, "--username", "slipway", "--ca", &certificate]].concat())?;
    let said = |arguments: &[&str]| lab.operator(arguments).map(|said| said.trim().to_owned());
    ensure!(said(&["node", "power", "status", "web1"])? == "web1 is off");
    ensure!(said(&["node", "power", "on", "web1"])? == "web1 is on");
    ensure!(said(&["node", "power", "cycle", "--yes", "web1"])? == "web1 is on");
    ensure!(said(&["node", "power", "boot", "--yes", "web1"])? == "web1 is on");
    lab.operator(&[&set[..], &["--boot", "media", "--boot-url", "http://127.0.0.1:1/slipway.iso"]].concat())?;
    ensure!(said(&["node", "power", "off", "--yes", "web1"])? == "web1 is off");
    let log = fs::read_to_string(bmc_folder.path().join("log")).context("reading what the emulator was asked")?;
    let changes: Vec<&str> = log.lines().filter(|line| line.contains("PATCH ") || line.contains("POST ")).collect();
    ensure!(changes.iter().filter(|line| line.contains("PATCH ")).count() == 2, "once, and as it was: {changes:?}");
    ensure!(!log.contains("hunter2") && changes.iter().all(|line| line.contains(" 204 ")), "{changes:?}");
    let system = bmc_folder.path().join("state");
    ensure!(system.exists());
    Ok(())
}
