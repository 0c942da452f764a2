//! `slipway-server`: the server, and the operators' commands on its data folder.

mod cli;

use std::io::ErrorKind;
use std::process::ExitCode;
use std::time::Duration;

use rustix::fs::Mode;
use slipway_protocol::Failure;
use tracing_subscriber::EnvFilter;

/// How long work on files in other threads may continue when the program ends.
const LAST_WORK: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    // The data folder contains keys, so new files are private to their owner, whatever the folder's mode.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let arguments = cli::arguments();
    let filter = EnvFilter::try_from_env("SLIPWAY_LOG").unwrap_or_else(|_| arguments.command.default_log().into());
    cli::log::start(filter, arguments.command.log_format());
    let done = tokio::runtime::Runtime::new().map_err(anyhow::Error::from).and_then(|runtime| {
        let done = runtime.block_on(cli::run(arguments));
        // With a time limit, because a PKCS #11 token that does not answer blocks its thread.
        runtime.shutdown_timeout(LAST_WORK);
        done
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of standard output, such as head(1), has closed it.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slipway-server: {}", Failure::of(&*error).in_one_line());
            let unreached = error.downcast_ref::<cli::Unreached>();
            let check = error.downcast_ref::<cli::CheckFailed>().map(|check| check.status);
            unreached.map(|unreached| unreached.status).or(check).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
