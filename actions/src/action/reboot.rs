//! `reboot`: asks for a reboot into the installed system. The caller reboots after the last report was accepted.

use slipway_protocol::Outcome;

use crate::action::{Done, Next};

pub(crate) fn run() -> Done {
    let summary = "ready to start the installed system".to_owned();
    Done { outcome: Outcome { summary, ..Outcome::default() }, next: Next::Reboot }
}
