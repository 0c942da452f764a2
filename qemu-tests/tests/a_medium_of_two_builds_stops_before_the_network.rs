//! A machine that starts the kernel of one build with the initramfs of another, or with a damaged configuration.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use qemu_tests::{Bench, LIMIT, timed};
use slipway_protocol::NodeStatus;
use xtask::lab::qemu::{self, Boot, Machine, MachineConfig};

/// Size in bytes of a capture without a packet (pcap-savefile(5)).
const EMPTY_CAPTURE: u64 = 24;

#[test]
fn a_medium_of_two_builds_stops_before_the_network() -> Result<()> {
    timed("a medium of two builds stops before the network", || {
        let bench = Bench::new()?;
        bench.register()?;
        let Boot::Kernel { vmlinuz, initramfs, cmdline } = bench.machine().boot else {
            bail!("the machine is started by firmware")
        };
        let release = "6.1.0-0-other";
        let other = changed(&bench, &initramfs, "other", &|medium| {
            let at = find(medium, b"\"release\":\"")? + 11;
            // The new release is as long as the old one, so that the archive stays valid.
            let end = at + find(&medium[at..], b"\"")?;
            let mut release = release.as_bytes().to_vec();
            release.resize(end - at, b'x');
            medium.splice(at..end, release);
            Ok(())
        })?;
        let damaged = changed(&bench, &initramfs, "damaged", &|medium| {
            let at = find(medium, b"server: ")? + 12;
            medium[at] ^= 1;
            Ok(())
        })?;
        let start = |initramfs: PathBuf, name: &str| -> Result<(Machine, PathBuf)> {
            let capture = bench.folder().join(format!("{name}.pcap"));
            // Captures what the machine sends, but not what QEMU's user network sends.
            let dump = format!("filter-dump,id=dump,netdev=net0,queue=rx,file={}", capture.display());
            let config = MachineConfig {
                boot: Boot::Kernel { vmlinuz: vmlinuz.clone(), initramfs, cmdline: cmdline.clone() },
                extra: vec!["-object".to_owned(), dump],
                ..bench.machine()
            };
            // Each machine has its own console.
            Ok((qemu::start(&config, &bench.folder().join(format!("machine-{name}")))?, capture))
        };
        let cases = [
            (other, "other", "the initramfs is for kernel 6.1.0-0-other"),
            (damaged, "damaged", "/etc/slipway/config.yaml in the initramfs was changed"),
        ];
        for (initramfs, name, wrong) in cases {
            let (mut machine, capture) = start(initramfs, name)?;
            let said = machine.wait_for_line("does not match its manifest", LIMIT)?;
            assert!(said.contains(wrong) && said.contains("copy all files of one build"), "{said}");
            machine.wait_for_console("does not use its network", LIMIT)?;
            if name == "other" {
                // A minute later the machine repeats it, so it waits. A machine that continues is enrolled by then.
                machine.wait_for_console("does not match its manifest", LIMIT)?;
            }
            assert_eq!(std::fs::metadata(&capture)?.len(), EMPTY_CAPTURE, "{}", machine.console()?);
        }
        let unheard = |node: &NodeStatus| node.last_seen.is_none() && node.claims.is_empty();
        assert!(bench.status()?.iter().all(unheard), "{:#?}", bench.status()?);

        let (machine, capture) = start(initramfs, "whole")?;
        bench.wait_for(&machine, "enrolled", |node| node.enrolled_at.is_some())?;
        assert!(std::fs::metadata(&capture)?.len() > EMPTY_CAPTURE, "the capture has what a machine sends");
        Ok(())
    })
}

/// Copies an initramfs, and changes the copy's last cpio archive, which has the configuration.
fn changed(
    bench: &Bench,
    initramfs: &Path,
    name: &str,
    change: &dyn Fn(&mut Vec<u8>) -> Result<()>,
) -> Result<PathBuf> {
    let mut bytes = std::fs::read(initramfs)?;
    let at = bytes.windows(24).rposition(|window| window == &b"etc/slipway/config.yaml\0"[..]);
    let mut archive = bytes.split_off(at.context("no configuration")?);
    change(&mut archive)?;
    bytes.append(&mut archive);
    let path = bench.folder().join(name);
    std::fs::write(&path, bytes)?;
    Ok(path)
}

fn find(bytes: &[u8], what: &[u8]) -> Result<usize> {
    let found = bytes.windows(what.len()).position(|window| window == what);
    found.with_context(|| format!("{} is not there", String::from_utf8_lossy(what)))
}
