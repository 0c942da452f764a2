//! A system is installed as an image. Then it gets a file and an archive, and a command runs in it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, step, stream, timed};
use slipway_protocol::{Action, NodeState, RunInTarget, UnpackArchive, WriteFile};

const IMAGE_SIZE: &str = "48M";

#[test]
fn an_installed_system_is_changed_from_within_before_it_boots() -> Result<()> {
    timed("an installed system is changed from within before it boots", || {
        let bench = Bench::new()?;
        bench.register()?;
        let tree = bench.folder().join("tree");
        for dir in ["bin", "etc", "proc", "sys", "dev", "run"] {
            fs::create_dir_all(tree.join(dir))?;
        }
        fs::write(tree.join("etc/os-release"), "NAME=small\n")?;
        std::os::unix::fs::symlink("../run/nowhere/resolv.conf", tree.join("etc/resolv.conf"))?;
        copy_shell(&tree)?;
        let system = bench.folder().join("system");
        succeed(Command::new("mkfs.ext4").args(["-q", "-d"]).arg(&tree).arg(&system).arg(IMAGE_SIZE))?;
        let (image, image_digest) = bench.add_image(&fs::read(&system)?)?;

        let brought = bench.folder().join("brought");
        fs::create_dir_all(brought.join("opt"))?;
        fs::write(brought.join("opt/brought"), "from the archive\n")?;
        let archive =
            succeed(Command::new("tar").args(["--owner=7", "--group=8", "-C"]).arg(&brought).args(["-c", "."]))?;
        let (archive, archive_digest) = bench.add_other(&archive)?;

        let write = WriteFile {
            path: "/etc/written".to_owned(),
            content: Some("from the workflow\n".to_owned()),
            ..WriteFile::default()
        };
        let unpack = UnpackArchive { url: archive, digest: Some(archive_digest), ..UnpackArchive::default() };
        let script = "read -r written < /etc/written\nread -r brought < /opt/brought\n\
                      read -r servers < /etc/resolv.conf\n\
                      [ -c /dev/null ] && [ -e /proc/self ] && [ -d /sys/class ]\n\
                      echo \"$WHO: $written, $brought, $servers\" > /told\n";
        let run = RunInTarget {
            script: Some(script.to_owned()),
            environment: BTreeMap::from([("WHO".to_owned(), "slipway".to_owned())]),
            ..RunInTarget::default()
        };
        bench.start_run(&[
            stream("system", &image, image_digest),
            step("write", Action::WriteFile(write)),
            step("unpack", Action::UnpackArchive(unpack)),
            step("run", Action::RunInTarget(run)),
        ])?;
        let machine = bench.power_on(&bench.machine())?;
        let node =
            bench.wait_for(&machine, "done", |node| matches!(node.state, NodeState::Installed | NodeState::Failed))?;
        assert_eq!(node.state, NodeState::Installed, "{node:#?}");
        drop(machine);

        let told = debugfs(&bench.disk(), "cat /told")?;
        assert!(told.starts_with("slipway: from the workflow, from the archive, "), "{told}");
        assert!(debugfs(&bench.disk(), "stat /opt/brought")?.contains("User:     7   Group:     8"));
        let link = debugfs(&bench.disk(), "stat /etc/resolv.conf")?;
        assert!(link.contains("../run/nowhere/resolv.conf"), "{link}");
        Ok(())
    })
}

/// Copies the host's shell and its libraries to the same paths in the tree.
fn copy_shell(tree: &Path) -> Result<()> {
    let shell = Path::new("/bin/sh");
    let listed = String::from_utf8(succeed(Command::new("ldd").arg(shell))?)?;
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries.map(|word| PathBuf::from(word.trim_end_matches(':'))).chain([shell.to_owned()]) {
        let to = tree.join(file.strip_prefix("/")?);
        fs::create_dir_all(to.parent().context("a folder")?)?;
        fs::copy(&file, to).with_context(|| format!("copying {}", file.display()))?;
    }
    Ok(())
}

fn debugfs(disk: &Path, request: &str) -> Result<String> {
    Ok(String::from_utf8(succeed(Command::new("debugfs").args(["-R", request]).arg(disk))?)?)
}

/// Runs a program that must succeed. Returns its output.
fn succeed(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}
