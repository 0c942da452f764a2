//! Runs one action by hand: `slipway action NAME ...`, with a progress bar on a terminal and plain lines elsewhere.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use slipway_actions::{Done, Host, Next};
use slipway_protocol::shared::printable;
use slipway_protocol::{Action, Failure};

pub use arguments::ActionArguments;
use arguments::{ByHand, Overwritten};
pub use confirm::confirm;
use display::Display;

mod arguments;
mod confirm;
mod display;
mod signals;

/// Runs the action and prints the result. The exit status is 0 only if it succeeded.
pub fn run(arguments: ActionArguments) -> Result<ExitCode> {
    super::log::start(None, None);
    let (json, timeout) = (arguments.json, arguments.timeout);
    match arguments.by_hand().and_then(|by_hand| act(by_hand, json, timeout)) {
        Err(error) if json => {
            let mut failure = Failure::of(&*error);
            failure.causes.extend(super::log::advice(&error).map(str::to_owned));
            super::print_json(&serde_json::json!({ "failed": failure }).to_string())?;
            Ok(ExitCode::FAILURE)
        }
        result => result,
    }
}

fn act(ByHand { action, overwritten, host }: ByHand, json: bool, timeout: Option<Duration>) -> Result<ExitCode> {
    let cancel = host.cancel.clone();
    let machine = Host::new(host);
    if let Some(Overwritten { disk, what }) = overwritten {
        confirm(&machine, &disk, &what)?;
    }
    // Set up only now, so that Ctrl-C at the question above ends slipway immediately, and the time limit does not
    // include the question.
    let stopped = signals::stop_on_signal(cancel.clone());
    if let Some(limit) = timeout {
        stopped.after(limit, cancel);
    }
    let mut display = Display::new(json);
    let result = slipway_actions::run(&action, &machine, &mut |report| display.report(&report));
    display.finish();
    let Done { outcome, next } = match (result, stopped.by()) {
        (Ok(done), _) => done,
        (Err(error), None) => return Err(error.into()),
        (Err(error), Some(stop)) => {
            report_stop(&action, &stop.why, error, json);
            return Ok(stop.status);
        }
    };
    if json {
        super::print_json(&serde_json::json!({ "succeeded": outcome }).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    for warning in &outcome.warnings {
        super::print_stderr(&format!("warning: {warning}"));
    }
    super::print(&format!("{}\n", printable::line(&outcome.summary)))?;
    match next {
        Next::Continue => {}
        Next::Reboot => super::print("restart the machine to continue\n")?,
        Next::Kexec => super::print("start the loaded kernel with systemctl kexec, or with kexec -e after a sync\n")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints that a signal or the time limit stopped the action, and what that means for the disk. Also prints the
/// action's own error, because it may be the cause: Ctrl-C also reaches a command that runs in the installed system.
fn report_stop(action: &Action, why: &str, error: slipway_actions::Error, json: bool) {
    let what = format!("running {}: stopped {why}; {}", action.name(), slipway_actions::if_stopped(action));
    let error = match error {
        slipway_actions::Error::Cancelled => anyhow::Error::msg(what),
        error => anyhow::Error::from(error).context(what),
    };
    match json {
        true => display::print_json(&serde_json::json!({ "failed": Failure::of(&*error) })),
        false => super::log::fatal(&error),
    }
}
