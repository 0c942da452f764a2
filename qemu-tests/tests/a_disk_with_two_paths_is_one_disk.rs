//! A disk is behind two controllers, as are disks with two ports and volumes of a storage array. Without a hint it
//! counts as the only disk, and erasing all disks erases it once.

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, DISK_SERIAL, noise, step, stream, timed};
use slipway_protocol::{Action, DiskChoice, DiskHints, EraseDisk, NodeState};
use xtask::lab::qemu::MachineConfig;

const NAME: &str = "5000c500a1b2c3d4";

#[test]
fn a_disk_with_two_paths_is_one_disk() -> Result<()> {
    timed("a disk with two paths is one disk", || {
        let bench = Bench::new()?;
        let image = noise(8 << 20);
        let (url, digest) = bench.add_image(&image)?;
        bench.register()?;
        let all = DiskHints { choose: DiskChoice::All, ..DiskHints::default() };
        let erase = Action::EraseDisk(EraseDisk { disk: all, ..EraseDisk::default() });
        bench.start_run(&[step("erase", erase), stream("write", &url, digest)])?;

        let path = |number: u8| {
            let file = bench.disk();
            let drive = format!("if=none,id=drive{number},format=raw,file.locking=off,file={}", file.display());
            let disk =
                format!("scsi-hd,bus=scsi{number}.0,drive=drive{number},share-rw=on,serial={DISK_SERIAL},wwn=0x{NAME}");
            let controller = format!("virtio-scsi-pci,id=scsi{number}");
            ["-device", &controller, "-drive", &drive, "-device", &disk].map(str::to_owned)
        };
        let config = MachineConfig { disks: Vec::new(), extra: [path(0), path(1)].concat(), ..bench.machine() };
        let machine = bench.power_on(&config)?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}\n{}", machine.console()?);

        let disks = node.inventory.context("an inventory")?.disks;
        let known: Vec<_> = disks.iter().map(|disk| (disk.path.as_str(), disk.other_path_to.as_deref())).collect();
        assert_eq!(known, [("/dev/sda", None), ("/dev/sdb", Some("/dev/sda"))], "{disks:#?}");
        ensure!(disks.iter().all(|disk| disk.wwn == Some(format!("naa.{NAME}"))), "{disks:#?}");
        let steps = node.run.context("a run")?.steps;
        let erased = &steps[0].outcome.as_ref().context("an outcome")?.disks;
        assert_eq!(erased.iter().map(|disk| disk.path.as_str()).collect::<Vec<_>>(), ["/dev/sda"], "{erased:#?}");
        for step in &steps {
            let chose = step.notes.iter().any(|note| note.ends_with("(/dev/sdb is another path to it)"));
            ensure!(chose, "{:#?}", step.notes);
        }
        ensure!(
            machine.console()?.contains("looking at this machine: /dev/sdb is another path to /dev/sda"),
            "the console does not tell"
        );
        ensure!(std::fs::read(bench.disk())?.starts_with(&image), "the image is not on the disk");
        Ok(())
    })
}
