//! `cargo xtask dist`

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use slipway_parts::Arch;
use xtask::build::{dist, prepare};

/// Make the files of a release: the server, the parts of boot images, Debian packages, man pages, SBOM and digests.
#[derive(Args)]
pub struct Dist {
    /// Architecture of boot images; may be given several times [default: all]
    #[arg(long = "arch", value_enum)]
    archs: Vec<Arch>,
    /// Folder for the files; it is emptied first
    #[arg(long, value_name = "DIR", default_value = "target/slipway/dist")]
    out: PathBuf,
}

impl Dist {
    pub fn run(self) -> Result<()> {
        let archs = if self.archs.is_empty() { Arch::ALL.to_vec() } else { self.archs };
        let boot_image = match archs.contains(&Arch::Aarch64) {
            true => prepare::BOOT_IMAGE_ARM64,
            false => prepare::BOOT_IMAGE,
        };
        let mut parts = vec![prepare::BINARY, boot_image, prepare::RELEASE];
        if archs.contains(&Arch::Aarch64) {
            parts.push(prepare::BINARY_ARM64);
        }
        prepare::prepare("cargo xtask dist", &parts, Duration::from_secs(3 * 60))?;
        let files = dist::make(&dist::inputs(&archs)?, &self.out)?;
        for file in files.iter().filter(|file| file.parent() == Some(&self.out)) {
            println!("{:>11} bytes  {}", fs::metadata(file)?.len(), file.display());
        }
        Ok(())
    }
}
