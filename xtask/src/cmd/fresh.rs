//! `cargo xtask fresh`: the README's commands on a machine that has never seen the project.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use xtask::build::prepare;
use xtask::check::fresh;
use xtask::host::{files, workspace};

/// Run the README's commands on a machine that has never seen the project.
///
/// The machine is a Debian in a folder with git, a Rust toolchain, an empty home and an empty cache, and a clone of the
/// last commit. Only downloads are kept between runs. Needs root.
#[derive(Args)]
pub struct Fresh {
    /// Only the commands that contain this word, such as `demo` [default: all].
    word: Option<String>,
    /// Share this cache folder with the machine. It takes longest to build.
    #[arg(long, value_name = "NAME", value_parser = fresh::SLOWEST)]
    lend: Vec<String>,
    /// Keep the machine's folder.
    #[arg(long)]
    keep: bool,
}

impl Fresh {
    pub fn run(self) -> Result<()> {
        let readme = workspace::root().join("README.md");
        let text = files::read_text(&readme)?;
        let mut commands = fresh::commands(&text);
        commands.retain(|command| self.word.as_ref().is_none_or(|word| command.split(' ').any(|part| part == word)));
        if commands.is_empty() {
            bail!(
                "looking for commands with {:?} in {}: no command matches",
                self.word.unwrap_or_default(),
                readme.display()
            );
        }
        let tests = commands.iter().filter(|command| command.ends_with("test")).count() as u64;
        let itself = Duration::from_secs(60 * (15 + 60 * tests));
        prepare::prepare("cargo xtask fresh", &[prepare::FRESH_ROOT], itself)?;
        let lent: Vec<_> =
            fresh::SLOWEST.into_iter().filter(|name| self.lend.iter().any(|lent| lent == name)).collect();
        let machine = fresh::Machine::new(&workspace::root().join("target/slipway/fresh"), &lent)?;
        let lent =
            if lent.is_empty() { String::new() } else { format!(" that shares {} with this host", lent.join(", ")) };
        let mut told = Vec::new();
        for command in &commands {
            println!("on a fresh machine{lent}: {command}");
            let took = machine.run_in_clone(command)?;
            told.push(format!("on a fresh machine{lent}: {command}: done in {} s", took.as_secs()));
        }
        told.iter().for_each(|line| println!("{line}"));
        if self.keep {
            println!("the machine is in {}", machine.keep().display());
        }
        Ok(())
    }
}
