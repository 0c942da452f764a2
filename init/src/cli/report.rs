//! `slipway report`: run by a systemd unit in the installed system.

use std::process::ExitCode;

use anyhow::Result;
use slipway_installer::boot_report::{self, End, Pace, Surroundings};
use tracing::info;

/// Reports this boot, then removes the reporter. An error of the report is not an error of the command.
pub fn run() -> Result<ExitCode> {
    super::log::start(None, None);
    let surroundings = Surroundings::default();
    // The start is counted before anything that may fail, because systemd restarts the unit on failure.
    if boot_report::may_start(&surroundings)
        && let Some(config) = boot_report::configuration(&surroundings)?
    {
        let pace = Pace::of(&config);
        let end = super::runtime()?.block_on(boot_report::run(&config, &surroundings, pace))?;
        info!("{}", sentence(end));
    }
    boot_report::remove(&surroundings.root);
    Ok(ExitCode::SUCCESS)
}

fn sentence(end: End) -> &'static str {
    match end {
        End::Healthy => "the system runs and the server knows it; removing the reporter",
        End::NotAwaited => "the server does not expect reports of this system; removing the reporter",
        End::TimeIsUp => "the time limit for reports is reached; removing the reporter",
    }
}
