//! The recovery key: opens an encrypted root file system when the TPM does not.

use serde_json::json;
use slipway_protocol::Secret;

use super::luks2::Slot;
use crate::error::Error;
use crate::random;

/// Digits whose keys are in the same place on the keyboards of many languages (systemd, src/shared/recovery-key.c).
const MODHEX: &[u8; 16] = b"cbdefghijklnrtuv";
const BYTES: usize = 32;
/// Bytes per group of digits.
const GROUP: usize = 4;

/// Makes a new key.
pub(super) fn new() -> Result<Secret, Error> {
    Ok(Secret::from(modhex(&random::bytes::<BYTES>()?)))
}

fn modhex(bytes: &[u8; BYTES]) -> String {
    let digit = |value: u8| char::from(MODHEX[usize::from(value)]);
    let group = |bytes: &[u8]| bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xF)]).collect();
    bytes.chunks(GROUP).map(group).collect::<Vec<String>>().join("-")
}

/// Makes the key slot of the recovery key.
pub(super) fn slot(key: &Secret) -> Slot {
    Slot { passphrase: key.reveal().to_owned(), token: json!({"type": "systemd-recovery"}) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_eight_groups_of_digits_that_keyboards_agree_on() {
        let bytes = std::array::from_fn(|index| [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF][index % 8]);
        let groups = "cbdefghi-jklnrtuv";
        assert_eq!(modhex(&bytes), [groups; 4].join("-"));
        assert_ne!(new().unwrap().reveal(), new().unwrap().reveal());
        assert_eq!(new().unwrap().reveal().len(), 71);
    }
}
