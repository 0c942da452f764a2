//! `enrol-secure-boot`: gives the firmware the site's keys for Secure Boot, or replaces them (UEFI 2.10, section 32.3).
//!
//! The platform key is written last. Until then the firmware is in Setup Mode and starts anything, so a failure on the
//! way leaves a machine that starts as before.

use std::io;

use rustix::io::Errno;
use slipway_formats::efi::signature_list::{self, Signature};
use slipway_protocol::{EnrolSecureBoot, SecureBootUpdate, SecureBootVariable, signed_lists};

use crate::action::Done;
use crate::error::{BootError, Error};
use crate::machine::{Cancel, Machine};
use crate::report::{Report, Tell};
use crate::target::efi::variables::{Variables, global, image_security};

/// The attributes that precede an update in efivarfs (UEFI 2.10, section 8.2.1): non-volatile, accessible at boot and
/// at run time, with time-based authentication; and append.
const AUTHENTICATED: u32 = 0x27;
const APPEND: u32 = 0x40;

/// The content of a variable after its attributes. None if there is no such variable.
type Content = Result<Option<Vec<u8>>, Error>;

/// Functions that read and write the firmware's variables by their file names.
struct Firmware<'a> {
    read: &'a dyn Fn(&str) -> Content,
    /// Writes attributes and update at once.
    write: &'a dyn Fn(&str, &[u8]) -> io::Result<()>,
}

/// A decoded update.
struct Update {
    variable: SecureBootVariable,
    append: bool,
    /// Time, signature and signature lists.
    signed: Vec<u8>,
}

pub(crate) fn run(inputs: &EnrolSecureBoot, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let efi = &machine.setup().efi;
    if !efi.exists() {
        let folder = efi.display();
        let why = "the machine was not started by UEFI firmware";
        return Err(refused(format!("{why} ({folder} does not exist); start it with UEFI, or leave the step out")));
    }
    let variables = Variables::open(&efi.join("efivars"))?;
    let firmware =
        Firmware { read: &|name| variables.read(name), write: &|name, update| variables.write_update(name, update) };
    enrol(&inputs.updates, &firmware, machine.cancel(), report).map(|summary| Done::go_on(summary, Vec::new()))
}

fn enrol(
    updates: &[SecureBootUpdate],
    firmware: &Firmware<'_>,
    cancel: &Cancel,
    report: Tell,
) -> Result<String, Error> {
    let updates: Vec<Update> = updates.iter().map(Update::of).collect::<Option<_>>().ok_or_else(unreadable)?;
    let (mut pending, mut there) = (Vec::new(), Vec::new());
    for update in &updates {
        let content = (firmware.read)(&update.file())?.unwrap_or_default();
        if update.is_in(&content) { there.push(update.variable) } else { pending.push(update) }
    }
    let is_other = pending.iter().any(|update| update.variable == SecureBootVariable::Pk);
    let is_open = flag(firmware, "SetupMode")?.ok_or_else(|| {
        refused(
            "the firmware has no variable SetupMode: it does not know Secure Boot; update it, or leave the step out",
        )
    })?;
    if is_other && !is_open {
        return Err(refused(not_in_setup_mode(flag(firmware, "SecureBoot")?)));
    }
    let mut done = Vec::new();
    for (index, update) in pending.iter().enumerate() {
        let rest = || pending.iter().skip(index).map(|update| update.variable).collect::<Vec<_>>();
        let interrupted = |source| interrupted(update.variable, source, &done, &rest(), is_open);
        cancel.check()?;
        (firmware.write)(&update.file(), &update.with_attributes()).map_err(|error| interrupted(explained(error)))?;
        let content = (firmware.read)(&update.file())?.unwrap_or_default();
        if !update.was_taken(&content) {
            let what =
                "the firmware accepted it, but returned something else when it was read back: update the firmware";
            return Err(interrupted(io::Error::other(what)));
        }
        report(Report::Note(format!("wrote {}", update.variable)));
        done.push(update.variable);
    }
    let is_still_open = flag(firmware, "SetupMode")?.unwrap_or_default();
    if done.contains(&SecureBootVariable::Pk) && is_still_open {
        return Err(refused(
            "the firmware took all keys, but is still in Setup Mode; restart it, and if it stays so, update the \
             firmware",
        ));
    }
    Ok(summary(&done, &there, is_still_open))
}

impl Update {
    fn of(update: &SecureBootUpdate) -> Option<Self> {
        let signed = update.decode()?;
        signed_lists(&signed)?;
        Some(Self { variable: update.variable, append: update.append, signed })
    }

    fn lists(&self) -> &[u8] {
        signed_lists(&self.signed).unwrap_or_default()
    }

    /// Name of the variable's file.
    fn file(&self) -> String {
        let name = self.variable.to_string();
        match self.variable {
            SecureBootVariable::Pk | SecureBootVariable::Kek => global(&name),
            SecureBootVariable::Db | SecureBootVariable::Dbx => image_security(&name),
        }
    }

    fn with_attributes(&self) -> Vec<u8> {
        let attributes = if self.append { AUTHENTICATED | APPEND } else { AUTHENTICATED };
        [&attributes.to_le_bytes()[..], &self.signed].concat()
    }

    /// Whether the firmware has taken the update.
    fn was_taken(&self, content: &[u8]) -> bool {
        if self.append { has_all(content, self.lists()) } else { content == self.lists() }
    }

    /// Whether there is nothing to write. Firmware refuses an update for the second time, because its time is not
    /// later. The owner of a platform key is ignored, because a firmware menu that enrolled the key may have set
    /// another owner.
    fn is_in(&self, content: &[u8]) -> bool {
        self.was_taken(content) || self.variable == SecureBootVariable::Pk && has_same_data(content, self.lists())
    }
}

/// Whether signature lists have every wanted entry. Firmware adds only the entries that it lacks, so the bytes differ.
fn has_all(lists: &[u8], wanted: &[u8]) -> bool {
    let (Ok(has), Ok(wanted)) = (signature_list::parse(lists), signature_list::parse(wanted)) else { return false };
    wanted.iter().all(|entry| has.contains(entry))
}

fn has_same_data(a: &[u8], b: &[u8]) -> bool {
    let data = |lists: &[u8]| -> Option<Vec<(signature_list::Guid, Vec<u8>)>> {
        let entry = |entry: &Signature<'_>| (entry.kind, entry.data.to_vec());
        Some(signature_list::parse(lists).ok()?.iter().map(entry).collect())
    };
    data(a).is_some_and(|a| Some(a) == data(b))
}

/// Reads a variable of one byte, 0 or 1 (UEFI 2.10, section 3.3).
fn flag(firmware: &Firmware<'_>, name: &str) -> Result<Option<bool>, Error> {
    Ok((firmware.read)(&global(name))?.and_then(|content| content.first().map(|value| *value == 1)))
}

fn not_in_setup_mode(secure_boot: Option<bool>) -> String {
    let state = match secure_boot {
        Some(true) => "Secure Boot is on",
        _ => "Secure Boot is only switched off",
    };
    format!(
        "the machine has keys of its own and is not in Setup Mode ({state}): clear its keys in the firmware's menu, \
         which is often called \"clear keys\", \"delete all Secure Boot keys\" or \"reset to Setup Mode\", and run \
         this again"
    )
}

/// Returns the error of a failed write, with the variables that are written and those that are not.
fn interrupted(
    variable: SecureBootVariable,
    source: io::Error,
    done: &[SecureBootVariable],
    rest: &[SecureBootVariable],
    is_open: bool,
) -> Error {
    let before = if done.is_empty() { "nothing".to_owned() } else { listed(done) };
    let state = match is_open {
        true => "the firmware is still in Setup Mode and starts anything",
        false => "the firmware continues with its current keys",
    };
    let state = format!("written before: {before}; not written: {}; {state}", listed(rest));
    BootError::SecureBootVariable { variable: variable.to_string(), state, source }.into()
}

/// Adds to the firmware's error what to do. The kernel translates the statuses of firmware (Linux,
/// drivers/firmware/efi/vars.c).
fn explained(error: io::Error) -> io::Error {
    let what_to_do = match Errno::from_io_error(&error) {
        // EFI_SECURITY_VIOLATION.
        Some(Errno::ACCESS) => {
            "the firmware does not accept signature or time: its keys are not those that signed, or it was given a \
             later update before; check the server's clock"
        }
        Some(Errno::INVAL) => "the firmware does not accept such a list; update it, or use keys with RSA-2048",
        Some(Errno::NOSPC) => "the firmware has no room left: remove boot entries, or reset its variables in its menu",
        Some(Errno::ROFS) => "the variables are read-only: the firmware or the mount forbids changes",
        Some(Errno::PERM) => "only root may do this, and only if neither firmware nor kernel forbids it",
        Some(Errno::IO) => "the firmware failed to do it: update it, or reset its variables in its menu",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}: {what_to_do}"))
}

fn summary(done: &[SecureBootVariable], there: &[SecureBootVariable], is_open: bool) -> String {
    let there = match there {
        [] => String::new(),
        there => format!("; there already: {}", listed(there)),
    };
    let written = match done {
        [] => "nothing to write".to_owned(),
        done => format!("wrote {}", listed(done)),
    };
    let state = match is_open {
        true => "the firmware is still in Setup Mode, because it was given no platform key",
        false => "from its next start on, the firmware starts only what these keys allow",
    };
    format!("{written}{there}; {state}")
}

/// Joins names with commas, and the last with "and".
fn listed(variables: &[SecureBootVariable]) -> String {
    match variables {
        [] => String::new(),
        [one] => one.to_string(),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(ToString::to_string).collect();
            format!("{} and {last}", first.join(", "))
        }
    }
}

fn refused(reason: impl Into<String>) -> Error {
    BootError::SecureBoot { reason: reason.into() }.into()
}

/// The error for an unreadable update. It never occurs, because inputs are judged before.
fn unreadable() -> Error {
    refused("an update is not a time, a signature and lists in base64")
}

#[cfg(test)]
mod tests;
