//! `cargo xtask target-image`

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use xtask::build::prepare;
use xtask::lab::target_image::{self, System};

/// Build the small Debian images that the demo and the tests install.
#[derive(Args)]
pub struct TargetImage {}

impl TargetImage {
    pub fn run(self) -> Result<()> {
        prepare::prepare("cargo xtask target-image", &[prepare::TARGET_IMAGES], Duration::from_secs(1))?;
        for system in System::ALL {
            println!("{}", serde_json::to_string_pretty(&target_image::build(system)?)?);
        }
        Ok(())
    }
}
