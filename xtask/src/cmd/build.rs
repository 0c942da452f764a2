//! `cargo xtask build`

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use slipway_parts::Arch;
use xtask::build::binary::{self, Toolchain};
use xtask::build::prepare;
use xtask::host::{files, workspace};

/// Build the static musl binary.
#[derive(Args)]
pub struct Build {
    /// Processor architecture.
    #[arg(long, value_enum, default_value_t)]
    arch: Arch,
    /// Source of the compiler and std [default: rustup if it has or can add the musl target, else Debian's packages].
    #[arg(long, value_enum)]
    toolchain: Option<Toolchain>,
}

impl Build {
    pub fn run(self) -> Result<()> {
        prepare::prepare("cargo xtask build", &[prepare::BINARY], Duration::from_secs(1))?;
        let built = binary::build(self.arch, self.toolchain)?;
        let folder = workspace::root().join("target/slipway").join(self.arch.name());
        files::create_dir(&folder)?;
        let binary = folder.join("slipway");
        // Renamed over the old file instead of overwriting it, because the old one may be running.
        let fresh = folder.join(format!("slipway.{}", std::process::id()));
        fs::copy(&built, &fresh).with_context(|| format!("copying {}", built.display()))?;
        fs::rename(&fresh, &binary).with_context(|| format!("creating {}", binary.display()))?;
        println!("{}  {} bytes, static", binary.display(), fs::metadata(&binary)?.len());
        Ok(())
    }
}
