//! slipway: the program that runs on the machine.
//!
//! One static file has three roles, chosen by how it is started: PID 1 of the boot image ([`pid1`]), the kernel's
//! `modprobe` ([`drivers`]), and a command line ([`cli`]). PID 1 starts `slipway network` ([`network`]),
//! `slipway installer` ([`installer`]) and `slipway screen` ([`screen`]). ARCHITECTURE.md has the reading order from
//! power-on to the first action.

use std::path::Path;
use std::process::ExitCode;

mod all_disks;
mod cli;
mod confine;
mod drivers;
mod installer;
mod network;
mod pid1;
mod screen;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().peekable();
    let called_as = arguments.next().unwrap_or_default();
    // `slipway in-target` has its own PID namespace, in which it is process 1.
    if std::process::id() == 1 && arguments.peek().is_none_or(|argument| argument != "in-target") {
        pid1::run();
    }
    if Path::new(&called_as).file_name().is_some_and(|name| name == "modprobe") {
        return drivers::modprobe(arguments.map(|a| a.to_string_lossy().into_owned()));
    }
    cli::run()
}
