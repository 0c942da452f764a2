//! The keys of a TPM, and its answers to challenges.

use std::path::Path;
use std::time::Duration;

use slipway_protocol::node::attestation::{Blob, MAX_BLOB_BYTES, QUOTED_PCRS, TpmChallenge, TpmKeys, TpmProof};

use super::channel::{Command, Device};
use super::commands::{
    ENDORSEMENT, KEY, OWNER, PASSWORD, WITH_PASSWORD, create_primary, ecc_key, in_policy_session, public, read_pcrs,
    rsa_key, selection,
};
use super::error::TpmError;
use crate::wire::{ECC, ECDSA, NIST_P256, NONE, Reader, SHA256, SIGN, sized, words};

/// Attributes of the endorsement key (part 2, 8.3): a policy authorizes its use.
const EK_ATTRIBUTES: u32 = KEY | 1 << 7;
/// Attributes of the attestation key: it signs, without protection against dictionary attacks.
const AK_ATTRIBUTES: u32 = KEY | WITH_PASSWORD | 1 << 10 | SIGN;
/// Distinguishes the attestation key from those of other programs with the same template.
const AK_UNIQUE: &[u8] = b"slipway attestation key";
/// The policy of endorsement keys, PolicySecret(TPM_RH_ENDORSEMENT) (EK Credential Profile 2.5, B.3.3).
const EK_POLICY: [u8; 32] = [
    0x83, 0x71, 0x97, 0x67, 0x44, 0x84, 0xB3, 0xF8, 0x1A, 0x90, 0xCC, 0x8D, 0x46, 0xA5, 0xD7, 0x24, 0xFD, 0x52, 0xD7,
    0x6E, 0x06, 0x52, 0x0B, 0x64, 0xF2, 0xA1, 0xDA, 0x1B, 0x33, 0x14, 0x69, 0xAA,
];

/// NV indices of the endorsement key certificates (EK Credential Profile 2.5, 2.2.1.4).
const RSA_CERTIFICATE: u32 = 0x01C0_0002;
const ECC_CERTIFICATE: u32 = 0x01C0_000A;
/// Bytes of one NV read. Every PC TPM supports reads of this size.
const NV_CHUNK: usize = 512;
/// Response codes that mean "no certificate": no such index, an empty one, or no permission to read it (TPM_RC_HANDLE,
/// TPM_RC_NV_UNINITIALIZED, TPM_RC_AUTH_UNAVAILABLE, TPM_RC_NV_AUTHORIZATION).
const NO_CERTIFICATE: &[u32] = &[0x08B, 0x14A, 0x12F, 0x149];
/// Maximum number of quotes while registers change.
const QUOTES: u32 = 5;

/// A TPM that proves its identity. Its keys stay loaded until this is dropped.
pub struct Attester {
    device: Device,
    loaded: Option<Loaded>,
}

struct Loaded {
    ek: u32,
    ak: u32,
    keys: TpmKeys,
}

impl Attester {
    /// Opens a TPM: the device of the kernel's resource manager, [`super::DEVICE`], or the UNIX stream socket of a
    /// software TPM.
    ///
    /// `deadline` is the time limit of each command. Dropping the attester may take as long if the TPM fails then.
    /// Making an RSA key may take a minute.
    ///
    /// # Errors
    ///
    /// [`TpmError::Missing`] if there is no TPM, and only then.
    pub fn open(path: &Path, deadline: Duration) -> Result<Self, TpmError> {
        Ok(Self { device: Device::open(path, deadline)?, loaded: None })
    }

    /// The keys of the TPM, which it derives from its seeds. The endorsement key never changes; the attestation key
    /// changes when the TPM is cleared. The endorsement key is the ECC one, unless only the RSA one has a certificate.
    ///
    /// # Errors
    ///
    /// If the TPM refuses, for example because it does not support ECC P-256, or a password is set for a hierarchy.
    pub fn keys(&mut self) -> Result<TpmKeys, TpmError> {
        self.load().map(|loaded| loaded.keys.clone())
    }

    /// Answers a challenge that was made for the keys of this TPM.
    ///
    /// # Errors
    ///
    /// If the challenge is for other keys, or the TPM has no SHA-256 bank. The errors of [`Self::keys`].
    pub fn prove(&mut self, challenge: &TpmChallenge, event_log: Option<Vec<u8>>) -> Result<TpmProof, TpmError> {
        let &Loaded { ek, ak, .. } = self.load()?;
        let (device, pcrs) = (&mut self.device, QUOTED_PCRS.map(u32::from));
        let secret = open_secret(device, ek, ak, challenge)?;
        for _ in 0..QUOTES {
            // A register never returns to an earlier value. So values that are equal before and after the quote are the
            // quoted ones.
            let values = read_pcrs(device, &pcrs)?;
            let (quote, signature) = quote(device, ak, &challenge.nonce.0, &pcrs)?;
            if values == read_pcrs(device, &pcrs)? {
                let [secret, quote, signature] = [secret, quote, signature].map(Blob);
                let (nonce, pcrs) = (challenge.nonce.clone(), values.into_iter().map(Blob).collect());
                return Ok(TpmProof { nonce, secret, quote, signature, pcrs, event_log: event_log.map(Blob) });
            }
        }
        Err(TpmError::Unsteady { attempts: QUOTES })
    }

    fn load(&mut self) -> Result<&Loaded, TpmError> {
        let loaded = match self.loaded.take() {
            Some(loaded) => loaded,
            None => load(&mut self.device)?,
        };
        Ok(self.loaded.insert(loaded))
    }
}

impl Drop for Attester {
    fn drop(&mut self) {
        if let Some(Loaded { ek, ak, .. }) = self.loaded {
            // Errors do not matter, because the resource manager flushes the keys too.
            drop(self.device.flush(ak));
            drop(self.device.flush(ek));
        }
    }
}

fn load(device: &mut Device) -> Result<Loaded, TpmError> {
    let mut certificate = read_certificate(device, ECC_CERTIFICATE)?;
    // Template L-2 (EK Credential Profile 2.5, B.3.4).
    let mut template = ecc_key(EK_ATTRIBUTES, &EK_POLICY, &[0; 32]);
    if certificate.is_none() {
        certificate = read_certificate(device, RSA_CERTIFICATE)?;
        if certificate.is_some() {
            // Template L-1 (B.3.3).
            template = rsa_key(EK_ATTRIBUTES, &EK_POLICY, &[0; 256]);
        }
    }
    let (ek, ek_public) = create_primary(device, &ENDORSEMENT, &template)?;
    match create_primary(device, &OWNER, &ak_template()) {
        Ok((ak, ak_public)) => {
            let keys = TpmKeys { ek: Blob(ek_public), ek_certificate: certificate.map(Blob), ak: Blob(ak_public) };
            Ok(Loaded { ek, ak, keys })
        }
        Err(error) => {
            // The error of the key is more useful than that of the flush.
            drop(device.flush(ek));
            Err(error)
        }
    }
}

fn ak_template() -> Vec<u8> {
    let parameters = words(&[NONE, ECDSA, SHA256, NIST_P256, NONE]);
    [public(ECC, AK_ATTRIBUTES, &[]), parameters, sized(AK_UNIQUE), sized(&[])].concat()
}

/// The certificate at an index, if it is in DER and not too long for the server.
fn read_certificate(device: &mut Device, index: u32) -> Result<Option<Vec<u8>>, TpmError> {
    match read_nv(device, index) {
        Ok(bytes) => Ok(der(&bytes).map(<[u8]>::to_vec)),
        Err(error) if error.is(NO_CERTIFICATE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads an index, up to the maximum length of a certificate.
fn read_nv(device: &mut Device, index: u32) -> Result<Vec<u8>, TpmError> {
    // TPM2B_NV_PUBLIC (part 2, 13.6): index, digest, attributes, policy, size.
    let size = device.call(Command::NV_READ_PUBLIC, &[index], &[], &[], |answer| {
        let mut public = Reader(answer.sized()?);
        public.bytes(10)?;
        public.sized()?;
        public.u16()
    })?;
    let size = usize::from(size).min(MAX_BLOB_BYTES);
    let mut bytes = Vec::new();
    while bytes.len() < size {
        let chunk = NV_CHUNK.min(size - bytes.len());
        let range = words(&[chunk as u16, bytes.len() as u16]);
        let read = device.call(Command::NV_READ, &[index, index], &[PASSWORD], &range, |answer| {
            answer.u32()?;
            answer.sized().filter(|read| read.len() == chunk).map(<[u8]>::to_vec)
        })?;
        bytes.extend(read);
    }
    Ok(bytes)
}

/// The DER sequence (X.690, 8.1) at the start of these bytes, without the padding after it.
fn der(bytes: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader(bytes);
    let (0x30, length) = (reader.u8()?, reader.u8()?) else { return None };
    let length = match length {
        short @ 0..=0x7F => usize::from(short),
        0x81 => usize::from(reader.u8()?),
        0x82 => usize::from(reader.u16()?),
        _ => return None,
    };
    let header = bytes.len() - reader.0.len();
    bytes.get(..header + length)
}

/// Decrypts the secret of a challenge with the endorsement key. The TPM requires that the attestation key is loaded
/// too.
fn open_secret(device: &mut Device, ek: u32, ak: u32, challenge: &TpmChallenge) -> Result<Vec<u8>, TpmError> {
    in_policy_session(device, |device, session| {
        // No nonce, no digest of the command, no reference, no expiry.
        let unlimited = [0; 2 + 2 + 2 + 4];
        let handles = [ENDORSEMENT.handle, session];
        let met = device.call(Command::POLICY_SECRET, &handles, &[PASSWORD], &unlimited, |_| Some(()));
        met.map_err(|error| ENDORSEMENT.or_password(error))?;
        let sealed = [sized(&challenge.credential.0), sized(&challenge.secret.0)].concat();
        device.call(Command::ACTIVATE_CREDENTIAL, &[ak, ek], &[PASSWORD, session], &sealed, |answer| {
            answer.u32()?;
            answer.sized().map(<[u8]>::to_vec)
        })
    })
}

/// Has the TPM sign registers and a nonce. Returns TPMS_ATTEST and TPMT_SIGNATURE.
fn quote(device: &mut Device, ak: u32, nonce: &[u8], pcrs: &[u32]) -> Result<(Vec<u8>, Vec<u8>), TpmError> {
    let scheme_of_the_key = words(&[NONE]);
    let parameters = [sized(nonce), scheme_of_the_key, selection(pcrs)].concat();
    device.call(Command::QUOTE, &[ak], &[PASSWORD], &parameters, |answer| {
        let len = answer.u32()?;
        let mut parameters = Reader(answer.bytes(usize::try_from(len).ok()?)?);
        let quote = parameters.sized()?;
        Some((quote.to_vec(), parameters.0.to_vec()))
    })
}
