//! Machines get their address from a DHCP server that knows nothing of slipway, and from slipway what to boot: UEFI
//! firmware by TFTP, and the option ROM of a BIOS by HTTP. A second proxy refuses to start.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, unshare};
use qemu_tests::programs::Programs;
use qemu_tests::{LIMIT, UUID, timed};
use xtask::command::{command, run_quietly, stdout};
use xtask::host;
use xtask::lab::build_server;
use xtask::qemu::firmware::IPXE;
use xtask::qemu::{Boot, Machine, MachineConfig};

/// Addresses of slipway and of the DHCP server.
const SLIPWAY: &str = "10.77.0.2";
const DHCP: &str = "10.77.0.1";
const MAC: &str = "52:54:00:7d:2f:01";

/// A network with a DHCP server of somebody else. It ends with the thread that made it.
struct Site {
    programs: Programs,
    /// The network namespace of the DHCP server.
    elsewhere: String,
}

impl Site {
    /// Moves this thread, and what it starts from now on, to a network of its own: a bridge with a tap for a machine.
    /// None if that is not allowed here.
    fn new() -> Result<Option<Self>> {
        host::ensure(&["dnsmasq-base", "iproute2"])?;
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
        // Router advertisements, for which iPXE waits half a minute.
        dnsmasq.args(["--dhcp-range=10.77.0.100,10.77.0.150,1h", "--dhcp-range=fd77::,ra-only", "--enable-ra"]);
        dnsmasq.args(["--no-ping", &lease_file]);
        site.programs.start(dnsmasq, "dnsmasq.log")?;
        Ok(Some(site))
    }

    /// A program at the DHCP server's.
    fn elsewhere(&self, program: impl AsRef<Path>) -> Command {
        let mut inside = command("ip", ["netns", "exec", &self.elsewhere]);
        inside.arg(program.as_ref());
        inside
    }

    fn machine(&self, boot: Boot, card: &str) -> Result<Machine> {
        let netdev = "tap,id=net0,ifname=tap0,script=no,downscript=no";
        let extra = ["-netdev", netdev, "-device", card].map(str::to_owned).to_vec();
        let (uuid, serial) = (UUID.to_owned(), "BENCH0001".to_owned());
        let none = (Vec::new(), Vec::new());
        let config = MachineConfig {
            boot,
            secure_boot: false,
            memory_mib: 256,
            uuid,
            serial,
            disks: none.0,
            nics: none.1,
            extra,
            arch: xtask::binary::Arch::X86_64,
            detached: false,
        };
        Machine::start(&config, &self.programs.path("machine"))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = ip(&format!("netns del {}", self.elsewhere));
    }
}

fn ip(arguments: &str) -> Result<()> {
    run_quietly(&mut command("ip", arguments.split(' ')))
}

fn serve(mut server: Command, data: &Path, boot: &Path, address: &str, interface: &str) -> Command {
    server.arg("--data").arg(data).args(["serve", "--url", &format!("https://{address}:8443")]);
    server.args(["--listen", &format!("{address}:8443"), "--boot-listen", "0.0.0.0:8080", "--proxy-dhcp", interface]);
    server.arg("--boot").arg(boot).env("SLIPWAY_LOG", "info,slipway_server=debug,slipway_pxe=debug");
    server
}

#[test]
fn proxydhcp_beside_a_foreign_dhcp_server_starts_registered_machines() -> Result<()> {
    timed("proxydhcp beside a foreign DHCP server starts registered machines", || {
        host::ensure(host::QEMU)?;
        let program = build_server()?;
        let Some(mut site) = Site::new()? else { return Ok(()) };
        let boot = site.programs.path("boot");
        std::fs::create_dir_all(boot.join("x86_64"))?;
        // A small program that says what it does.
        std::fs::copy(IPXE, boot.join("x86_64/slipway.efi")).with_context(|| format!("copying {IPXE}"))?;
        let data = site.programs.path("data");
        site.programs.start(serve(Command::new(&program), &data, &boot, SLIPWAY, "br0"), "server.log")?;
        site.programs.wait_for("server.log", "\"https\":")?;

        // Not registered: it gets an address and nothing else.
        let card = format!("virtio-net-pci,netdev=net0,mac={MAC},romfile=");
        let stranger = site.machine(Boot::UefiPxe, &card)?;
        site.programs.wait_for("server.log", "unknown machine")?;
        drop(stranger);
        assert!(
            !site.programs.read("server.log")?.contains("answered boot firmware interface"),
            "a stranger was answered"
        );

        let add = ["node", "add", "--name", "m1", "--uuid", UUID, "--release"];
        stdout(Command::new(&program).arg("--data").arg(&data).args(add))?;
        let mut machine = site.machine(Boot::UefiPxe, &card)?;
        let address = machine.wait_for_line("Station IP address is ", LIMIT)?;
        machine.wait_for_console(&format!("Server IP address is {SLIPWAY}"), LIMIT)?;
        machine.wait_for_console("NBP filename is x86_64/slipway.efi", LIMIT)?;
        machine.wait_for_console("NBP file downloaded successfully", LIMIT)?;
        machine.wait_for_console("iPXE initialising devices", LIMIT)?;
        machine.wait_for_console("slipway: starting the installer", LIMIT)?;
        let address = address.trim().rsplit(' ').next().context("an address")?;
        assert!(site.programs.read("leases")?.contains(address), "{address} is not of the DHCP server");
        drop(machine);

        let scripts = || -> Result<usize> { Ok(site.programs.read("server.log")?.matches("route=/boot/ipxe").count()) };
        let before = scripts()?;
        let _machine = site.machine(Boot::BiosPxe, &format!("e1000,netdev=net0,mac={MAC}"))?;
        let start = Instant::now();
        while scripts()? == before {
            if start.elapsed() > LIMIT {
                bail!("waiting for the script to be fetched by a BIOS:\n{}", site.programs.read("server.log")?);
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }

        let second = serve(site.elsewhere(&program), &site.programs.path("data2"), &boot, DHCP, "eth0").output()?;
        let said = String::from_utf8_lossy(&second.stderr);
        assert!(!second.status.success() && said.contains(&format!("{SLIPWAY} already answers")), "{said}");
        Ok(())
    })
}
