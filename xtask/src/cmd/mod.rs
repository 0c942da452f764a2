//! The commands, one file each.

use clap::Subcommand;

mod build;

/// What `cargo xtask` can do.
#[derive(Subcommand)]
pub enum Command {
    /// Build the static musl binary.
    Build(build::Build),
}

impl Command {
    /// Carries the command out.
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Build(command) => command.run(),
        }
    }
}
