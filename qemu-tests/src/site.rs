//! A network with a DHCP server that is not slipway's, for tests of network boot.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use nix::sched::{CloneFlags, unshare};
use slipway_parts::Arch;
use xtask::host::command::{command, run_quietly};
use xtask::host::packages;
use xtask::lab::qemu::{self, Boot, Machine, MachineConfig};

use crate::bench::UUID;
use crate::programs::Programs;

/// Address of slipway-server.
pub const SLIPWAY: &str = "10.77.0.2";
/// Address of the DHCP server.
pub const DHCP: &str = "10.77.0.1";
/// MAC address of the machine.
pub const MAC: &str = "52:54:00:7d:2f:01";

/// A network with a foreign DHCP server. It ends with the thread that made it.
pub struct Site {
    /// The programs on the network.
    pub programs: Programs,
    /// The network namespace of the DHCP server.
    elsewhere: String,
}

impl Site {
    /// Moves this thread, and what it starts from now on, to a network of its own: a bridge with a tap for a machine.
    /// `None` if this process may not make networks.
    pub fn new() -> Result<Option<Self>> {
        packages::ensure(&["dnsmasq-base", "iproute2"])?;
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            eprintln!("not checked: networks of one's own are not allowed: {error}");
            return Ok(None);
        }
        let elsewhere = format!("slipway-test-{}", std::process::id());
        let mut site = Self { programs: Programs::new()?, elsewhere };
        ip(&format!("netns add {}", site.elsewhere))?;
        ip("link set lo up")?;
        ip("link add br0 type bridge")?;
        ip(&format!("addr add {SLIPWAY}/24 dev br0"))?;
        ip(&format!("link add dhcp type veth peer name eth0 netns {}", site.elsewhere))?;
        ip("tuntap add tap0 mode tap")?;
        for interface in ["dhcp", "tap0"] {
            ip(&format!("link set {interface} master br0 up"))?;
        }
        ip("link set br0 up")?;
        for command in
            [&format!("addr add {DHCP}/24 dev eth0"), "addr add fd77::1/64 dev eth0 nodad", "link set eth0 up"]
        {
            ip(&format!("-n {} {command}", site.elsewhere))?;
        }
        let lease_file = format!("--dhcp-leasefile={}", site.programs.path("leases").display());
        let mut dnsmasq = site.elsewhere("dnsmasq");
        dnsmasq.args(["--no-daemon", "--conf-file=/dev/null", "--user=root", "--port=0", "--interface=eth0"]);
        // Without router advertisements, iPXE would wait half a minute for them.
        dnsmasq.args(["--dhcp-range=10.77.0.100,10.77.0.150,1h", "--dhcp-range=fd77::,ra-only", "--enable-ra"]);
        dnsmasq.args(["--no-ping", &lease_file]);
        site.programs.start(dnsmasq, "dnsmasq.log")?;
        Ok(Some(site))
    }

    /// Returns a command that runs a program in the DHCP server's network namespace.
    pub fn elsewhere(&self, program: impl AsRef<Path>) -> Command {
        let mut inside = command("ip", ["netns", "exec", &self.elsewhere]);
        inside.arg(program.as_ref());
        inside
    }

    /// Switches a machine on. `card` is its network card, as QEMU's argument of `-device`, on the network `net0`.
    pub fn machine(&self, arch: Arch, boot: Boot, card: &str) -> Result<Machine> {
        let (uuid, serial) = (UUID.to_owned(), "BENCH0001".to_owned());
        let none = (Vec::new(), Vec::new());
        let config = MachineConfig {
            boot,
            secure_boot: false,
            cpus: 1,
            memory_mib: 512,
            uuid,
            serial,
            disks: none.0,
            nics: none.1,
            extra: network(card),
            arch,
            detached: false,
        };
        qemu::start(&config, &self.programs.path("machine"))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = ip(&format!("netns del {}", self.elsewhere));
    }
}

/// Returns QEMU's arguments for a network card on this network, which `card` calls `net0`.
pub fn network(card: &str) -> Vec<String> {
    let netdev = "tap,id=net0,ifname=tap0,script=no,downscript=no";
    ["-netdev", netdev, "-device", card].map(str::to_owned).to_vec()
}

fn ip(arguments: &str) -> Result<()> {
    run_quietly(&mut command("ip", arguments.split(' ')))
}

/// Returns the command that serves at an address, with slipway's proxyDHCP on an interface.
pub fn serve(mut server: Command, data: &Path, boot: &Path, address: &str, interface: &str) -> Command {
    server.arg("--data").arg(data).args(["serve", "--url", &format!("https://{address}:8443")]);
    server.args(["--listen", &format!("{address}:8443"), "--boot-listen", "0.0.0.0:8080", "--proxy-dhcp", interface]);
    server.arg("--boot").arg(boot).env("SLIPWAY_LOG", "info,slipway_server=debug,slipway_pxe=debug");
    server
}
