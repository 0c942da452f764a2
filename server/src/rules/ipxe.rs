//! iPXE scripts, from the templates in `ipxe/`.

use slipway_protocol::{AgentBoot, NodeState, RunState};

const INSTALL: &str = include_str!("../../../ipxe/install.ipxe");
const DISK: &str = include_str!("../../../ipxe/disk.ipxe");
const UNSUPPORTED: &str = include_str!("../../../ipxe/unsupported.ipxe");

/// The script that every machine fetches first.
pub const FIRST: &str = include_str!("../../../ipxe/first.ipxe");

/// What the server knows about the machine that requests a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// The machine is no node, or the identifiers in its request do not tell which node it is.
    No,
    /// The machine is a node, judged by the identifiers in its request.
    Node {
        /// State of the node.
        state: NodeState,
        /// State of the node's newest run, if it has one.
        run: Option<RunState>,
        /// Whether an operator asked for it to boot slipway.
        is_asked: bool,
    },
}

/// Returns the script for a machine. `build_arch` is iPXE's own architecture, from its setting `buildarch`. `place` is
/// the path of the machine's files below `/boot/`, if it is not the name of the architecture.
pub fn script(known: &Known, build_arch: &str, place: Option<&str>) -> String {
    if boots_from_disk(known) {
        return DISK.to_owned();
    }
    let Some((arch, serial_console)) = machine(build_arch) else {
        let message = format!("there is no boot image for {:?}", printable(build_arch));
        return UNSUPPORTED.replace("{{message}}", &message);
    };
    INSTALL.replace("{{place}}", place.unwrap_or(arch)).replace("{{serial_console}}", serial_console)
}

/// Returns the name of a machine's architecture, as in uname(2). `None` if there is no boot image for it.
pub fn arch(build_arch: &str) -> Option<&'static str> {
    machine(build_arch).map(|(arch, _)| arch)
}

/// Returns what a running system starts by kexec to be in slipway: what iPXE would start. `None` without such an
/// architecture.
pub fn by_kexec(place: &str, arch: &str) -> Option<AgentBoot> {
    let (_, serial_console) = machine(arch)?;
    let line = INSTALL.lines().find_map(|line| line.strip_prefix("kernel ")?.split_once(" || "));
    let arguments = line?.0.split(' ').skip(2).collect::<Vec<_>>().join(" ");
    Some(AgentBoot {
        kernel: format!("boot/{place}/vmlinuz"),
        initramfs: format!("boot/{place}/initramfs"),
        cmdline: arguments.replace("{{serial_console}}", serial_console),
    })
}

/// Returns whether the machine has nothing to install and boots from its disk.
pub fn boots_from_disk(known: &Known) -> bool {
    let Known::Node { state, run, is_asked: false } = known else { return false };
    match state {
        NodeState::Installed | NodeState::Booting | NodeState::Running | NodeState::Draining => {
            !matches!(run, Some(RunState::Pending | RunState::Running))
        }
        _ => false,
    }
}

/// Returns the folder of boot files, named like the machine in uname(2), and the first serial port. An iPXE for 32-bit
/// BIOS also runs on 64-bit machines and can boot a 64-bit kernel.
fn machine(build_arch: &str) -> Option<(&'static str, &'static str)> {
    match build_arch {
        "x86_64" | "i386" => Some(("x86_64", "ttyS0")),
        "arm64" | "aarch64" => Some(("aarch64", "ttyAMA0")),
        _ => None,
    }
}

/// Makes text from a request safe for a line of a script: keeps at most 32 letters, digits, hyphens and underscores.
fn printable(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(state: NodeState, run: Option<RunState>) -> Known {
        Known::Node { state, run, is_asked: false }
    }

    #[test]
    fn only_a_machine_with_nothing_to_install_boots_from_its_disk() {
        use NodeState as N;
        use RunState as R;
        let table = [
            (Known::No, false),
            (node(N::Registered, None), false),
            (node(N::Held, None), false),
            (node(N::Enrolled, None), false),
            (node(N::Enrolled, Some(R::Pending)), false),
            (node(N::Installing, Some(R::Running)), false),
            (node(N::Failed, Some(R::Failed)), false),
            (node(N::Installed, Some(R::Succeeded)), true),
            (node(N::Booting, Some(R::Succeeded)), true),
            (node(N::Running, Some(R::Succeeded)), true),
            (node(N::Running, Some(R::Pending)), false),
            (Known::Node { state: N::Running, run: Some(R::Succeeded), is_asked: true }, false),
        ];
        for (known, disk) in table {
            let script = script(&known, "x86_64", None);
            assert_eq!(script.contains("\nexit 1\n"), disk, "{known:?}\n{script}");
            assert_eq!(script.contains("\nkernel "), !disk, "{known:?}\n{script}");
        }
    }

    #[test]
    fn a_running_system_starts_what_ipxe_would() {
        let boot = by_kexec("x86_64", "x86_64").expect("an architecture");
        assert_eq!((&*boot.kernel, &*boot.initramfs), ("boot/x86_64/vmlinuz", "boot/x86_64/initramfs"));
        assert_eq!(boot.cmdline, "console=tty0 console=ttyS0,115200 panic=30 rootfstype=ramfs");
        assert_eq!(by_kexec("riscv", "riscv"), None);
    }

    #[test]
    fn scripts_are_filled_in() {
        for arch in ["x86_64", "arm64", "riscv\nexit 0"] {
            for known in [Known::No, node(NodeState::Running, None)] {
                let script = script(&known, arch, None);
                assert!(script.starts_with("#!ipxe\n"), "{script}");
                assert!(!script.contains("{{"), "{script}");
                assert!(!script.contains("\nexit 0"), "{script}");
            }
        }
        let of_build = script(&Known::No, "arm64", Some("media/b1/aarch64"));
        assert!(of_build.contains("kernel /boot/media/b1/aarch64/vmlinuz initrd=initramfs "), "{of_build}");
        assert!(of_build.contains("initrd --name initramfs /boot/media/b1/aarch64/initramfs "), "{of_build}");
        let script = script(&Known::No, "arm64", None);
        assert!(script.contains("kernel /boot/aarch64/vmlinuz initrd=initramfs console=tty0 console=ttyAMA0,115200"));
    }
}
