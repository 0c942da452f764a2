//! Runs one action by hand: `slipway action NAME ...`, with a progress bar on a terminal and plain lines elsewhere.

use std::process::ExitCode;

use anyhow::Result;
use slipway_actions::{Done, Host, Next};
use slipway_protocol::{Failure, printable};

pub use arguments::ActionArguments;
use arguments::{ByHand, Overwritten};
pub use confirm::confirm;
use display::Display;

mod arguments;
mod confirm;
mod display;

/// Runs the action and prints the result. Exit status 0 only if it succeeded.
pub fn run(arguments: ActionArguments) -> Result<ExitCode> {
    super::log::start(None, None);
    let json = arguments.json;
    match arguments.by_hand().and_then(|by_hand| act(by_hand, json)) {
        Err(error) if json => {
            display::print_json(&serde_json::json!({ "failed": Failure::of(&*error) }));
            Ok(ExitCode::FAILURE)
        }
        result => result,
    }
}

fn act(ByHand { action, overwritten, host }: ByHand, json: bool) -> Result<ExitCode> {
    let machine = Host::new(host);
    if let Some(Overwritten { disk, what }) = overwritten {
        confirm(&machine, &disk, &what)?;
    }
    let mut display = Display::new(json);
    let result = slipway_actions::run(&action, &machine, &mut |report| display.report(&report));
    display.finish();
    let Done { outcome, next } = result?;
    if json {
        display::print_json(&serde_json::json!({ "succeeded": outcome }));
        return Ok(ExitCode::SUCCESS);
    }
    for warning in &outcome.warnings {
        super::print_stderr(&format!("warning: {warning}"));
    }
    super::print(&format!("{}\n", printable::line(&outcome.summary)))?;
    match next {
        Next::Continue => {}
        Next::Reboot => super::print("restart the machine to continue\n")?,
        Next::Kexec => super::print("start it with systemctl kexec, or with kexec -e after a sync\n")?,
    }
    Ok(ExitCode::SUCCESS)
}
