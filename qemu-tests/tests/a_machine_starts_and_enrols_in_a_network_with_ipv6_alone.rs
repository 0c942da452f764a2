//! A network has IPv6 alone. DHCP tells the firmware which URL to boot from, and the firmware loads the boot image by
//! HTTPS and starts it. slipway gets its address from the same router, and enrols.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sched::{CloneFlags, unshare};
use qemu_tests::programs::Programs;
use qemu_tests::{LIMIT, UUID, firmware_trusts, timed};
use slipway_parts::Arch;
use slipway_protocol::NodeState;
use xtask::build::server::{Profile, build_server};
use xtask::build::{image, kernel};
use xtask::host::command::{command, run_quietly, stdout};
use xtask::host::{debian, packages};
use xtask::lab::qemu::{self, Boot, Machine, MachineConfig};
use xtask::lab::server::{FOR_EMULATION, parse_status};

const SLIPWAY: &str = "fd77::1";
const URL: &str = "https://[fd77::1]:8443";

/// A network, and the programs on it. It ends with the thread that made it.
struct Site {
    programs: Programs,
    program: PathBuf,
    /// Folder of the parts from which boot files are made.
    parts: PathBuf,
}

impl Site {
    /// Moves this thread, and what it starts from now on, to a network of its own, with a tap for a machine. `None` if
    /// this process may not make networks.
    fn new() -> Result<Option<Self>> {
        packages::ensure(&["dnsmasq-base", "iproute2"])?;
        let program = build_server(Profile::Dev)?;
        // Downloads come first, because the new network does not lead to the internet.
        debian::unpacked(&debian::NEWER_FIRMWARE)?;
        let parts = image::build_parts(&image::config(kernel::CLOUD, Arch::X86_64)?)?;
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            eprintln!("not checked: networks of one's own are not allowed: {error}");
            return Ok(None);
        }
        for arguments in ["link set lo up", "tuntap add tap0 mode tap", "addr add fd77::1/64 dev tap0 nodad"] {
            run_quietly(&mut command("ip", arguments.split(' ')))?;
        }
        run_quietly(&mut command("ip", ["link", "set", "tap0", "up"]))?;
        Ok(Some(Self { programs: Programs::new()?, program, parts }))
    }

    fn slipway(&self, arguments: &[&str]) -> Command {
        let mut slipway = command(&self.program, ["--data"]);
        slipway.arg(self.programs.path("data")).args(arguments);
        slipway
    }

    fn serve(&mut self, boot: &Path) -> Result<()> {
        let mut server = self.slipway(&["serve", "--url", URL, "--listen", "[::]:8443", "--san", SLIPWAY, "--boot"]);
        server.arg(boot).env("SLIPWAY_LOG", "info,slipway_server=debug");
        self.programs.start(server, "server.log")?;
        self.programs.wait_for("server.log", "\"https\":")
    }

    fn make_boot_files(&self, boot: &Path) -> Result<()> {
        let mut media = self.slipway(&["media", "build", "--kind", "network", "--kernel", kernel::CLOUD, "--url", URL]);
        stdout(media.args(["--argument", FOR_EMULATION, "--parts"]).arg(&self.parts).arg("--out").arg(boot)).map(drop)
    }

    /// Starts a server of DHCPv6 and router advertisements.
    fn advertise(&mut self) -> Result<()> {
        let mut dnsmasq = command("dnsmasq", ["--no-daemon", "--conf-file=/dev/null", "--user=root", "--port=0"]);
        dnsmasq.args(["--interface=tap0", "--dhcp-range=fd77::100,fd77::200,64,1h", "--enable-ra"]);
        dnsmasq.arg(format!("--dhcp-leasefile={}", self.programs.path("leases").display()));
        dnsmasq.arg(format!("--dhcp-option=option6:59,{URL}/boot/x86_64/slipway.efi"));
        // The firmware expects the class after an enterprise number of four bytes and a length of two (RFC 8415,
        // section 21.16). dnsmasq writes only a length, so these four bytes stand in for the rest.
        dnsmasq.arg("--dhcp-option-force=option6:16,0000HTTPClient");
        self.programs.start(dnsmasq, "dnsmasq.log")
    }

    fn wait_until_enrolled(&self, machine: &Machine) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let status = stdout(&mut self.slipway(&["status", "--json"]))?;
            let nodes = status.lines().map(parse_status).collect::<Result<Vec<_>>>()?;
            if nodes.iter().any(|node| node.state == NodeState::Enrolled) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("waiting for a machine that is enrolled: the nodes are {nodes:#?}\n{}", machine.console()?);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn machine(&self) -> Result<Machine> {
        let netdev = "tap,id=net0,ifname=tap0,script=no,downscript=no";
        let card = "virtio-net-pci,netdev=net0,romfile=";
        // The firmware would wait a minute for an answer over IPv4.
        let no_ipv4 = "name=opt/org.tianocore/IPv4Support,string=no";
        let mut extra = ["-netdev", netdev, "-device", card, "-fw_cfg", no_ipv4].map(str::to_owned).to_vec();
        extra.extend(firmware_trusts(self.programs.folder(), &stdout(&mut self.slipway(&["ca"]))?)?);
        let config = MachineConfig {
            secure_boot: false,
            cpus: 1,
            arch: Arch::X86_64,
            boot: Boot::NewerUefi { uri: None },
            memory_mib: 512,
            uuid: UUID.to_owned(),
            serial: "BENCH0001".to_owned(),
            disks: Vec::new(),
            nics: Vec::new(),
            extra,
            detached: false,
        };
        qemu::start(&config, &self.programs.path("machine"))
    }
}

#[test]
fn a_machine_starts_and_enrols_in_a_network_with_ipv6_alone() -> Result<()> {
    timed("a machine starts and enrols in a network with IPv6 alone", || {
        let Some(mut site) = Site::new()? else { return Ok(()) };
        let boot = site.programs.path("boot");
        std::fs::create_dir_all(&boot)?;
        site.serve(&boot)?;
        site.make_boot_files(&boot)?;
        site.advertise()?;
        stdout(&mut site.slipway(&["node", "add", "--name", "m1", "--uuid", UUID, "--release"]))?;
        let mut machine = site.machine()?;
        machine.wait_for_console(&format!("URI: {URL}/boot/x86_64/slipway.efi"), LIMIT)?;
        machine.wait_for_console("slipway init: ", LIMIT)?;
        machine.wait_for_console("eth0: reached the server at [fd77::1]:8443", LIMIT)?;
        site.wait_until_enrolled(&machine)
    })
}
