//! A TPM 2.0 (Trusted Platform Module Library, family 2.0, level 00, revision 1.59). Seals a secret to registers as
//! systemd-cryptenroll of systemd 252 does, so that systemd-cryptsetup can unseal it (src/shared/tpm2-util.c).
//!
//! The secret crosses the bus to the TPM once, in the clear. Anyone who listens on the bus during the installation can
//! read it.

use std::path::Path;

use crate::error::TpmError;
use device::{Command, Device, NO_SESSIONS, WITH_SESSIONS};
use wire::{Reader, sized};

mod device;
mod wire;

/// Permanent handles (part 2, 7.4).
const OWNER: u32 = 0x4000_0001;
const NULL: u32 = 0x4000_0007;
const PASSWORD: u32 = 0x4000_0009;
/// Algorithms (part 2, 6.3).
const RSA: u16 = 0x0001;
const AES: u16 = 0x0006;
const KEYED_HASH: u16 = 0x0008;
const SHA256: u16 = 0x000B;
const NONE: u16 = 0x0010;
const ECC: u16 = 0x0023;
const CFB: u16 = 0x0043;
const NIST_P256: u16 = 0x0003;
/// Attributes of an object (part 2, 8.3): fixed to the TPM and to its parent; made by the TPM, used with the empty
/// password, and only to decrypt objects below it.
const FIXED: u32 = 1 << 1 | 1 << 4;
const STORAGE: u32 = FIXED | 1 << 5 | 1 << 6 | 1 << 16 | 1 << 17;
const POLICY_SESSION: u8 = 1;
/// The session stays open for another use (part 2, 8.4).
const CONTINUE: u8 = 1;
pub(super) const SECRET: usize = 32;
/// The shortest nonce that is accepted (part 1, 19.6.3.1). It proves nothing, because the session has no key.
const NONCE: [u8; 16] = [0; 16];

/// A secret that the TPM releases only if its registers have the same values again.
pub(super) struct Sealed {
    pub(super) secret: [u8; SECRET],
    /// The sealed object: private part, then public part.
    pub(super) blob: Vec<u8>,
    /// Policy digest (part 1, 19.7).
    pub(super) policy: Vec<u8>,
    /// Type of the primary key, as systemd names it.
    pub(super) primary: &'static str,
    /// Registers into which nothing was measured.
    pub(super) unmeasured: Vec<u32>,
}

/// Value of a register that holds only a separator: SHA-256 of 32 zero bytes and the digest of four more.
const SEPARATOR: [u8; 32] = [
    0x3d, 0x45, 0x8c, 0xfe, 0x55, 0xcc, 0x03, 0xea, 0x1f, 0x44, 0x3f, 0x15, 0x62, 0xbe, 0xec, 0x8d, 0xf5, 0x1c, 0x75,
    0xe1, 0x4a, 0x9f, 0xcf, 0x9a, 0x72, 0x34, 0xa1, 0x3f, 0x19, 0x8e, 0x79, 0x69,
];

/// Seals a secret to the current values of registers, and unseals it once as a test.
pub(super) fn seal(path: &Path, pcrs: &[u32], secret: [u8; SECRET]) -> Result<Sealed, TpmError> {
    let mut device = Device::open(path)?;
    let unmeasured = unmeasured(&mut device, pcrs)?;
    let (parent, primary) = create_primary(&mut device)?;
    let sealed = seal_below(&mut device, parent, pcrs, &secret);
    let flushed = device.flush(parent);
    let (blob, policy) = sealed?;
    flushed?;
    Ok(Sealed { secret, blob, policy, primary, unmeasured })
}

/// Those of the registers that are in their reset state, or hold only the separator that firmware measures before it
/// starts a system (TCG PC Client Platform Firmware Profile 1.06, 3.3.4.1, EV_SEPARATOR). Fails if a register does not
/// exist.
fn unmeasured(device: &mut Device, pcrs: &[u32]) -> Result<Vec<u32>, TpmError> {
    let mut unmeasured = Vec::new();
    for pcr in pcrs {
        let value = device.call(Command::PcrRead, NO_SESSIONS, &selection(&[*pcr]), |answer| {
            answer.u32()?;
            // The selection: a list of banks, each with a bitmap.
            for _ in 0..answer.u32()? {
                answer.u16()?;
                let len = answer.u8()?;
                answer.take(usize::from(len))?;
            }
            match answer.u32()? {
                0 => Some(None),
                _ => answer.sized().map(|value| Some(value.to_vec())),
            }
        })?;
        let value = value.ok_or(TpmError::NoRegister { pcr: *pcr })?;
        if value.iter().all(|byte| *byte == 0) || value.iter().all(|byte| *byte == 0xFF) || value == SEPARATOR {
            unmeasured.push(*pcr);
        }
    }
    Ok(unmeasured)
}

/// Creates the primary key of the owner hierarchy, always the same for a template: ECC, or RSA if the TPM does not
/// support ECC.
fn create_primary(device: &mut Device) -> Result<(u32, &'static str), TpmError> {
    let mut create = |template: Vec<u8>| {
        let empty = sized(&[sized(&[]), sized(&[])].concat());
        let parameters = [empty, sized(&template), sized(&[]), no_pcrs()].concat();
        let sent = [OWNER.to_be_bytes().to_vec(), password(), parameters].concat();
        device.call(Command::CreatePrimary, WITH_SESSIONS, &sent, |answer| answer.u32())
    };
    match create(elliptic_template()) {
        Err(TpmError::Refused { .. }) => create(rsa_template()).map(|handle| (handle, "rsa")),
        created => created.map(|handle| (handle, "ecc")),
    }
}

/// `TPMT_PUBLIC` of a storage key up to its parameters (part 2, 12.2.4). These begin with the cipher, AES-128-CFB, and
/// no scheme.
fn storage_template(kind: u16) -> Vec<u8> {
    let [kind, sha256, aes, bits, cfb, none] = [kind, SHA256, AES, 128, CFB, NONE].map(u16::to_be_bytes);
    [&kind[..], &sha256, &STORAGE.to_be_bytes(), &sized(&[]), &aes, &bits, &cfb, &none].concat()
}

fn elliptic_template() -> Vec<u8> {
    let [curve, none] = [NIST_P256, NONE].map(u16::to_be_bytes);
    [&storage_template(ECC)[..], &curve, &none, &sized(&[]), &sized(&[])].concat()
}

fn rsa_template() -> Vec<u8> {
    // An exponent of zero means the default.
    [&storage_template(RSA)[..], &2048_u16.to_be_bytes(), &0_u32.to_be_bytes(), &sized(&[])].concat()
}

/// Seals a secret under a parent key. Returns the object and its policy digest.
fn seal_below(
    device: &mut Device,
    parent: u32,
    pcrs: &[u32],
    secret: &[u8; SECRET],
) -> Result<(Vec<u8>, Vec<u8>), TpmError> {
    let session = start_session(device)?;
    let sealed = seal_in(device, session, parent, pcrs, secret);
    device.flush(session).and(sealed)
}

fn seal_in(
    device: &mut Device,
    session: u32,
    parent: u32,
    pcrs: &[u32],
    secret: &[u8; SECRET],
) -> Result<(Vec<u8>, Vec<u8>), TpmError> {
    let session_handle = session.to_be_bytes().to_vec();
    let policy_pcr = [session_handle.clone(), sized(&[]), selection(pcrs)].concat();
    device.call(Command::PolicyPcr, NO_SESSIONS, &policy_pcr, |_| Some(()))?;
    let digest = |answer: &mut Reader<'_>| answer.sized().map(<[u8]>::to_vec);
    let policy = device.call(Command::PolicyGetDigest, NO_SESSIONS, &session_handle, digest)?;

    let [kind, sha256, none] = [KEYED_HASH, SHA256, NONE].map(u16::to_be_bytes);
    let template = [&kind[..], &sha256, &FIXED.to_be_bytes(), &sized(&policy), &none, &sized(&[])].concat();
    let sensitive = sized(&[sized(&[]), sized(secret)].concat());
    let parameters = [sensitive, sized(&template), sized(&[]), no_pcrs()].concat();
    let create = [parent.to_be_bytes().to_vec(), password(), parameters].concat();
    let blob = device.call(Command::Create, WITH_SESSIONS, &create, |answer| {
        answer.u32()?;
        let (private, public) = (answer.sized()?, answer.sized()?);
        Some([sized(private), sized(public)].concat())
    })?;

    let load = [parent.to_be_bytes().to_vec(), password(), blob.clone()].concat();
    let object = device.call(Command::Load, WITH_SESSIONS, &load, |answer| answer.u32())?;
    let unseal = [object.to_be_bytes().to_vec(), authorization(session)].concat();
    let unsealed = device.call(Command::Unseal, WITH_SESSIONS, &unseal, |answer| {
        answer.u32()?;
        answer.sized().map(|unsealed| unsealed == secret)
    });
    device.flush(object)?;
    if unsealed? { Ok((blob, policy)) } else { Err(TpmError::OtherSecret) }
}

fn start_session(device: &mut Device) -> Result<u32, TpmError> {
    let null = NULL.to_be_bytes();
    let [none, sha256] = [NONE, SHA256].map(u16::to_be_bytes);
    let sent = [&null[..], &null, &sized(&NONCE), &sized(&[]), &[POLICY_SESSION], &none, &sha256].concat();
    device.call(Command::StartAuthSession, NO_SESSIONS, &sent, |answer| answer.u32())
}

/// `TPML_PCR_SELECTION` of registers in the SHA-256 bank (part 2, 10.9.7).
fn selection(pcrs: &[u32]) -> Vec<u8> {
    let mask = pcrs.iter().filter(|pcr| **pcr < 24).fold(0_u32, |mask, pcr| mask | 1 << pcr);
    let [low, middle, high, _] = mask.to_le_bytes();
    [&1_u32.to_be_bytes()[..], &SHA256.to_be_bytes(), &[3, low, middle, high]].concat()
}

fn no_pcrs() -> Vec<u8> {
    0_u32.to_be_bytes().to_vec()
}

/// Authorization by the empty password (part 2, 10.13.2), with its size.
fn password() -> Vec<u8> {
    authorization(PASSWORD)
}

/// Authorization by a session without a key, with its size.
fn authorization(session: u32) -> Vec<u8> {
    let area = [&session.to_be_bytes()[..], &sized(&[]), &[CONTINUE], &sized(&[])].concat();
    [(area.len() as u32).to_be_bytes().to_vec(), area].concat()
}
