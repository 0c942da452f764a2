//! `cargo xtask image`

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use xtask::binary::{self, Arch};
use xtask::image::{self, CMDLINE, ImageConfig, build_image};
use xtask::{kernel, mkfs, prepare};

/// Build kernel, initramfs and unified kernel image for one server.
#[derive(Args)]
pub struct Image {
    /// HTTPS URL of the server, as machines reach it.
    #[arg(long, value_name = "URL")]
    server_url: String,
    /// File with the CA of the server's certificate, in PEM.
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// File with a bootstrap token for the image.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Kernel: `generic` has the drivers of real machines; `cloud` is smaller and only for virtual machines.
    #[arg(long, value_name = "NAME", default_value = "generic")]
    kernel: String,
    /// Command line of the unified kernel image.
    #[arg(long, default_value = CMDLINE)]
    cmdline: String,
    /// Folder for vmlinuz, initramfs and slipway.efi.
    #[arg(long, value_name = "DIR", default_value = "target/slipway/image")]
    out: PathBuf,
}

impl Image {
    pub fn run(self) -> Result<()> {
        // Checked before the build: a machine could not correct a wrong URL or CA.
        image::check_server_url(&self.server_url)?;
        let read = |path: &PathBuf| fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
        let (ca, token) = (read(&self.ca)?, self.token_file.as_ref().map(read).transpose()?);
        image::check_ca(&ca).with_context(|| format!("reading {}", self.ca.display()))?;
        prepare::prepare("cargo xtask image", &[prepare::BINARY, prepare::BOOT_IMAGE], Duration::from_secs(10))?;
        let config = ImageConfig {
            binary: binary::build(Arch::X86_64, None)?,
            mkfs: mkfs::build()?,
            kernel: kernel::fetch(Some(&self.kernel))?,
            server_url: self.server_url,
            ca,
            token: token.map(|token| token.trim().to_owned()),
            cmdline: self.cmdline,
            date: image::source_date()?,
        };
        let absent = image::absent_drivers(&config.kernel)?;
        if !absent.is_empty() {
            println!("kernel {} has no drivers for {}", config.kernel.release, absent.join(", "));
            println!("for real machines, build the image with --kernel generic");
        }
        let paths = build_image(&config, &self.out)?;
        for path in [&config.binary, &paths.vmlinuz, &paths.initramfs, &paths.uki] {
            println!("{:>10} bytes  {}", fs::metadata(path)?.len(), path.display());
        }
        Ok(())
    }
}
