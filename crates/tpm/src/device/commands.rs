//! Commands that proving and sealing share.

use super::channel::{Command, Device};
use super::error::TpmError;
use crate::wire::{AES, CFB, DECRYPT, ECC, FIXED, MADE_BY_TPM, NIST_P256, NONE, RESTRICTED, RSA, SHA256, sized, words};

/// Permanent handles (part 2, 7.4).
const NULL: u32 = 0x4000_0007;
pub(crate) const PASSWORD: u32 = 0x4000_0009;
pub(crate) const OWNER: Hierarchy = Hierarchy { handle: 0x4000_0001, name: "owner" };
pub(crate) const ENDORSEMENT: Hierarchy = Hierarchy { handle: 0x4000_000B, name: "endorsement" };

/// Attributes of a key (part 2, 8.3).
pub(crate) const KEY: u32 = FIXED | MADE_BY_TPM | RESTRICTED;
/// Attribute of a key: the empty password authorizes its use.
pub(crate) const WITH_PASSWORD: u32 = 1 << 6;

const POLICY_SESSION: u8 = 1;
/// The shortest nonce that is accepted (part 1, 19.6.3.1). Its value does not matter, because the session has no key.
const NONCE: [u8; 16] = [0; 16];

/// A hierarchy of keys.
pub(crate) struct Hierarchy {
    pub(crate) handle: u32,
    name: &'static str,
}

impl Hierarchy {
    /// Turns a refusal for a wrong password into an error that names the hierarchy.
    pub(crate) fn or_password(&self, error: TpmError) -> TpmError {
        if error.is(&[0x08E, 0x0A2]) { TpmError::Password { hierarchy: self.name } } else { error }
    }
}

/// Encodes TPMT_PUBLIC of an object up to its parameters (part 2, 12.2.4).
pub(crate) fn public(kind: u16, attributes: u32, policy: &[u8]) -> Vec<u8> {
    [words(&[kind, SHA256]), attributes.to_be_bytes().to_vec(), sized(policy)].concat()
}

/// Encodes TPMT_PUBLIC of a P-256 storage key with AES-128-CFB and no scheme. `unique` is used for both coordinates.
pub(crate) fn ecc_key(attributes: u32, policy: &[u8], unique: &[u8]) -> Vec<u8> {
    let parameters = words(&[AES, 128, CFB, NONE, NIST_P256, NONE]);
    [public(ECC, attributes | DECRYPT, policy), parameters, sized(unique), sized(unique)].concat()
}

/// As [`ecc_key`], for an RSA key of 2048 bits. An exponent of zero means the default.
pub(crate) fn rsa_key(attributes: u32, policy: &[u8], unique: &[u8]) -> Vec<u8> {
    let parameters = words(&[AES, 128, CFB, NONE, 2048, 0, 0]);
    [public(RSA, attributes | DECRYPT, policy), parameters, sized(unique)].concat()
}

/// Encodes the parameters of TPM2_Create and TPM2_CreatePrimary: an object with the empty password and a secret, which
/// is empty for keys. No registers are recorded in the creation data.
pub(crate) fn creation(template: &[u8], secret: &[u8]) -> Vec<u8> {
    let sensitive = [sized(&[]), sized(secret)].concat();
    let no_pcrs = vec![0; 4];
    [sized(&sensitive), sized(template), sized(&[]), no_pcrs].concat()
}

/// Makes a primary key in a hierarchy. The same template always gives the same key. Returns its handle and TPMT_PUBLIC.
pub(crate) fn create_primary(
    device: &mut Device,
    hierarchy: &Hierarchy,
    template: &[u8],
) -> Result<(u32, Vec<u8>), TpmError> {
    let parameters = creation(template, &[]);
    let created = device.call(Command::CREATE_PRIMARY, &[hierarchy.handle], &[PASSWORD], &parameters, |answer| {
        let handle = answer.u32()?;
        answer.u32()?;
        Some((handle, answer.sized()?.to_vec()))
    });
    created.map_err(|error| hierarchy.or_password(error))
}

/// Runs `act` in a new policy session.
pub(crate) fn in_policy_session<T>(
    device: &mut Device,
    act: impl FnOnce(&mut Device, u32) -> Result<T, TpmError>,
) -> Result<T, TpmError> {
    let parameters = [&sized(&NONCE)[..], &sized(&[]), &[POLICY_SESSION], &words(&[NONE, SHA256])].concat();
    let session = device.call(Command::START_AUTH_SESSION, &[NULL, NULL], &[], &parameters, |answer| answer.u32())?;
    device.using(session, |device| act(device, session))
}

/// Reads the values of registers in the SHA-256 bank. `pcrs` must be in ascending order, as the TPM returns them.
pub(crate) fn read_pcrs(device: &mut Device, pcrs: &[u32]) -> Result<Vec<Vec<u8>>, TpmError> {
    let mut values = Vec::new();
    // A TPM returns at most eight values at once.
    while let Some(left @ [next, ..]) = pcrs.get(values.len()..) {
        let read = device.call(Command::PCR_READ, &[], &[], &selection(left), |answer| {
            answer.u32()?;
            answer.pcr_selection()?;
            let count = answer.u32().filter(|count| *count as usize <= left.len())?;
            (0..count).map(|_| answer.sized().map(<[u8]>::to_vec)).collect::<Option<Vec<_>>>()
        })?;
        if read.is_empty() {
            return Err(TpmError::NoRegister { pcr: *next });
        }
        values.extend(read);
    }
    Ok(values)
}

/// Encodes TPML_PCR_SELECTION of registers in the SHA-256 bank (part 2, 10.9.7), which has 24 registers.
pub(crate) fn selection(pcrs: &[u32]) -> Vec<u8> {
    let mask = pcrs.iter().filter(|pcr| **pcr < 24).fold(0_u32, |mask, pcr| mask | 1 << pcr);
    let [low, middle, high, _] = mask.to_le_bytes();
    [&1_u32.to_be_bytes()[..], &SHA256.to_be_bytes(), &[3, low, middle, high]].concat()
}
