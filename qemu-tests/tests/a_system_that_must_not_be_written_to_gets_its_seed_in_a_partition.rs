//! A system with a root partition marked read-only stays as in its image. Its seed goes into a new partition in free
//! space. The kernel can read and write that partition.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, step, stream, timed};
use slipway_protocol::{Action, NodeState, NumberOrName, SeedCloudInit, WriteFile};

const MIB: u64 = 1 << 20;
const IMAGE_MIB: u64 = 48;
/// Start and end of the root file system in the image, in MiB.
const ROOT: std::ops::Range<u64> = 1..40;
/// Start of the seed partition on a disk of 256 MiB, in MiB: at the end of the free space.
const SEED: u64 = 251;
const USER_DATA: &str = "#cloud-config\npackages: [nginx]\n";

#[test]
fn a_system_that_must_not_be_written_to_gets_its_seed_in_a_partition() -> Result<()> {
    timed("a system that must not be written to gets its seed in a partition", || {
        let bench = Bench::new()?;
        bench.register()?;
        let image = make_image(bench.folder())?;
        let (url, digest) = bench.add_image(&image)?;
        let (instance_id, user_data) = ("run-7".to_owned(), USER_DATA.to_owned());
        let seed = SeedCloudInit { instance_id, user_data, ..SeedCloudInit::default() };
        let proof = WriteFile {
            partition: Some(NumberOrName::from("cidata")),
            path: "/proof".to_owned(),
            content: Some("by the kernel\n".to_owned()),
            ..WriteFile::default()
        };
        bench.start_run(&[
            stream("system", &url, digest),
            step("seed", Action::SeedCloudInit(seed)),
            step("write", Action::WriteFile(proof)),
        ])?;
        let machine = bench.power_on(&bench.machine())?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}\n{}", machine.console()?);
        drop(machine);

        let disk = bench.disk();
        let verdict = tell(Command::new("sgdisk").arg("--verify").arg(&disk))?;
        assert!(verdict.contains("No problems found"), "{verdict}");
        let mut root = vec![0; ((ROOT.end - ROOT.start) * MIB) as usize];
        File::open(&disk)?.read_exact_at(&mut root, ROOT.start * MIB)?;
        assert!(root[..] == image[(ROOT.start * MIB) as usize..(ROOT.end * MIB) as usize], "the root is as it was");
        assert_eq!(in_seed(&disk, "user-data")?, USER_DATA);
        assert_eq!(in_seed(&disk, "meta-data")?, "instance-id: \"run-7\"\nlocal-hostname: \"m1\"\n");
        assert_eq!(in_seed(&disk, "proof")?, "by the kernel\n");
        Ok(())
    })
}

/// Makes an image with a root partition marked read-only (Discoverable Partitions Specification, partition flags).
fn make_image(folder: &Path) -> Result<Vec<u8>> {
    let (tree, image) = (folder.join("tree"), folder.join("made"));
    fs::create_dir_all(tree.join("etc"))?;
    fs::write(tree.join("etc/os-release"), "NAME=small\n")?;
    File::create(&image)?.set_len(IMAGE_MIB * MIB)?;
    let place = format!("--new=1:{}:{}", ROOT.start * MIB / 512, ROOT.end * MIB / 512 - 1);
    tell(
        Command::new("sgdisk")
            .args([&place, "--typecode=1:8304", "--change-name=1:root", "--attributes=1:set:60"])
            .arg(&image),
    )?;
    let (offset, blocks) = (format!("offset={}", ROOT.start * MIB), format!("{}", (ROOT.end - ROOT.start) * 1024));
    let mut mkfs = Command::new("mkfs.ext4");
    tell(mkfs.args(["-q", "-F", "-b", "1024", "-E", &offset, "-d"]).arg(&tree).arg(&image).arg(blocks))?;
    Ok(fs::read(&image)?)
}

/// Reads a file of the seed with mtools.
fn in_seed(disk: &Path, name: &str) -> Result<String> {
    let image = format!("{}@@{}", disk.display(), SEED * MIB);
    tell(Command::new("mtype").args(["-i", &image, &format!("::{name}")]))
}

/// Runs a program that must succeed. Returns its output.
fn tell(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}
