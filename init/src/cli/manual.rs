//! `slipway manual`: writes man pages and shell completions for packages.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use super::Arguments;

/// Writes a man page for each command, and the completions for the shells that have a system folder for them.
pub fn write(folder: &Path) -> Result<ExitCode> {
    let written = || {
        clap_mangen::generate_to(Arguments::command(), folder)?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut Arguments::command(), "slipway", folder)?;
        }
        std::io::Result::Ok(())
    };
    written().with_context(|| format!("writing man pages and completions into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
