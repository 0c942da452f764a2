//! `kexec`: loads the installed kernel into memory, so that it can be started without going through the firmware. The
//! caller starts it after the last report was accepted.

mod find;
mod image;
mod located;
mod refusal;

use std::ffi::CString;
use std::io;

use slipway_protocol::{Kexec, Outcome};

use crate::action::{Done, Next};
use crate::disk::choose;
use crate::disk::open::Access;
use crate::error::{BootError, Error};
use crate::machine::Machine;
use crate::report::{Report, Tell};
use find::Startable;

pub(crate) fn run(inputs: &Kexec, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    let Startable { title, path, kernel, initrd, cmdline } = find::find(&disk, inputs, machine.cancel())?;
    machine.cancel().check()?;
    report(Report::Note(format!("the installed system starts {path} ({title}) with {cmdline}")));
    let loaded = CString::new(cmdline)
        .map_err(io::Error::from)
        .and_then(|cmdline| machine.load_kernel(&kernel, initrd.as_ref(), &cmdline));
    if let Err(source) = loaded {
        let reason = refusal::reason(&source, &refusal::Policy::of_running_kernel(machine.setup().is_operating_system));
        return Err(BootError::LoadKernel { kernel: path, reason, source }.into());
    }
    let summary = format!("loaded {path} ({title}), to be started without the firmware");
    Ok(Done { outcome: Outcome { summary, ..Outcome::default() }, next: Next::Kexec })
}
