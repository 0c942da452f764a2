//! The boot loader of a disk starts a unified kernel image. Its stub, of the first version that supports addons, finds
//! the addon that kernel-args wrote. The arguments in it follow the built-in ones. The same holds for an image that the
//! system's own update installs later.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use qemu_tests::{Bench, LIMIT, bootable_image, step, stream, timed};
use slipway_protocol::{Action, KernelArgs, NodeState, Reboot};
use xtask::host::command::{command, run_quietly};
use xtask::host::debian;
use xtask::lab::qemu::{self, Boot};

const BUILT_IN: &str = "console=ttyS0,115200 slipway.built=in";
const BUILT_LATER: &str = "console=ttyS0,115200 slipway.built=later";
const ARGUMENT: &str = "slipway.added=\"by an addon\"";

#[test]
fn kernel_arguments_reach_a_unified_image_through_an_addon() -> Result<()> {
    timed("kernel arguments reach a unified image through an addon", || {
        let bench = Bench::new()?;
        bench.register()?;
        let Boot::Kernel { vmlinuz, .. } = bench.machine().boot else { bail!("the machine is started by firmware") };
        let programs = debian::unpacked(&debian::SYSTEMD_BOOT)?.join("usr/lib/systemd/boot/efi");
        let stub = std::fs::read(programs.join("linuxx64.efi.stub"))?;
        let kernel = std::fs::read(vmlinuz)?;
        let unified = |version: u32, command_line: &str| -> Result<PathBuf> {
            // systemd-boot starts the latest version.
            let release = format!("ID=test\nVERSION_ID={version}\nPRETTY_NAME=Test\n");
            let sections: [(&str, &[u8]); 3] =
                [(".osrel", release.as_bytes()), (".cmdline", command_line.as_bytes()), (".linux", &kernel)];
            let path = bench.folder().join(format!("test-{version}.efi"));
            std::fs::write(&path, slipway_media::assemble(&stub, &sections)?)?;
            Ok(path)
        };
        let image = bootable_image(bench.folder(), &programs.join("systemd-bootx64.efi"))?;
        run_quietly(&mut command("mmd", ["-i", &partition(&image), "::EFI/Linux"]))?;
        put(&unified(1, BUILT_IN)?, &image)?;

        let (url, digest) = bench.add_image(&std::fs::read(image)?)?;
        let added = KernelArgs { append: vec![ARGUMENT.to_owned()], ..KernelArgs::default() };
        bench.start_run(&[
            stream("system", &url, digest),
            step("arguments", Action::KernelArgs(added)),
            step("leave", Action::Reboot(Reboot {})),
        ])?;
        let machine = bench.power_on(&bench.machine())?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}\n{}", machine.console()?);
        drop(machine);

        let starts_with = |name: &str, built_in: &str| -> Result<()> {
            let machine = bench.machine_with_firmware(&bench.disk());
            let mut machine = qemu::start(&machine, &bench.folder().join(name))?;
            let line = machine.wait_for_line("Kernel command line: ", LIMIT)?;
            let (_, found) = line.split_once("Kernel command line: ").context("a command line")?;
            assert_eq!(found.trim(), format!("{built_in} {ARGUMENT}"));
            Ok(())
        };
        starts_with("installed", BUILT_IN)?;
        put(&unified(2, BUILT_LATER)?, &bench.disk())?;
        starts_with("updated", BUILT_LATER)
    })
}

/// Names the file system at the start of an image as mtools does.
fn partition(image: &Path) -> String {
    format!("{}@@1M", image.display())
}

/// Puts a unified kernel image where systemd-boot looks for it.
fn put(unified: &Path, image: &Path) -> Result<()> {
    run_quietly(command("mcopy", ["-i", &partition(image)]).arg(unified).arg("::EFI/Linux"))
}
