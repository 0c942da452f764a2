//! A medium made with `--require attested`, first in a machine without a TPM, then in one with a TPM.

use std::path::PathBuf;

use anyhow::{Context, Result};
use qemu_tests::tpm::Tpm;
use qemu_tests::{Bench, LIMIT, timed};
use slipway_parts::Arch;
use xtask::build::image::{self, ImagePaths};
use xtask::build::kernel;
use xtask::lab::qemu::{Boot, Machine, MachineConfig};
use xtask::lab::server::FOR_EMULATION;

/// Size in bytes of a capture without a packet (pcap-savefile(5)).
const EMPTY_CAPTURE: u64 = 24;

#[test]
fn a_machine_without_the_required_tpm_sends_nothing() -> Result<()> {
    timed("a machine without the required TPM sends nothing", || {
        let bench = Bench::new()?;
        bench.register()?;
        let out = bench.folder().join("attested");
        let parts = image::build_parts(&image::config(kernel::CLOUD, Arch::X86_64)?)?;
        let text = |path: &PathBuf| path.to_str().map(str::to_owned).context("a path that is not UTF-8");
        let (out_text, parts) = (text(&out)?, text(&parts)?);
        let kind = ["media", "build", "--kind", "network", "--kernel", kernel::CLOUD, "--require", "attested"];
        let more = ["--argument", FOR_EMULATION, "--parts", &parts, "--out", &out_text];
        bench.lab.operator(&[&kind[..], &more].concat())?;
        let ImagePaths { vmlinuz, initramfs, .. } = ImagePaths::below(&out, Arch::X86_64.name());
        let start = |extra: Vec<String>, name: &str| -> Result<(Machine, PathBuf)> {
            let capture = bench.folder().join(format!("{name}.pcap"));
            // Captures what the machine sends, but not what QEMU's user network sends.
            let dump = format!("filter-dump,id=dump,netdev=net0,queue=rx,file={}", capture.display());
            let boot = Boot::Kernel {
                vmlinuz: vmlinuz.clone(),
                initramfs: initramfs.clone(),
                cmdline: "console=ttyS0,115200".to_owned(),
            };
            let extra = [vec!["-object".to_owned(), dump], extra].concat();
            Ok((bench.power_on(&MachineConfig { boot, extra, ..bench.machine() })?, capture))
        };

        let (mut machine, capture) = start(Vec::new(), "without")?;
        let said = machine.wait_for_line("the boot medium requires a TPM", LIMIT)?;
        assert!(
            said.contains("(require: attested), but this machine has none; nothing is sent to the server"),
            "{said}"
        );
        // The machine looks for the TPM again, in case its driver was late.
        machine.wait_for_console("the boot medium requires a TPM", LIMIT)?;
        assert_eq!(std::fs::metadata(&capture)?.len(), EMPTY_CAPTURE, "{}", machine.console()?);
        drop(machine);

        let tpm = Tpm::start(&bench.folder().join("tpm"))?;
        let (machine, capture) = start(tpm.arguments(), "with")?;
        bench.wait_for(&machine, "enrolled", |node| node.enrolled_at.is_some())?;
        assert!(std::fs::metadata(&capture)?.len() > EMPTY_CAPTURE, "the capture has what a machine sends");
        Ok(())
    })
}
