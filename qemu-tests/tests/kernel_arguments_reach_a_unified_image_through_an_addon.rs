//! A disk whose boot loader starts a unified kernel image: what kernel-args puts beside it is found by its stub, of the first
//! version that looks for it, and reaches the kernel behind what the image has built in.

use anyhow::{Context, Result, bail};
use qemu_tests::{Bench, LIMIT, bootable_image, step, stream, timed};
use slipway_protocol::{Action, KernelArgs, NodeState, Reboot};
use xtask::command::{command, run_quietly};
use xtask::qemu::{Boot, Machine};
use xtask::{debian, uki};

const BUILT_IN: &str = "console=ttyS0,115200 slipway.built=in";
const ARGUMENT: &str = "slipway.added=\"by an addon\"";

#[test]
fn kernel_arguments_reach_a_unified_image_through_an_addon() -> Result<()> {
    timed("kernel arguments reach a unified image through an addon", || {
        let bench = Bench::new()?;
        bench.register()?;
        let Boot::Kernel { vmlinuz, .. } = bench.machine().boot else { bail!("the machine is started by firmware") };
        let programs = debian::unpacked(&debian::SYSTEMD_BOOT)?.join("usr/lib/systemd/boot/efi");
        let stub = std::fs::read(programs.join("linuxx64.efi.stub"))?;
        let (release, kernel) = (b"ID=test\nVERSION_ID=1\nPRETTY_NAME=Test\n", std::fs::read(vmlinuz)?);
        let unified = bench.folder().join("unified");
        let sections: [(&str, &[u8]); 3] =
            [(".osrel", release), (".cmdline", BUILT_IN.as_bytes()), (".linux", &kernel)];
        std::fs::write(&unified, uki::assemble(&stub, &sections)?)?;
        let image = bootable_image(bench.folder(), &programs.join("systemd-bootx64.efi"))?;
        let partition = format!("{}@@1M", image.display());
        run_quietly(&mut command("mmd", ["-i", &partition, "::EFI/Linux"]))?;
        run_quietly(command("mcopy", ["-i", &partition]).arg(&unified).arg("::EFI/Linux/test-1.efi"))?;

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

        let mut machine =
            Machine::start(&bench.machine_with_firmware(&bench.disk()), &bench.folder().join("installed"))?;
        machine.wait_for_console("Kernel command line: ", LIMIT)?;
        machine.wait_for_console("\n", LIMIT)?;
        let console = machine.console()?;
        let found = console.lines().find_map(|line| Some(line.split_once("Kernel command line: ")?.1));
        assert_eq!(found.context("a command line")?.trim(), format!("{BUILT_IN} {ARGUMENT}"));
        Ok(())
    })
}
