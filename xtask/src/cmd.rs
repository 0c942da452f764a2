//! The commands of `cargo xtask`, one per file.

use clap::Subcommand;

mod bench;
mod build;
mod cache;
mod demo;
mod dist;
mod fresh;
mod fuzz;
mod image;
mod manual;
mod target_image;
mod test;
mod torture;

/// The commands of `cargo xtask`.
#[derive(Subcommand)]
pub enum Command {
    /// Measure slipway against other tools and against the limit of this machine.
    Bench(bench::Bench),
    /// Build the static musl binary.
    Build(build::Build),
    /// List what is cached, or remove what has not been used for a while.
    Cache(cache::Cache),
    /// Build kernel, initramfs and unified kernel image for one server.
    Image(image::Image),
    /// Install a real Debian on an empty machine, from power-on to its report that it runs.
    Demo(demo::Demo),
    /// Make the files of a release: programs, parts of boot images, Debian packages.
    Dist(dist::Dist),
    /// Run the README's commands on a machine that has never seen the project.
    Fresh(fresh::Fresh),
    /// Fuzz the parsers of untrusted data.
    Fuzz(fuzz::Fuzz),
    /// Build the manual as web pages.
    Manual(manual::Manual),
    /// Run every check.
    Test(test::Test),
    /// Cut the power while disks are written, a thousand times.
    Torture(torture::Torture),
    /// Build the small Debian images that the demo and the tests install.
    TargetImage(target_image::TargetImage),
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Bench(command) => command.run(),
            Command::Build(command) => command.run(),
            Command::Cache(command) => command.run(),
            Command::Dist(command) => command.run(),
            Command::Fresh(command) => command.run(),
            Command::Fuzz(command) => command.run(),
            Command::Image(command) => command.run(),
            Command::Demo(command) => command.run(),
            Command::Manual(command) => command.run(),
            Command::Test(command) => command.run(),
            Command::Torture(command) => command.run(),
            Command::TargetImage(command) => command.run(),
        }
    }
}
