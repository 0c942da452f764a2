//! `cargo xtask manual`

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use xtask::build::prepare;
use xtask::check::manual;

/// Build the manual as web pages, with option tables from the types.
#[derive(Args)]
pub struct Manual;

impl Manual {
    pub fn run(self) -> Result<()> {
        prepare::prepare("cargo xtask manual", &[prepare::MANUAL], Duration::from_secs(5))?;
        for page in manual::fill_in_options()? {
            println!("new tables in {}", page.display());
        }
        println!("{}", manual::build()?.join("index.html").display());
        Ok(())
    }
}
