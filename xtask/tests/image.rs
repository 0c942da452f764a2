//! The parts of the boot image: reproducible and complete.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use slipway_parts::{Arch, Parts};
use slipway_protocol::node::rare_drivers::{DIGEST_FILE, INDEX, MAX_INDEX_BYTES, PACK, RareDrivers};
use xtask::build::image::{self, PartsConfig, build_parts, write_common_archive};
use xtask::build::{coverage, kernel, mkfs, modules, rare_drivers};
use xtask::host::workspace;

fn config() -> Result<PartsConfig> {
    Ok(PartsConfig {
        arch: Arch::X86_64,
        binary: "/bin/true".into(),
        mkfs: mkfs::build(Arch::X86_64)?,
        kernel: kernel::fetch(Some(kernel::CLOUD), Arch::X86_64)?,
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
    assert!(!parts.about.components.iter().any(|component| component.name.starts_with("firmware-")));
    let kernel = parts.about.components.iter().find(|component| component.name.starts_with("linux-image-"));
    assert!(kernel.is_some_and(|kernel| kernel.version.starts_with("6.")), "{kernel:?}");
    Ok(())
}

#[test]
fn the_parts_for_real_machines_name_their_firmware() -> Result<()> {
    let kernel = kernel::fetch(None, Arch::X86_64)?;
    let config = PartsConfig { kernel, kernel_name: kernel::GENERIC.to_owned(), ..config()? };
    let parts = Parts::open(&build_parts(&config)?.join("x86_64-generic"))?;
    let firmware = parts.about.components.iter().filter(|component| component.name.starts_with("firmware-"));
    let names: Vec<&str> = firmware.filter(|it| !it.version.is_empty()).map(|it| it.name.as_str()).collect();
    for name in ["firmware-bnx2", "firmware-bnx2x", "firmware-qlogic"] {
        assert!(names.contains(&name), "no {name} among {names:?}");
    }
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
    assert_eq!(image::absent_drivers(&kernel::fetch(None, Arch::X86_64)?)?, Vec::<String>::new());
    assert_eq!(
        modules::select(&kernel::fetch(None, Arch::X86_64)?, modules::RARE_DRIVERS)?.absent,
        Vec::<String>::new()
    );
    let of_cloud = image::absent_drivers(&kernel::fetch(Some(kernel::CLOUD), Arch::X86_64)?)?;
    assert!(of_cloud.contains(&"ahci".to_owned()), "{of_cloud:?}");
    Ok(())
}

#[test]
fn each_rare_driver_is_in_the_pack_with_all_it_needs() -> Result<()> {
    let kernel = kernel::fetch(None, Arch::X86_64)?;
    let rare = rare_drivers::build(&kernel)?.context("a pack")?;
    let index: RareDrivers = serde_json::from_slice(&rare.index)?;
    index.check(&kernel.release)?;
    println!("{} modules, {} firmware files, {} bytes", index.modules.len(), index.firmware.len(), rare.pack.len());
    println!("{} bytes of index", rare.index.len());
    assert!(rare.index.len() as u64 <= MAX_INDEX_BYTES && rare.pack.len() < 14_000_000);

    let (image, listed) =
        (modules::select(&kernel, modules::DRIVERS)?, modules::select(&kernel, modules::RARE_DRIVERS)?);
    let folder = tempfile::tempdir()?;
    let field = |path: &Path, field: &str| -> Result<Vec<String>> {
        let said = Command::new("modinfo").args(["--field", field]).arg(path).output()?.stdout;
        Ok(String::from_utf8(said)?.split(['\n', ',']).filter(|it| !it.is_empty()).map(str::to_owned).collect())
    };
    for file in listed.files.difference(&image.files) {
        let path = kernel.modules().join(file);
        let mut ids = field(&path, "alias")?;
        ids.retain(|id| id.starts_with("pci:"));
        let name = modules::name_of(file);
        let Some(module) = index.modules.get(&name) else {
            assert!(ids.is_empty(), "{name} drives {ids:?} and is not in the pack");
            continue;
        };
        let mut aliases = module.aliases.clone();
        ids.sort();
        aliases.sort();
        assert_eq!(aliases, ids, "{name}");
        let depends = field(&path, "depends")?;
        let missing = depends.iter().find(|needed| !module.needs.contains(&needed.replace('-', "_")));
        assert_eq!(missing, None, "{name}");
        let order: Vec<&str> = index.in_order(&[&name], |_| false).into_iter().map(|(name, _)| name).collect();
        assert_eq!(order.last(), Some(&name.as_str()));
        // What machines get from the pack is the kernel's own file, with its signature.
        let (start, size) = (usize::try_from(module.piece.offset)?, usize::try_from(module.piece.size)?);
        let packed = folder.path().join("packed");
        fs::write(&packed, &rare.pack[start..start + size])?;
        let plain = Command::new("zstd").args(["-dc"]).arg(&packed).output()?.stdout;
        assert!(plain == fs::read(&path)? && plain.len() as u64 == module.piece.unpacked, "{name}");
    }
    for (module, firmware) in [("e100", "e100/d102e_ucode.bin"), ("qla2xxx", "ql2500_fw.bin")] {
        assert!(index.modules[module].firmware.iter().any(|file| file == firmware), "{module} without {firmware}");
    }
    Ok(())
}

#[test]
fn the_image_has_the_digest_of_the_pack_beside_it() -> Result<()> {
    let folder = build_parts(&config()?)?;
    let parts = Parts::open(&folder.join("x86_64-cloud"))?;
    let rare = parts.rare_drivers.context("a pack")?;
    let script = format!("zstd --decompress --stdout \"$1\" | cpio --extract --quiet --to-stdout {DIGEST_FILE}");
    let digest = shell(&script, &folder.join("x86_64-cloud/initramfs"))?;
    assert_eq!(digest.trim(), slipway_parts::sha256(&rare.index));
    assert_eq!(rare.files().map(|(name, _)| name), [INDEX, PACK]);
    Ok(())
}

/// Maximum size in bytes of the compressed initramfs for physical machines, without the program: 16 MB for both, of
/// which the program takes at most 2.5 MB.
const MOST_BYTES: u64 = 13_500_000;

#[test]
fn the_archive_for_real_machines_fits_and_has_firmware_with_licences() -> Result<()> {
    let config = PartsConfig { kernel: kernel::fetch(None, Arch::X86_64)?, ..config()? };
    let folder = tempfile::tempdir()?;
    let archive = write_common_archive(&config, folder.path())?;
    let bytes = fs::metadata(&archive)?.len();
    println!("{bytes} bytes without the program");
    assert!(bytes <= MOST_BYTES, "{bytes} bytes");

    let listed = shell("zstd --decompress --stdout \"$1\" | cpio --list --quiet", &archive)?;
    let names: Vec<&str> = listed.lines().collect();
    for name in [
        "lib/firmware/bnx2/bnx2-mips-09-6.2.1b.fw",
        "lib/firmware/bnx2x/bnx2x-e2-7.13.21.0.fw",
        "lib/firmware/qed/qed_init_values_zipped-8.59.1.0.bin",
        "lib/firmware/intel/ice/ddp/ice.pkg",
        "lib/firmware/rtl_nic/rtl8168h-2.fw",
        "usr/share/doc/firmware/firmware-bnx2x",
        "usr/share/doc/firmware/firmware-qlogic",
    ] {
        assert!(names.contains(&name), "no {name} in the archive");
    }
    Ok(())
}

#[test]
fn an_archive_for_virtual_machines_has_no_firmware() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let archive = write_common_archive(&config()?, folder.path())?;
    let bytes = fs::metadata(&archive)?.len();
    println!("{bytes} bytes without the program");
    assert!(bytes <= 4_100_000, "{bytes} bytes");
    let listed = shell("zstd --decompress --stdout \"$1\" | cpio --list --quiet", &archive)?;
    assert!(!listed.lines().any(|name| name.starts_with("lib/firmware")), "{listed}");
    Ok(())
}

#[test]
fn the_coverage_of_known_devices_does_not_fall() -> Result<()> {
    let path = workspace::root().join("initramfs/pci-coverage.txt");
    let text = fs::read_to_string(&path)?;
    let (shares, names) = coverage::of_kernel(&kernel::fetch(None, Arch::X86_64)?, &text)?;
    let table = coverage::table(&shares, &names);
    println!("{table}");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let comment: String =
            text.lines().filter(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
        fs::write(&path, comment + &table)?;
        return Ok(());
    }
    for (key, before) in coverage::parse(&text)? {
        let now = shares.get(&key).cloned().unwrap_or_default();
        assert!(now.image >= before.image, "{key:?}: {now:?} of what was {before:?}");
        assert!(now.image + now.rare >= before.image + before.rare, "{key:?}: {now:?} of what was {before:?}");
    }
    Ok(())
}

#[test]
fn a_url_that_no_machine_could_use_is_refused_before_anything_is_built() -> Result<()> {
    for (url, why) in
        [("http://install.example:8443", "does not begin with https://"), ("https://host:0", "is not a port")]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(["image", "--server-url", url, "--ca", "/nowhere/ca.pem"])
            .output()?;
        let said = String::from_utf8(output.stderr)?;
        assert!(
            !output.status.success() && said.contains(why) && said.contains("write it as https://"),
            "{url}: {said}"
        );
    }
    Ok(())
}
