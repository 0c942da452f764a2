//! Predicts register 7 of a TPM, into which firmware measures the variables of Secure Boot, then the entry of db that
//! verified the program that it started (TCG PC Client Platform Firmware Profile, section 3.3.4.8).

use ring::digest::{SHA256, digest};
use uuid::Uuid;

use crate::lists::{self, Entry};
use crate::variable::{GLOBAL, Variable};

/// The data of EV_SEPARATOR.
const SEPARATOR: [u8; 4] = [0; 4];

/// The value of register 7 in the SHA-256 bank, if the machine has exactly these lists and `vouched` is the only entry
/// of db that verified a program. The value is for information: cards with a signed option ROM add the entry that
/// verified them, and a machine keeps the entries that its dbx had before.
pub fn register_7(variables: [(Variable, &[Entry]); 4], vouched: &Entry) -> [u8; 32] {
    let secure_boot = variable_data(GLOBAL, "SecureBoot", &[1]);
    let lists =
        variables.map(|(variable, entries)| variable_data(variable.vendor(), variable.name(), &lists::build(entries)));
    let authority = variable_data(Variable::Db.vendor(), Variable::Db.name(), &vouched.signature_data());
    let events = [secure_boot].into_iter().chain(lists).chain([SEPARATOR.to_vec(), authority]);
    events.fold([0; 32], |value, event| sha256(&[value, sha256(&event)].concat()))
}

/// Encodes UEFI_VARIABLE_DATA: namespace, name length in characters, data length in bytes, name in UTF-16, data.
fn variable_data(vendor: Uuid, name: &str, data: &[u8]) -> Vec<u8> {
    let text: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let lengths = [name.len() as u64, data.len() as u64].map(u64::to_le_bytes);
    [&vendor.to_bytes_le()[..], &lengths.concat(), &text, data].concat()
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut sum = [0; 32];
    sum.copy_from_slice(digest(&SHA256, bytes).as_ref());
    sum
}
