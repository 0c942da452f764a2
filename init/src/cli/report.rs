//! `slipway report`: run by a systemd unit in the installed system.

use std::process::ExitCode;

use anyhow::{Context, Result};
use slipway_actions::{load_kernel, unload_kernel};
use slipway_installer::agent;
use slipway_installer::boot_report::{self, End, Pace, Surroundings};
use tracing::info;

#[derive(clap::Args)]
pub struct ReportArguments {
    /// Remove the reporter and its agent from this system, and tell the server
    #[arg(long)]
    remove: bool,
}

/// Reports this boot, then stays as the agent of the system or removes the reporter. An error of the report is not an
/// error of the command.
pub fn run(arguments: &ReportArguments) -> Result<ExitCode> {
    super::log::start(None, None);
    let surroundings = Surroundings::default();
    // The start is counted before anything that may fail, because systemd restarts the unit on failure.
    let may_start = boot_report::may_start(&surroundings);
    let config = boot_report::configuration(&surroundings);
    if arguments.remove {
        if let Some(config) = config? {
            super::runtime()?.block_on(agent::leave(&config, &surroundings))?;
        }
        info!("removing the reporter, as asked for here");
    } else if let Some(config) = config.or_else(|error| if may_start { Err(error) } else { Ok(None) })? {
        let runtime = super::runtime()?;
        let mut stays = config.agent.is_some();
        // An agent that crashes is started again as long as the system runs.
        if may_start && !(stays && agent::has_begun(&config, &surroundings)) {
            let end = runtime.block_on(boot_report::run(&config, &surroundings, Pace::of(&config)))?;
            stays &= end != End::NotAwaited;
            info!("{}; {}", sentence(end), if stays { "staying as its agent" } else { "removing the reporter" });
        }
        if let Some(settings) = config.agent.clone().filter(|_| stays) {
            runtime.block_on(agent::run(config, &settings, &surroundings, agent::Pace::default()))?;
            info!("the server wants no agent of this system; removing it");
        }
    }
    boot_report::remove(&surroundings.root);
    Ok(ExitCode::SUCCESS)
}

fn sentence(end: End) -> &'static str {
    match end {
        End::Healthy => "the system runs and the server knows it",
        End::NotAwaited => "the server does not expect reports of this system",
        End::TimeIsUp => "the time limit for reports is reached",
    }
}

/// Restarts this system into slipway. What it says is what the task printed.
pub fn boot_slipway() -> Result<ExitCode> {
    let surroundings = Surroundings::default();
    let config = boot_report::configuration(&surroundings)?.context("restarting into slipway: there is no agent")?;
    super::runtime()?.block_on(agent::boot_slipway(&config, &surroundings, load_kernel, unload_kernel))?;
    Ok(ExitCode::SUCCESS)
}
