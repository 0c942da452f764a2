//! `cargo xtask target-image`

use anyhow::Result;
use clap::Args;

/// Build the small Debian image that the demo and the tests install.
#[derive(Args)]
pub struct TargetImage {}

impl TargetImage {
    pub fn run(self) -> Result<()> {
        let image = xtask::target_image::build()?;
        println!("{}", serde_json::to_string_pretty(&image)?);
        Ok(())
    }
}
