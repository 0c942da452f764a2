//! A machine with a kernel under lockdown is to kexec an installed kernel without a signature.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use qemu_tests::{Bench, LIMIT, bootable_image, step, stream, timed};
use slipway_protocol::{Action, Kexec, NodeState};
use xtask::host::command::{command, run_quietly};
use xtask::lab::qemu::{Boot, MachineConfig};

const ENTRY: &str = "title Installed\nlinux /linux\noptions root=/dev/vda1\n";
/// In a PE file (Microsoft, "PE Format"): position of the field with the header's offset, magic number of a 64-bit
/// optional header, and position of the certificate table's entry in that header.
const HEADER_OFFSET: usize = 0x3c;
const PE32_PLUS: [u8; 2] = [0x0b, 0x02];
const CERTIFICATES: usize = 112 + 4 * 8;

#[test]
fn a_kernel_without_a_signature_is_not_started_under_lockdown() -> Result<()> {
    timed("a kernel without a signature is not started under lockdown", || {
        let bench = Bench::new()?;
        bench.register()?;
        let config = bench.machine();
        let Boot::Kernel { vmlinuz, initramfs, cmdline } = config.boot.clone() else {
            bail!("the machine is started by firmware")
        };
        let image = image(&bench, &vmlinuz)?;
        let (url, digest) = bench.add_image(&std::fs::read(image)?)?;
        bench.start_run(&[stream("system", &url, digest), step("leave", Action::Kexec(Kexec::default()))])?;
        let boot = Boot::Kernel { vmlinuz, initramfs, cmdline: format!("{cmdline} lockdown=integrity") };
        let mut machine = bench.power_on(&MachineConfig { boot, ..config })?;
        let node = bench.wait_for(&machine, "failed", |node| node.state == NodeState::Failed)?;
        let run = node.run.context("a run")?;
        let failure = run.steps[1].failure.as_ref().with_context(|| format!("the step: {:#?}", run.steps))?;
        let why = format!("{} {}", failure.reason, failure.causes.join(" "));
        let expect = "the running kernel is locked down (integrity), and starts only kernels whose signature it can \
                      verify; use reboot instead";
        assert!(why.contains(expect), "{failure:#?}");
        machine.wait_for_console("the machine stays up and waits for another run", LIMIT)
    })
}

/// Makes a disk image whose boot loader starts the kernel with its signature removed.
fn image(bench: &Bench, vmlinuz: &Path) -> Result<PathBuf> {
    let mut kernel = std::fs::read(vmlinuz)?;
    let at = kernel.get(HEADER_OFFSET..HEADER_OFFSET + 4).context("a header")?;
    let optional = u32::from_le_bytes(at.try_into()?) as usize + 24;
    ensure!(
        kernel.get(optional..optional + 2) == Some(&PE32_PLUS),
        "{} is not a 64-bit EFI program",
        vmlinuz.display()
    );
    let entry = kernel.get_mut(optional + CERTIFICATES..optional + CERTIFICATES + 8).context("a directory entry")?;
    ensure!(entry.iter().any(|byte| *byte != 0), "{} has no signature", vmlinuz.display());
    entry.fill(0);

    let image = bootable_image(bench.folder(), Path::new(xtask::lab::qemu::firmware::IPXE))?;
    let partition = format!("{}@@1M", image.display());
    let (linux, conf) = (bench.folder().join("linux"), bench.folder().join("installed.conf"));
    std::fs::write(&linux, kernel)?;
    std::fs::write(&conf, ENTRY)?;
    run_quietly(&mut command("mmd", ["-i", &partition, "::loader", "::loader/entries"]))?;
    run_quietly(command("mcopy", ["-i", &partition]).arg(&linux).arg("::linux"))?;
    run_quietly(command("mcopy", ["-i", &partition]).arg(&conf).arg("::loader/entries/installed.conf"))?;
    Ok(image)
}
