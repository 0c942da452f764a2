//! `slipway network` in a network namespace with one interface. Each way to an address reaches the server, with what a
//! second namespace gives. openssl plays the server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

const MAC: &str = "52:54:00:7d:2f:01";
/// Time limit of each wait. Router advertisements come within seconds.
const LIMIT: Duration = Duration::from_secs(120);
/// Address of the site's interface, and host name of the server on it.
const ROUTER: &str = "fd77::1";
const NAME: &str = "install.test";

/// Shell script that mounts a tmpfs over each folder that slipway writes to, adds devices as the kernel presents them
/// and the configuration as in the boot image, and continues once the interface is there.
const SURROUNDINGS: &str = "mount -t tmpfs none /run && mount -t tmpfs none /etc && mkdir /etc/slipway && \
    cp \"$1\" /etc/slipway/config.yaml && mount -t tmpfs none /sys && mkdir -p /sys/class/net/eth0/device && \
    echo \"$3\" > /sys/class/net/eth0/address && echo ready && read go && exec \"$2\" network 2>&1";

/// A program that is killed on drop.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A network, and the programs on it.
struct Site {
    folder: TempDir,
    namespace: Ended,
    programs: Vec<Ended>,
    /// Host name of the machine that reached the server.
    hostname: String,
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a command that runs in the network namespace of a process.
fn beside(process: u32, line: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{process}/ns/net")).args(line.split_whitespace());
    command
}

impl Site {
    /// Makes a network. Returns `None`, and prints why, if namespaces or programs are missing.
    fn new() -> Option<Self> {
        if !rustix::process::getuid().is_root() {
            eprintln!("not checked: only root makes network namespaces");
            return None;
        }
        if let Some(missing) = ["dnsmasq", "openssl", "ip", "nsenter"].iter().find(|program| !is_there(program)) {
            eprintln!("not checked: {missing} is not installed");
            return None;
        }
        let shell = ["--net", "sh", "-c", "ip link set lo up && echo ready && read forever"];
        let namespace = Command::new("unshare").args(shell).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut namespace = Ended(namespace.unwrap());
        let mut ready = String::new();
        BufReader::new(namespace.0.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        Some(Self { folder: tempfile::tempdir().unwrap(), namespace, programs: Vec::new(), hostname: String::new() })
    }

    fn start(&mut self, line: &str) {
        let mut command = beside(self.namespace.0.id(), line);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.programs.push(Ended(child.unwrap()));
    }

    /// Starts a server that finishes TLS handshakes. Returns its CA in PEM.
    fn serve(&mut self) -> String {
        let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&ca_key).unwrap().pem();
        let names = [NAME, ROUTER, "192.0.2.1"].map(str::to_owned).to_vec();
        let issuer = Issuer::new(params, ca_key);
        let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let (leaf_file, key_file) = (self.folder.path().join("leaf.pem"), self.folder.path().join("key.pem"));
        std::fs::write(&leaf_file, leaf.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        let files = format!("-cert {} -key {}", leaf_file.display(), key_file.display());
        self.start(&format!("openssl s_server -quiet -accept 8443 {files}"));
        ca
    }

    fn dnsmasq(&mut self, options: &str) {
        let leases = self.folder.path().join("leases");
        self.start(&format!(
            "dnsmasq --no-daemon --conf-file=/dev/null --user=root --pid-file= --no-resolv --no-hosts \
             --interface=site0 --dhcp-leasefile={} {options}",
            leases.display()
        ));
    }

    /// Connects a machine whose medium has these settings, and waits until it has reached the server. Returns what the
    /// machine wrote for the installer, and its routes.
    fn reach(&mut self, server: &str, settings: &[(&str, String)], dnsmasq: Option<&str>) -> (Value, String) {
        let ca = self.serve();
        let config = self.folder.path().join("config.yaml");
        let indented = ca.lines().map(|line| format!("  {line}\n")).collect::<String>();
        let settings = settings.iter().map(|(key, text)| format!("{key}: {}\n", Value::from(text.as_str())));
        let settings = settings.collect::<String>();
        let text = format!("server: https://{server}:8443\n{settings}ca: |\n{indented}");
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--uts", "sh", "-c", SURROUNDINGS, "sh"]).arg(&config);
        command.arg(env!("CARGO_BIN_EXE_slipway")).arg(MAC).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut machine = Ended(command.spawn().unwrap());
        let mut lines = BufReader::new(machine.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert_eq!(lines.next().as_deref(), Some("ready"));
        let (site, id) = (self.namespace.0.id(), machine.0.id());
        run(&mut beside(site, &format!("ip link add site0 type veth peer name eth0 address {MAC} netns {id}")));
        for address in ["192.0.2.1/24", "fd77::1/64 nodad"] {
            run(&mut beside(site, &format!("ip addr add {address} dev site0")));
        }
        run(&mut beside(site, "ip link set site0 up"));
        if let Some(options) = dnsmasq {
            self.dnsmasq(options);
        }
        machine.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        // A machine that does not reach the server is ended after a while. Its log says why, and the test fails.
        let (done, waiting) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if waiting.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").arg(id.to_string()).status();
            }
        });
        let mut said = Vec::new();
        let reached =
            lines.by_ref().inspect(|line| said.push(line.clone())).any(|line| line.contains("reached the server"));
        assert!(reached, "it did not reach the server: {said:#?}");
        drop(done);
        let announced = Path::new("/proc").join(id.to_string()).join("root/run/slipway/network/link.json");
        let routes = run(&mut beside(id, "ip -4 route")) + &run(&mut beside(id, "ip -6 route"));
        self.hostname = run(&mut beside(id, &format!("nsenter --uts=/proc/{id}/ns/uts uname -n"))).trim().to_owned();
        (serde_json::from_slice(&std::fs::read(announced).unwrap()).unwrap(), routes)
    }
}

fn is_there(program: &str) -> bool {
    let folders = std::env::var("PATH").unwrap_or_default();
    folders.split(':').chain(["/usr/sbin"]).any(|folder| Path::new(folder).join(program).exists())
}

#[test]
fn an_address_from_the_settings_of_the_medium_reaches_the_server() {
    let Some(mut site) = Site::new() else { return };
    let network = json!({
        "interfaces": [
            {"name": "lan", "mac": MAC, "addresses": ["192.0.2.5/24"], "gateways": ["192.0.2.254"], "mtu": 1400},
        ],
        "nameservers": ["192.0.2.53"],
    });
    let (link, routes) = site.reach("192.0.2.1", &[("network", network.to_string())], None);
    let (address, gateway) = ("192.0.2.5/24", "192.0.2.254");
    let at = link["leased_at"].as_u64().unwrap();
    assert!(at > 0, "{link}");
    let expect = json!({
        "interface": "eth0",
        "address": address,
        "gateway": gateway,
        "name_servers": ["192.0.2.53"],
        "leased_at": at,
    });
    assert_eq!(link, expect);
    assert!(routes.contains("default via 192.0.2.254 dev eth0 proto static metric 10"), "{routes}");
}

#[test]
fn routers_alone_lead_to_the_server_and_to_its_name() {
    let Some(mut site) = Site::new() else { return };
    let ra = "--enable-ra --dhcp-range=fd77::,ra-only --dhcp-option=option6:dns-server,[fe80::] \
              --host-record=install.test,fd77::1";
    let (link, routes) = site.reach(NAME, &[], Some(ra));
    assert_eq!(link["address"], "fd77::5054:ff:fe7d:2f01/64");
    let router = link["gateway"].as_str().unwrap().to_owned();
    assert!(router.starts_with("fe80::"), "{link}");
    assert_eq!(link["name_servers"], json!([format!("{router}%eth0")]));
    assert!(routes.contains(&format!("default via {router} dev eth0 proto static metric 12")), "{routes}");
}

#[test]
fn routers_send_the_machine_to_dhcpv6() {
    let Some(mut site) = Site::new() else { return };
    let managed = "--enable-ra --dhcp-range=fd77::100,fd77::1ff,64,1h --dhcp-option=option6:dns-server,[fd77::53]";
    let (link, routes) = site.reach(
        "[fd77::1]",
        &[("network", r#"{"interfaces": [{"name": "any", "dhcp6": true}]}"#.to_owned())],
        Some(managed),
    );
    assert!(
        link["address"].as_str().is_some_and(|address| address.starts_with("fd77::1") && address.ends_with("/128")),
        "{link}"
    );
    assert_eq!(link["name_servers"], json!(["fd77::53"]));
    assert!(routes.contains("fd77::/64 dev eth0 proto static metric 12"), "{routes}");
}

#[test]
fn a_dhcp_server_gets_to_know_the_name_of_the_machine() {
    let Some(mut site) = Site::new() else { return };
    let name = "rack3-u12";
    let settings = [("hostname", name.to_owned())];
    let (link, _) = site.reach("192.0.2.1", &settings, Some("--port=0 --dhcp-range=192.0.2.100,192.0.2.150,1h"));
    let address = link["address"].as_str().unwrap().strip_suffix("/24").unwrap();
    let leases = std::fs::read_to_string(site.folder.path().join("leases")).unwrap();
    assert!(leases.contains(&format!(" {MAC} {address} {name} ")), "{leases}");
    assert_eq!(site.hostname, name);
}
