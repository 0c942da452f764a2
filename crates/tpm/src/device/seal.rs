//! Sealing a secret to registers as systemd-cryptenroll of systemd 252 does, so that systemd-cryptsetup can unseal it
//! (src/shared/tpm2-util.c).

use std::path::Path;
use std::time::Duration;

use super::channel::{Command, Device};
use super::commands::{
    KEY, OWNER, PASSWORD, WITH_PASSWORD, create_primary, creation, ecc_key, in_policy_session, public, read_pcrs,
    rsa_key, selection,
};
use super::error::TpmError;
use crate::wire::{FIXED, NONE, Reader, sized, words};

/// The algorithm of a sealed object (part 2, 6.3).
const KEYED_HASH: u16 = 0x0008;

/// Value of a register after a separator alone: SHA-256 of 32 zeros and the digest of four zeros.
const SEPARATOR: [u8; 32] = [
    0x3d, 0x45, 0x8c, 0xfe, 0x55, 0xcc, 0x03, 0xea, 0x1f, 0x44, 0x3f, 0x15, 0x62, 0xbe, 0xec, 0x8d, 0xf5, 0x1c, 0x75,
    0xe1, 0x4a, 0x9f, 0xcf, 0x9a, 0x72, 0x34, 0xa1, 0x3f, 0x19, 0x8e, 0x79, 0x69,
];

/// A secret that the TPM releases only while its registers have the same values.
#[derive(Debug)]
pub struct Sealed {
    /// The sealed object: private part, then public part, as TPM2B_PRIVATE and TPM2B_PUBLIC.
    pub blob: Vec<u8>,
    /// Policy digest (part 1, 19.7).
    pub policy: Vec<u8>,
    /// Type of the primary key, as systemd names it: "ecc" or "rsa".
    pub primary: &'static str,
    /// Registers without measurements.
    pub unmeasured: Vec<u32>,
}

/// Seals a secret to the current values of registers, and unseals it once as a test.
///
/// The device is opened as by [`super::Attester::open`]. `deadline` is the time limit of each command. The secret
/// crosses the bus to the TPM in clear text, where an attacker could read it now.
///
/// # Errors
///
/// [`TpmError::Missing`] if there is no TPM, and only then. If the TPM lacks one of the registers, or a password is set
/// for its owner hierarchy.
pub fn seal(path: &Path, deadline: Duration, pcrs: &[u32], secret: &[u8; 32]) -> Result<Sealed, TpmError> {
    let mut device = Device::open(path, deadline)?;
    let unmeasured = unmeasured(&mut device, pcrs)?;
    let (parent, primary) = create_parent(&mut device)?;
    let (blob, policy) = device.using(parent, |device| {
        in_policy_session(device, |device, session| seal_below(device, session, parent, pcrs, secret))
    })?;
    Ok(Sealed { blob, policy, primary, unmeasured })
}

/// The registers that are in their reset state, or hold only the separator that firmware measures before it starts a
/// system (TCG PC Client Platform Firmware Profile 1.06, 3.3.4.1, EV_SEPARATOR).
fn unmeasured(device: &mut Device, pcrs: &[u32]) -> Result<Vec<u32>, TpmError> {
    let mut unmeasured = Vec::new();
    for pcr in pcrs {
        // One by one, because the TPM returns several in its own order.
        let value = read_pcrs(device, &[*pcr])?.concat();
        if value.iter().all(|byte| *byte == 0) || value.iter().all(|byte| *byte == 0xFF) || value == SEPARATOR {
            unmeasured.push(*pcr);
        }
    }
    Ok(unmeasured)
}

/// Makes the storage key: ECC, or RSA if the TPM does not support ECC. Returns its handle and its type.
fn create_parent(device: &mut Device) -> Result<(u32, &'static str), TpmError> {
    let attributes = KEY | WITH_PASSWORD;
    match create_primary(device, &OWNER, &ecc_key(attributes, &[], &[])) {
        Err(TpmError::Refused { .. }) => {
            create_primary(device, &OWNER, &rsa_key(attributes, &[], &[])).map(|(handle, _)| (handle, "rsa"))
        }
        created => created.map(|(handle, _)| (handle, "ecc")),
    }
}

/// Seals a secret under a parent key. Returns the object and its policy digest.
fn seal_below(
    device: &mut Device,
    session: u32,
    parent: u32,
    pcrs: &[u32],
    secret: &[u8],
) -> Result<(Vec<u8>, Vec<u8>), TpmError> {
    let values_of_now = sized(&[]);
    let parameters = [values_of_now, selection(pcrs)].concat();
    device.call(Command::POLICY_PCR, &[session], &[], &parameters, |_| Some(()))?;
    let digest = |answer: &mut Reader<'_>| answer.sized().map(<[u8]>::to_vec);
    let policy = device.call(Command::POLICY_GET_DIGEST, &[session], &[], &[], digest)?;

    let template = [public(KEYED_HASH, FIXED, &policy), words(&[NONE]), sized(&[])].concat();
    let parameters = creation(&template, secret);
    let blob = device.call(Command::CREATE, &[parent], &[PASSWORD], &parameters, |answer| {
        answer.u32()?;
        Some([sized(answer.sized()?), sized(answer.sized()?)].concat())
    })?;

    let object = device.call(Command::LOAD, &[parent], &[PASSWORD], &blob, |answer| answer.u32())?;
    let is_same = device.using(object, |device| {
        device.call(Command::UNSEAL, &[object], &[session], &[], |answer| {
            answer.u32()?;
            answer.sized().map(|unsealed| unsealed == secret)
        })
    })?;
    if is_same { Ok((blob, policy)) } else { Err(TpmError::OtherSecret) }
}
