//! `cargo xtask COMMAND`: everything the repository can do besides `cargo build`.

use std::process::ExitCode;

use clap::Parser;

mod cmd;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds slipway and its images, and runs whole machines")]
struct Arguments {
    #[command(subcommand)]
    command: cmd::Command,
}

fn main() -> ExitCode {
    match Arguments::parse().command.run() {
        Ok(()) => {
            xtask::build::prepare::succeeded();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
