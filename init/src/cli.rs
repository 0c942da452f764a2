//! The command line: the children of PID 1, an installation from a running system, and each action by hand.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, ensure};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use nix::sys::signal::SigSet;
use slipway_installer::config;
use slipway_installer::discover;
use slipway_installer::server::tls;
use slipway_protocol::shared::given::{is_blank, options};
use slipway_protocol::shared::printable;

mod action;
mod disks;
mod install;
mod log;
#[cfg(feature = "manual")]
mod manual;
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
    /// Bring up the network; run by PID 1
    #[command(hide = true)]
    Network(Supervised),
    /// Enrol and run workflows; run by PID 1
    #[command(hide = true)]
    Installer(install::InstallerArguments),
    /// Draw the machine's own screen; run by PID 1
    #[command(hide = true)]
    Screen(Supervised),
    /// Run a command in an installed system; run by run-in-target
    #[command(hide = true)]
    InTarget,
    /// Write man pages and completions into an empty folder
    #[cfg(feature = "manual")]
    #[command(hide = true)]
    Manual {
        /// Folder for the files
        folder: PathBuf,
    },
    /// Enrol this running system with a server and run its workflow
    Install(install::InstallArguments),
    /// Run one action by hand
    Action(Box<action::ActionArguments>),
    /// List the disks, and show which of them the hints select
    Disks(disks::DisksArguments),
    /// Measure one stage of stream-image alone on this machine, as JSON
    Measure(measure::MeasureArguments),
    /// Show the identity and inventory with which this machine would enrol, as JSON
    Identity,
    /// Show the file systems and partitions on a disk, a partition or an image file; only reads
    Probe(probe::ProbeArguments),
    /// Report how this system boots, and be its agent; run by the unit that the action boot-reporter installs
    Report(report::ReportArguments),
    /// Restart this system into slipway; run by the agent
    #[command(hide = true)]
    BootSlipway,
    /// Check and rewrite cloud-init user-data
    #[command(subcommand)]
    UserData(user_data::UserData),
}

/// Arguments that PID 1 gives a child.
#[derive(clap::Args)]
struct Supervised {
    /// How the previous child ended
    #[arg(long)]
    previous_exit: Option<String>,
}

/// Runs the command. An error is printed once, with its causes.
pub fn run() -> ExitCode {
    let arguments: Arguments = options::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    if matches!(arguments.command, Command::Network(_) | Command::Installer(_) | Command::InTarget) {
        receive_signals();
    }
    tls::install_provider();
    let result = match arguments.command {
        Command::Network(child) => network(child),
        Command::Installer(arguments) => install::installer(arguments),
        Command::Screen(child) => screen(child),
        Command::InTarget => Ok(slipway_actions::in_target()),
        #[cfg(feature = "manual")]
        Command::Manual { folder } => manual::write(&folder),
        Command::Install(arguments) => install::install(arguments),
        Command::Action(arguments) => action::run(*arguments),
        Command::Disks(arguments) => disks::run(arguments),
        Command::Measure(arguments) => measure::run(arguments),
        Command::Identity => identity(),
        Command::Probe(arguments) => probe::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::BootSlipway => report::boot_slipway(),
        Command::UserData(command) => user_data::run(command),
    };
    result.unwrap_or_else(|error| {
        log::fatal(&error);
        ExitCode::FAILURE
    })
}

/// Unblocks all signals in this process. Children of slipway start with the signals blocked that slipway waits for, and
/// programs that they start would inherit the blocked signals.
fn receive_signals() {
    if let Err(error) = SigSet::empty().thread_set_mask() {
        print_stderr(&format!("receiving signals: {error}"));
    }
}

/// Makes an async runtime for network requests. Blocking work uses other threads.
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")
}

fn network(child: Supervised) -> Result<ExitCode> {
    log::start(None, None);
    if let Some(how) = child.previous_exit {
        tracing::warn!("restarted, because the previous network process ended: {how}");
    }
    let loaded = config::load()?;
    let drive = crate::network::prepare(&loaded)?;
    runtime()?.block_on(crate::network::run(loaded, drive))?;
    Ok(ExitCode::SUCCESS)
}

fn screen(child: Supervised) -> Result<ExitCode> {
    log::start(None, None);
    if let Some(how) = child.previous_exit {
        tracing::warn!("restarted, because the previous screen process ended: {how}");
    }
    crate::screen::run()?;
    Ok(ExitCode::SUCCESS)
}

fn identity() -> Result<ExitCode> {
    let roots = discover::Roots::default();
    let disks = slipway_actions::list_disks(&roots.sys);
    let (inventory, notes) = discover::inventory(&roots, disks);
    for note in notes {
        print_stderr(&format!("note: {note}"));
    }
    let all = serde_json::json!({ "identity": discover::identity(&roots), "inventory": inventory });
    print_json(&serde_json::to_string_pretty(&all)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints text to standard output without control characters, because they are not safe on a terminal. Line breaks and
/// tabs stay. A reader that closes the pipe early, such as `| head`, is not an error.
fn print(text: &str) -> Result<()> {
    print_bytes(printable::lines(text).as_bytes())
}

/// Prints JSON to standard output. Control characters are escaped, which is safe on a terminal and does not change the
/// JSON's meaning.
fn print_json(json: &str) -> Result<()> {
    print(&format!("{}\n", printable::json(json)))
}

/// Prints bytes to standard output unchanged.
fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout();
    // Flushed here, because a failure at exit could not be reported.
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("writing to standard output")
        }
        _ => Ok(()),
    }
}

/// Prints a line to standard error. Ignores failures, because they must not stop an action that is writing to a disk.
fn print_stderr(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable::line(line));
}

/// Reads a file named on the command line; `-` is standard input.
fn read_file(path: &PathBuf) -> Result<String> {
    let reading = || format!("reading {}", path.display());
    let bytes = if is_stdin(path) { read_stdin() } else { std::fs::read(path) }.with_context(reading)?;
    let no_text = |_| anyhow!("reading {}: it is not UTF-8 text", path.display());
    let text = String::from_utf8(bytes).map_err(no_text)?;
    ensure!(!is_blank(&text), "reading {}: it is empty", path.display());
    Ok(text)
}

/// Whether the path is `-`, the usual name of standard input.
fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn read_stdin() -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A choice for an option: its name, value and help.
type Choice<T> = (&'static str, T, &'static str);

/// Makes a parser that accepts one of these choices.
fn one_of<T: Copy + Send + Sync + 'static>(choices: &'static [Choice<T>]) -> impl TypedValueParser<Value = T> {
    let names = choices.iter().map(|(name, _, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(names).try_map(|given| {
        choices.iter().find(|(name, ..)| *name == given).map(|(_, value, _)| *value).ok_or("it is not a possible value")
    })
}
