//! The firmware's event log (TCG PC Client Platform Firmware Profile, section 10).

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use slipway_protocol::node::attestation::MAX_EVENT_LOG_BYTES;

use crate::wire::{EV_NO_ACTION, SPEC_ID};

/// The log of the first TPM, in securityfs.
pub const EVENT_LOG: &str = "/sys/kernel/security/tpm0/binary_bios_measurements";

/// Offset in bytes of the type of the first event (TCG_PCClientPCREvent, section 10.2.1).
const TYPE_AT: usize = 4;
/// Offset in bytes of the data of the first event, after the type, a digest of SHA-1 and the length.
const DATA_AT: usize = 32;

/// Reads the firmware's log of events.
///
/// None if the firmware keeps no log, for example a legacy BIOS. None also if the log is not crypto-agile: such a log
/// has only SHA-1 digests, and the quote is of the SHA-256 bank.
///
/// # Errors
///
/// If the log exists and cannot be read, or is longer than the server accepts. A part of the log would not lead to the
/// register values.
pub fn read_event_log(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut log = Vec::new();
    file.take(MAX_EVENT_LOG_BYTES as u64 + 1).read_to_end(&mut log)?;
    let has = |at: usize, bytes: &[u8]| log.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    if log.len() > MAX_EVENT_LOG_BYTES {
        let message = format!("it is longer than the {MAX_EVENT_LOG_BYTES} bytes that the server accepts");
        return Err(io::Error::new(ErrorKind::FileTooLarge, message));
    }
    let is_usable = has(TYPE_AT, &EV_NO_ACTION.to_le_bytes()) && has(DATA_AT, SPEC_ID);
    Ok(is_usable.then_some(log))
}
