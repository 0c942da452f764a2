//! The keys of a TPM, and what they prove.

use std::path::Path;
use std::time::Duration;

use slipway_protocol::attestation::{Blob, MAX_BLOB_BYTES, QUOTED_PCRS, TpmChallenge, TpmKeys, TpmProof};

use crate::device::{Command, Device};
use crate::error::TpmError;
use crate::wire::{Reader, sized, words};

/// Permanent handles (part 2, 7.4).
const OWNER: u32 = 0x4000_0001;
const NULL: u32 = 0x4000_0007;
const PASSWORD: u32 = 0x4000_0009;
const ENDORSEMENT: u32 = 0x4000_000B;

/// Algorithms (part 2, 6.3), and a curve (6.4).
const RSA: u16 = 0x0001;
const AES: u16 = 0x0006;
const SHA256: u16 = 0x000B;
const NONE: u16 = 0x0010;
const ECDSA: u16 = 0x0018;
const ECC: u16 = 0x0023;
const CFB: u16 = 0x0043;
const NIST_P256: u16 = 0x0003;

/// Attributes of a key (part 2, 8.3): fixed to the TPM and to its parent, made by the TPM, used for nothing but its purpose.
const RESTRICTED: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 16;
/// It decrypts, if a policy is met.
const EK_ATTRIBUTES: u32 = RESTRICTED | 1 << 7 | 1 << 17;
/// It signs, with the empty password, which nobody can lock by guessing.
const AK_ATTRIBUTES: u32 = RESTRICTED | 1 << 6 | 1 << 10 | 1 << 18;
/// What makes the attestation key another than that of other programs with such a template.
const AK_UNIQUE: &[u8] = b"slipway attestation key";
/// The policy of endorsement keys, PolicySecret(TPM_RH_ENDORSEMENT) (EK Credential Profile 2.5, B.3.3).
const EK_POLICY: [u8; 32] = [
    0x83, 0x71, 0x97, 0x67, 0x44, 0x84, 0xB3, 0xF8, 0x1A, 0x90, 0xCC, 0x8D, 0x46, 0xA5, 0xD7, 0x24, 0xFD, 0x52, 0xD7,
    0x6E, 0x06, 0x52, 0x0B, 0x64, 0xF2, 0xA1, 0xDA, 0x1B, 0x33, 0x14, 0x69, 0xAA,
];

/// Where certificates of endorsement keys are (EK Credential Profile 2.5, 2.2.1.4).
const RSA_CERTIFICATE: u32 = 0x01C0_0002;
const ECC_CERTIFICATE: u32 = 0x01C0_000A;
/// How much is read of a certificate at once, in bytes: what every TPM for a PC can.
const NV_CHUNK: usize = 512;
/// Why there is no certificate: no such index, nothing in it, or it is for somebody else (TPM_RC_HANDLE,
/// TPM_RC_NV_UNINITIALIZED, TPM_RC_AUTH_UNAVAILABLE, TPM_RC_NV_AUTHORIZATION).
const NO_CERTIFICATE: &[u32] = &[0x08B, 0x14A, 0x12F, 0x149];

const POLICY_SESSION: u8 = 1;
/// The shortest nonce that is accepted (part 1, 19.6.3.1). It proves nothing, because the session has no key.
const SESSION_NONCE: [u8; 16] = [0; 16];
/// How many times registers that change are quoted.
const QUOTES: u32 = 5;

/// A TPM that proves which one it is. It keeps its keys loaded until it is dropped.
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
    /// Opens a TPM: the device that the kernel's resource manager gives, [`crate::DEVICE`], or a UNIX stream socket
    /// behind which a software TPM is.
    ///
    /// `deadline` is how long each command may take at most. Dropping the attester takes as long if the TPM fails just
    /// then. An RSA key, which some TPMs need, may take a minute.
    ///
    /// # Errors
    ///
    /// [`TpmError::Missing`] if there is no TPM, and only then.
    pub fn open(path: &Path, deadline: Duration) -> Result<Self, TpmError> {
        Ok(Self { device: Device::open(path, deadline)?, loaded: None })
    }

    /// The keys of the TPM, which it makes from its seeds at each boot anew: the endorsement key, which stays the same,
    /// and the attestation key, which stays the same until the TPM is cleared. The endorsement key is the ECC one,
    /// unless there is a certificate for the RSA one alone.
    ///
    /// # Errors
    ///
    /// If the TPM does not make them. It does not if it knows no ECC P-256, or a password is set for a hierarchy.
    pub fn keys(&mut self) -> Result<TpmKeys, TpmError> {
        self.load().map(|loaded| loaded.keys.clone())
    }

    /// Answers a challenge that was made for the keys of this TPM.
    ///
    /// # Errors
    ///
    /// If the challenge was made for other keys, or the TPM has no SHA-256 bank. What [`Self::keys`] fails with.
    pub fn prove(&mut self, challenge: &TpmChallenge, event_log: Option<Vec<u8>>) -> Result<TpmProof, TpmError> {
        let &Loaded { ek, ak, .. } = self.load()?;
        let device = &mut self.device;
        let secret = open_secret(device, ek, ak, challenge)?;
        for _ in 0..QUOTES {
            // A register never returns to an earlier value. So what is the same before and after the quote was quoted.
            let pcrs = read_pcrs(device)?;
            let (quote, signature) = quote(device, ak, &challenge.nonce.0)?;
            if pcrs == read_pcrs(device)? {
                let [secret, quote, signature] = [secret, quote, signature].map(Blob);
                let nonce = challenge.nonce.clone();
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
            // Nobody needs them any more. The resource manager removes them too.
            drop(self.device.flush(ak));
            drop(self.device.flush(ek));
        }
    }
}

fn load(device: &mut Device) -> Result<Loaded, TpmError> {
    let mut certificate = read_certificate(device, ECC_CERTIFICATE)?;
    let mut template = ecc_ek();
    if certificate.is_none() {
        certificate = read_certificate(device, RSA_CERTIFICATE)?;
        if certificate.is_some() {
            template = rsa_ek();
        }
    }
    let (ek, ek_public) = create_primary(device, ENDORSEMENT, &template).map_err(|e| e.in_hierarchy("endorsement"))?;
    match create_primary(device, OWNER, &ak_template()) {
        Ok((ak, ak_public)) => {
            let keys = TpmKeys { ek: Blob(ek_public), ek_certificate: certificate.map(Blob), ak: Blob(ak_public) };
            Ok(Loaded { ek, ak, keys })
        }
        Err(error) => {
            // The error of the key says more than that of the flush.
            drop(device.flush(ek));
            Err(error.in_hierarchy("owner"))
        }
    }
}

/// Template L-2 (EK Credential Profile 2.5, B.3.4), as TPMT_PUBLIC (part 2, 12.2.4).
fn ecc_ek() -> Vec<u8> {
    let coordinate = sized(&[0; 32]);
    [ek_template(ECC), words(&[NIST_P256, NONE]), coordinate.clone(), coordinate].concat()
}

/// Template L-1 (EK Credential Profile 2.5, B.3.3). An exponent of zero means the default.
fn rsa_ek() -> Vec<u8> {
    [ek_template(RSA), words(&[2048, 0, 0]), sized(&[0; 256])].concat()
}

/// What both have: AES-128-CFB, and no scheme.
fn ek_template(kind: u16) -> Vec<u8> {
    let attributes = EK_ATTRIBUTES.to_be_bytes().to_vec();
    [words(&[kind, SHA256]), attributes, sized(&EK_POLICY), words(&[AES, 128, CFB, NONE])].concat()
}

fn ak_template() -> Vec<u8> {
    let attributes = AK_ATTRIBUTES.to_be_bytes().to_vec();
    let parameters = words(&[NONE, ECDSA, SHA256, NIST_P256, NONE]);
    [words(&[ECC, SHA256]), attributes, sized(&[]), parameters, sized(AK_UNIQUE), sized(&[])].concat()
}

/// Makes a primary key. It is always the same for a hierarchy and a template. Returns its handle and its TPMT_PUBLIC.
fn create_primary(device: &mut Device, hierarchy: u32, template: &[u8]) -> Result<(u32, Vec<u8>), TpmError> {
    let nothing_sensitive = sized(&[0; 4]);
    let no_pcrs = vec![0; 4];
    let parameters = [nothing_sensitive, sized(template), sized(&[]), no_pcrs].concat();
    device.call(Command::CreatePrimary, &[hierarchy], &[PASSWORD], &parameters, |answer| {
        let handle = answer.u32()?;
        answer.u32()?;
        Some((handle, answer.sized()?.to_vec()))
    })
}

/// The certificate at an index, if there is one that is in DER and as short as the server takes.
fn read_certificate(device: &mut Device, index: u32) -> Result<Option<Vec<u8>>, TpmError> {
    match read_nv(device, index) {
        Ok(bytes) => Ok(der(&bytes).map(<[u8]>::to_vec)),
        Err(error) if error.is(NO_CERTIFICATE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads what is at an index, up to the longest certificate.
fn read_nv(device: &mut Device, index: u32) -> Result<Vec<u8>, TpmError> {
    // TPM2B_NV_PUBLIC (part 2, 13.6): index, digest, attributes, policy, size.
    let size = device.call(Command::NvReadPublic, &[index], &[], &[], |answer| {
        let mut public = Reader(answer.sized()?);
        public.take(10)?;
        public.sized()?;
        public.u16()
    })?;
    let size = usize::from(size).min(MAX_BLOB_BYTES);
    let mut bytes = Vec::new();
    while bytes.len() < size {
        let chunk = NV_CHUNK.min(size - bytes.len());
        let range = words(&[chunk as u16, bytes.len() as u16]);
        let read = device.call(Command::NvRead, &[index, index], &[PASSWORD], &range, |answer| {
            answer.u32()?;
            answer.sized().filter(|read| read.len() == chunk).map(<[u8]>::to_vec)
        })?;
        bytes.extend(read);
    }
    Ok(bytes)
}

/// The sequence in DER (X.690, 8.1) that these bytes begin with, without what pads it.
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

/// Opens the secret of a challenge with the endorsement key, which the TPM does only if it has the attestation key too.
fn open_secret(device: &mut Device, ek: u32, ak: u32, challenge: &TpmChallenge) -> Result<Vec<u8>, TpmError> {
    let [symmetric, hash] = [NONE, SHA256].map(u16::to_be_bytes);
    let parameters = [&sized(&SESSION_NONCE)[..], &sized(&[]), &[POLICY_SESSION], &symmetric, &hash].concat();
    let session = device.call(Command::StartAuthSession, &[NULL, NULL], &[], &parameters, |answer| answer.u32())?;
    let secret = open_secret_in(device, session, ek, ak, challenge);
    // After a failure, the session's own error says more.
    let flushed = device.flush(session);
    let secret = secret?;
    flushed.map(|()| secret)
}

fn open_secret_in(
    device: &mut Device,
    session: u32,
    ek: u32,
    ak: u32,
    challenge: &TpmChallenge,
) -> Result<Vec<u8>, TpmError> {
    // No nonce, no digest of the command, no reference, no expiry.
    let unlimited = [0; 2 + 2 + 2 + 4];
    let met = device.call(Command::PolicySecret, &[ENDORSEMENT, session], &[PASSWORD], &unlimited, |_| Some(()));
    met.map_err(|error| error.in_hierarchy("endorsement"))?;
    let sealed = [sized(&challenge.credential.0), sized(&challenge.secret.0)].concat();
    device.call(Command::ActivateCredential, &[ak, ek], &[PASSWORD, session], &sealed, |answer| {
        answer.u32()?;
        answer.sized().map(<[u8]>::to_vec)
    })
}

/// Has the registers signed, with a nonce. Returns TPMS_ATTEST and TPMT_SIGNATURE.
fn quote(device: &mut Device, ak: u32, nonce: &[u8]) -> Result<(Vec<u8>, Vec<u8>), TpmError> {
    let scheme_of_the_key = words(&[NONE]);
    let parameters = [sized(nonce), scheme_of_the_key, selection(&QUOTED_PCRS)].concat();
    device.call(Command::Quote, &[ak], &[PASSWORD], &parameters, |answer| {
        let len = answer.u32()?;
        let mut parameters = Reader(answer.take(usize::try_from(len).ok()?)?);
        let quote = parameters.sized()?;
        Some((quote.to_vec(), parameters.0.to_vec()))
    })
}

/// The values of [`QUOTED_PCRS`], in that order. A TPM gives the first eight of those it is asked for.
fn read_pcrs(device: &mut Device) -> Result<Vec<Blob>, TpmError> {
    let mut values = Vec::new();
    while let Some(left) = QUOTED_PCRS.get(values.len()..).filter(|left| !left.is_empty()) {
        let asked = selection(left);
        let read = device.call(Command::PcrRead, &[], &[], &asked, |answer| {
            answer.u32()?;
            for _ in 0..answer.u32()? {
                answer.u16()?;
                let len = answer.u8()?;
                answer.take(usize::from(len))?;
            }
            let count = answer.u32().filter(|count| *count as usize <= left.len())?;
            (0..count).map(|_| answer.sized().map(|value| Blob(value.to_vec()))).collect::<Option<Vec<Blob>>>()
        })?;
        if read.is_empty() {
            return Err(TpmError::NoBank);
        }
        values.extend(read);
    }
    Ok(values)
}

/// TPML_PCR_SELECTION of registers in the SHA-256 bank (part 2, 10.9.7), of which there are 24.
fn selection(pcrs: &[u8]) -> Vec<u8> {
    let mask = pcrs.iter().filter(|pcr| **pcr < 24).fold(0_u32, |mask, pcr| mask | 1 << pcr);
    let [low, middle, high, _] = mask.to_le_bytes();
    [&1_u32.to_be_bytes()[..], &SHA256.to_be_bytes(), &[3, low, middle, high]].concat()
}
