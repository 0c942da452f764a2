//! The port of the switch carries only a tagged VLAN, and the network has no DHCP. The medium's settings give the
//! machine an address on that VLAN.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use qemu_tests::programs::Programs;
use qemu_tests::{Bench, LIMIT, timed};
use slipway_parts::Arch;
use slipway_protocol::NodeState;
use xtask::build::image::{self, ImagePaths};
use xtask::build::kernel;
use xtask::host::command::command;
use xtask::lab::qemu::MachineConfig;
use xtask::lab::server::{FOR_EMULATION, Lab};

const NETWORK: &str = "
interfaces:
- name: any
- name: rack
  vlan: {of: any, id: 120}
  addresses: [10.0.2.77/24]
  gateways: [10.0.2.2]
";
/// The tag of VLAN 120 without priority (IEEE 802.1Q, clause 9.6). It follows the two addresses of a frame, 12 bytes.
const TAG: [u8; 4] = [0x81, 0x00, 0, 120];
const ADDRESSES: usize = 12;

fn make_boot_files(lab: &Lab) -> Result<ImagePaths> {
    let boot = lab.boot_folder();
    let network = boot.join("network.yaml");
    std::fs::write(&network, NETWORK)?;
    let parts = image::build_parts(&image::config(kernel::CLOUD, Arch::X86_64)?)?;
    let (url, boot_text) = (lab.url(), text(&boot)?);
    let what = ["media", "build", "--kind", "network", "--kernel", kernel::CLOUD, "--argument", FOR_EMULATION];
    let of = ["--parts", text(&parts)?, "--out", boot_text, "--url", &url, "--network", text(&network)?];
    lab.operator(&[&what[..], &of].concat())?;
    Ok(ImagePaths::below(&boot, Arch::X86_64.name()))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Returns QEMU's option for a network that sends each frame as a datagram between two sockets in a folder.
fn datagrams(folder: &Path, own: &str, other: &str) -> String {
    let path = |name: &str| folder.join(name).display().to_string();
    format!("dgram,id=net0,local.type=unix,local.path={},remote.type=unix,remote.path={}", path(own), path(other))
}

/// Passes frames from one socket to another, changed by `change`. Drops those for which it returns `None`.
fn pass_on(from: UnixDatagram, to: PathBuf, change: fn(&[u8]) -> Option<Vec<u8>>) {
    let mut frame = vec![0; 1 << 16];
    while let Ok(length) = from.recv(&mut frame) {
        if let Some(changed) = frame.get(..length).and_then(change) {
            // Fails until the machine is on and listens.
            let _ = from.send_to(&changed, &to);
        }
    }
}

fn tagged(frame: &[u8]) -> Option<Vec<u8>> {
    let (addresses, rest) = frame.split_at_checked(ADDRESSES)?;
    Some([addresses, &TAG, rest].concat())
}

fn untagged(frame: &[u8]) -> Option<Vec<u8>> {
    let (addresses, rest) = frame.split_at_checked(ADDRESSES)?;
    Some([addresses, rest.strip_prefix(&TAG)?].concat())
}

#[test]
fn a_static_address_on_a_vlan_of_the_medium_enrols_a_machine() -> Result<()> {
    timed("a static address on a VLAN of the medium enrols a machine", || {
        let bench = Bench::with_boot_files(make_boot_files)?;
        bench.register()?;
        // This folder's name is short enough for paths of sockets.
        let mut programs = Programs::new()?;
        let folder = programs.folder().to_owned();
        for (own, to, change) in
            [("of-machine", "site", untagged as fn(&[u8]) -> Option<Vec<u8>>), ("of-site", "machine", tagged)]
        {
            let (from, to) = (UnixDatagram::bind(folder.join(own))?, folder.join(to));
            std::thread::spawn(move || pass_on(from, to, change));
        }
        // QEMU's user network in a process of its own, without a machine.
        let mut site = command("qemu-system-x86_64", ["-machine", "none", "-nodefaults", "-display", "none"]);
        site.args(["-netdev", "user,id=user", "-netdev", &datagrams(&folder, "site", "of-site")]);
        site.args(["-netdev", "hubport,id=a,hubid=1,netdev=user", "-netdev", "hubport,id=b,hubid=1,netdev=net0"]);
        programs.start(site, "site.log")?;

        let netdev = datagrams(&folder, "machine", "of-machine");
        let card = "virtio-net-pci,netdev=net0,mac=52:54:00:7d:2f:01,romfile=";
        let extra = ["-netdev", &netdev, "-device", card].map(str::to_owned).to_vec();
        let machine = MachineConfig { nics: Vec::new(), extra, ..bench.machine() };
        let mut machine = bench.power_on(&machine)?;
        machine.wait_for_console("eth0.120: 10.0.2.77/24 from the settings", LIMIT)?;
        machine.wait_for_console("eth0.120: reached the server", LIMIT)?;
        bench.wait_for(&machine, "enrolled", |node| node.state == NodeState::Enrolled)?;
        Ok(())
    })
}
