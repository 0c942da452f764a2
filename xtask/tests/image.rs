//! The parts of the boot image: reproducible and complete.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use slipway_parts::Parts;
use xtask::image::{self, PartsConfig, build_parts, write_common_archive};
use xtask::{kernel, mkfs};

fn config() -> Result<PartsConfig> {
    Ok(PartsConfig {
        binary: "/bin/true".into(),
        mkfs: mkfs::build()?,
        kernel: kernel::fetch(Some(kernel::CLOUD))?,
        kernel_name: kernel::CLOUD.to_owned(),
        date: 1_767_225_600,
    })
}

fn shell(script: &str, file: &Path) -> Result<String> {
    let output = Command::new("sh").args(["-euc", script, "sh"]).arg(file).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn two_builds_from_nothing_give_the_same_bytes() -> Result<()> {
    let config = config()?;
    let (one, other) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let first = fs::read(write_common_archive(&config, one.path())?)?;
    let second = fs::read(write_common_archive(&config, other.path())?)?;
    assert!(first == second, "the archives of binary and modules differ");
    Ok(())
}

#[test]
fn the_parts_are_what_their_description_says() -> Result<()> {
    let config = config()?;
    let folder = build_parts(&config)?;
    let parts = Parts::open(&folder.join("x86_64-cloud"))?;
    assert_eq!(parts.about.release, config.kernel.release);
    assert!(parts.vmlinuz == fs::read(config.kernel.vmlinuz())?, "the kernel is another one");
    for name in ["slipway", "serde", "systemd-boot-efi", "e2fsprogs", "xfsprogs", "libc6-dev"] {
        let component = parts.about.components.iter().find(|component| component.name == name);
        assert!(component.is_some_and(|component| !component.version.is_empty()), "{name}");
    }
    let kernel = parts.about.components.iter().find(|component| component.name.starts_with("linux-image-"));
    assert!(kernel.is_some_and(|kernel| kernel.version.starts_with("6.")), "{kernel:?}");
    Ok(())
}

#[test]
fn the_initramfs_holds_binary_console_and_modules_with_their_index() -> Result<()> {
    let config = config()?;
    let folder = tempfile::tempdir()?;
    let archive = write_common_archive(&config, folder.path())?;
    let listed = shell("zstd --decompress --stdout \"$1\" | cpio --list --quiet", &archive)?;
    let names: Vec<&str> = listed.lines().collect();
    let modules = format!("lib/modules/{}", config.kernel.release);
    for name in ["init", "bin/slipway", "dev/console", "proc", "sys", "usr/sbin/mke2fs", "usr/sbin/mkfs.xfs"] {
        assert!(names.contains(&name), "no {name} in {listed}");
    }
    for name in
        ["kernel/drivers/block/virtio_blk.ko", "kernel/drivers/virtio/virtio_ring.ko", "modules.dep", "modules.alias"]
    {
        let path = format!("{modules}/{name}");
        assert!(names.contains(&path.as_str()), "no {path} in {listed}");
    }
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(names, sorted);
    Ok(())
}

#[test]
fn the_default_kernel_has_every_driver_of_the_list() -> Result<()> {
    assert_eq!(image::absent_drivers(&kernel::fetch(None)?)?, Vec::<String>::new());
    let of_cloud = image::absent_drivers(&kernel::fetch(Some(kernel::CLOUD))?)?;
    assert!(of_cloud.contains(&"ahci".to_owned()), "{of_cloud:?}");
    Ok(())
}
