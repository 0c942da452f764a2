//! The boot image: reproducible, complete, and made for one server.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use xtask::image::{self, CMDLINE, ImageConfig, build_image, write_common_archive};
use xtask::{kernel, mkfs};

const CA: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

fn config() -> Result<ImageConfig> {
    Ok(ImageConfig {
        binary: "/bin/true".into(),
        mkfs: mkfs::build()?,
        kernel: kernel::fetch(Some(kernel::CLOUD))?,
        server_url: "https://10.0.2.2:8443".to_owned(),
        ca: CA.to_owned(),
        token: None,
        cmdline: CMDLINE.to_owned(),
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

    let first = build_image(&config, one.path())?;
    let second = build_image(&config, other.path())?;
    for (a, b) in [(&first.vmlinuz, &second.vmlinuz), (&first.initramfs, &second.initramfs), (&first.uki, &second.uki)]
    {
        assert!(fs::read(a)? == fs::read(b)?, "{} and {} differ", a.display(), b.display());
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
fn only_the_tail_of_the_initramfs_depends_on_the_server() -> Result<()> {
    let one = config()?;
    let other =
        ImageConfig { server_url: "https://other:1".to_owned(), token: Some("s3\"cret".to_owned()), ..one.clone() };
    let (first, second) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let first = fs::read(build_image(&one, first.path())?.initramfs)?;
    let second = fs::read(build_image(&other, second.path())?.initramfs)?;
    let same = first.iter().zip(&second).take_while(|(a, b)| a == b).count();
    assert!(first.len() - same < 4096, "only {same} of {} bytes are the same", first.len());

    let tail = String::from_utf8_lossy(&second[same - same.min(512)..]).into_owned();
    let from = tail.find("server: ").context("finding the configuration")?;
    let expected = "server: \"https://other:1\"\ntoken: \"s3\\\"cret\"\nca: |\n  -----BEGIN CERTIFICATE-----\n  MIIB\n";
    assert_eq!(tail[from..].get(..expected.len()), Some(expected));
    Ok(())
}

#[test]
fn the_kernel_image_shows_its_sections_to_objdump() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let paths = build_image(&config()?, folder.path())?;
    let listed = shell("objdump --section-headers \"$1\"", &paths.uki)?;
    let size = |name: &str| {
        let line = listed.lines().find(|line| line.contains(name)).with_context(|| format!("no {name} in {listed}"))?;
        Ok::<_, anyhow::Error>(u64::from_str_radix(line.split_whitespace().nth(2).unwrap_or_default(), 16)?)
    };
    assert_eq!(size(".linux")?, fs::metadata(&paths.vmlinuz)?.len());
    assert_eq!(size(".initrd")?, fs::metadata(&paths.initramfs)?.len());
    assert_eq!(size(".cmdline")?, CMDLINE.len() as u64);
    Ok(())
}

#[test]
fn a_file_that_is_no_ca_is_refused() -> Result<()> {
    let config = ImageConfig { ca: "hello".to_owned(), ..config()? };
    let folder = tempfile::tempdir()?;
    let error = build_image(&config, folder.path()).err().context("it was taken")?;
    assert!(error.to_string().starts_with("reading the CA: it contains no certificate in PEM; "), "{error}");
    Ok(())
}

#[test]
fn the_default_kernel_has_every_driver_of_the_list() -> Result<()> {
    assert_eq!(image::absent_drivers(&kernel::fetch(None)?)?, Vec::<String>::new());
    let of_cloud = image::absent_drivers(&kernel::fetch(Some(kernel::CLOUD))?)?;
    assert!(of_cloud.contains(&"ahci".to_owned()), "{of_cloud:?}");
    Ok(())
}

#[test]
fn a_url_that_no_machine_could_use_is_refused_before_anything_is_built() -> Result<()> {
    let good = [
        "https://install.example:8443",
        "https://install.example",
        "https://192.0.2.1:8443/",
        "https://[2001:db8::1]:8443",
    ];
    for url in good {
        image::check_server_url(url)?;
    }
    let bad = [
        ("foo bar", "it does not begin with https://"),
        ("http://install.example:8443", "it does not begin with https://"),
        ("https://", "it has no host"),
        ("https://:8443", "it has no host"),
        ("https://foo bar", "it has no host"),
        ("https://user@host", "it has no host"),
        ("https://host/path", "it has no host"),
        ("https://host:https", "the part after the host is not a valid port"),
        ("https://host:0", "the part after the host is not a valid port"),
        ("https://host:8443/path", "the part after the host is not a valid port"),
        ("https://[2001:db8::1]8443x", "the part after the host is not a valid port"),
        ("https://2001:db8::1", "the part after the host is not a valid port"),
    ];
    for (url, why) in bad {
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
