//! The command line: the two children of PID 1, the whole flow on a running system, and each action by hand.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use slipway_installer::{config, discover, tls};

mod action;
mod disks;
mod install;
mod log;
mod measure;
mod probe;
mod report;
mod user_data;

/// Puts an operating system on a bare-metal machine.
#[derive(Parser)]
#[command(name = "slipway", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring up the network; the child of PID 1
    #[command(hide = true)]
    Network(Supervised),
    /// Enrol and work; the child of PID 1
    #[command(hide = true)]
    Installer(install::InstallerArguments),
    /// Run a command in an installed system; the child of run-in-target
    #[command(hide = true)]
    InTarget,
    /// Enrol this running system with a server and do what it says
    Install(install::InstallArguments),
    /// Run one action by hand
    Action(Box<action::ActionArguments>),
    /// List the disks, and which of them hints would lead to
    Disks(disks::DisksArguments),
    /// Measure what one stage of stream-image reaches by itself on this machine, as JSON
    Measure(measure::MeasureArguments),
    /// Show the keys and the inventory this machine would enrol with, as JSON
    Identity,
    /// Show the file systems and partitions on a disk, a partition or an image file; only reads
    Probe(probe::ProbeArguments),
    /// Report how this system boots; started by the unit that the action boot-reporter leaves in a system it installs
    Report,
    /// Check and rewrite cloud-init user-data
    #[command(subcommand)]
    UserData(user_data::UserData),
}

/// What PID 1 tells a child.
#[derive(clap::Args)]
struct Supervised {
    /// How the child before this one ended
    #[arg(long)]
    previous_exit: Option<String>,
}

/// Runs the command and prints the one error there may be, with its causes, once.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    tls::install_provider();
    let result = match arguments.command {
        Command::Network(child) => network(child),
        Command::Installer(arguments) => install::installer(arguments),
        Command::InTarget => Ok(slipway_actions::in_target()),
        Command::Install(arguments) => install::install(arguments),
        Command::Action(arguments) => action::run(*arguments),
        Command::Disks(arguments) => disks::run(arguments),
        Command::Measure(arguments) => measure::run(arguments),
        Command::Identity => identity(),
        Command::Probe(arguments) => probe::run(&arguments),
        Command::Report => report::run(),
        Command::UserData(command) => user_data::run(command),
    };
    result.unwrap_or_else(|error| {
        log::fatal(&error);
        ExitCode::FAILURE
    })
}

/// A runtime for waiting on the network. Blocking work has threads of its own.
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")
}

fn network(child: Supervised) -> Result<ExitCode> {
    log::start(None);
    if let Some(how) = child.previous_exit {
        tracing::warn!("started again, the last one ended: {how}");
    }
    let (config, _) = config::load()?;
    let host = config.server.host_str().context("the server's URL has no host")?.to_owned();
    let port = config.server.port_or_known_default().unwrap_or(443);
    runtime()?.block_on(crate::network::run(&host, port))?;
    Ok(ExitCode::SUCCESS)
}

fn identity() -> Result<ExitCode> {
    let roots = discover::Roots::default();
    let disks = slipway_actions::list_disks(&roots.sys);
    let (inventory, notes) = discover::inventory(&roots, disks);
    for note in notes {
        tell(&format!("note: {note}"));
    }
    let all = serde_json::json!({ "identity": discover::identity(&roots), "inventory": inventory });
    print(&format!("{}\n", serde_json::to_string_pretty(&all)?))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints to standard output. A reader that has seen enough, as in `| head`, is no error.
fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout();
    // A last line without its end would wait until nobody can be told any more that it did not get through.
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("writing to standard output")
        }
        _ => Ok(()),
    }
}

/// Tells a line on standard error. Whether anybody reads it must not matter to a disk that is being written.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", shown(line));
}

/// A line as it may reach a terminal: what a disk, an archive or a server says of itself may hold what a terminal obeys.
fn shown(line: &str) -> String {
    let harmless = |c: char| match (c.is_control(), c.is_whitespace()) {
        (false, _) => c,
        (true, true) => ' ',
        (true, false) => '?',
    };
    line.chars().map(harmless).collect()
}

/// Reads a file named on the command line.
fn read_file(path: &PathBuf) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}
