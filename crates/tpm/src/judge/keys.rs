//! The public keys of a TPM. Structures: Trusted Platform Module Library, Part 2, sections 6.3, 8.3 and 12.2.

use ring::digest::{SHA256, digest};
use slipway_protocol::node::attestation::TpmKeys;
use thiserror::Error;

use crate::wire::{
    self, AES, CFB, DECRYPT, ECC, ECDSA, FIXED, MADE_BY_TPM, NIST_P256, NONE, RESTRICTED, RSA, Reader, SIGN,
};

/// Attributes of a key that the TPM made and that cannot leave it.
const OWN: u32 = FIXED | MADE_BY_TPM;

/// SubjectPublicKeyInfo before the bits of a point of P-256 (RFC 5480).
const P256_INFO: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// SubjectPublicKeyInfo before the bits of an RSA key of 2048 bits with the exponent 65537 (RFC 3279).
const RSA_INFO: [u8; 24] = [
    0x30, 0x82, 0x01, 0x22, 0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
    0x03, 0x82, 0x01, 0x0f, 0x00,
];
/// RSAPublicKey (RFC 8017) before and after a modulus of 2048 bits. The exponent is 65537.
const RSA_BEFORE_MODULUS: [u8; 9] = [0x30, 0x82, 0x01, 0x0a, 0x02, 0x82, 0x01, 0x01, 0x00];
const RSA_AFTER_MODULUS: [u8; 5] = [0x02, 0x03, 0x01, 0x00, 0x01];

/// The keys of a TPM, in the right form. They do not prove that they are in a TPM.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The endorsement key.
    pub(crate) ek: PublicKey,
    pub(crate) ek_name: Name,
    /// The manufacturer's certificate of the endorsement key in DER, if the machine sent one.
    pub(crate) ek_certificate: Option<Vec<u8>>,
    /// The point of the attestation key, uncompressed, and the name of the key.
    pub(crate) ak: Vec<u8>,
    pub(crate) ak_name: Name,
}

/// Why keys cannot be used for attestation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("reading the {key} of a TPM: {reason}")]
pub struct KeysError {
    /// The key that cannot be used.
    pub key: &'static str,
    /// What is wrong with the key.
    pub reason: &'static str,
}

/// Name of an object: the algorithm, then the digest of the public area (Part 1, section 16).
pub(crate) type Name = [u8; 34];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublicKey {
    P256 { x: [u8; 32], y: [u8; 32] },
    Rsa { modulus: [u8; 256] },
}

/// The fields of TPMT_PUBLIC that are checked.
struct Public {
    attributes: u32,
    /// Whether the symmetric algorithm is AES-128-CFB. Otherwise there is none.
    has_aes: bool,
    /// Whether the scheme is ECDSA with SHA-256. Otherwise there is none.
    has_ecdsa: bool,
    key: PublicKey,
}

impl Keys {
    /// Reads the keys and checks their attributes.
    ///
    /// The endorsement key must follow the templates L-1 or H-1 (RSA 2048), or L-2 or H-2 (ECC P-256) of the TCG EK
    /// Credential Profile for TPM 2.0, with any policy. The attestation key must be a restricted ECDSA P-256 signing
    /// key.
    ///
    /// # Errors
    /// If one of them is another kind of key.
    pub fn parse(keys: &TpmKeys) -> Result<Self, KeysError> {
        let named = |key| move |reason| KeysError { key, reason };
        let ek = endorsement_key(&keys.ek.0).map_err(named("endorsement key"))?;
        let ak = attestation_key(&keys.ak.0).map_err(named("attestation key"))?;
        Ok(Self {
            ek,
            ek_name: name(&keys.ek.0),
            ek_certificate: keys.ek_certificate.as_ref().map(|certificate| certificate.0.clone()),
            ak: ak.bits(),
            ak_name: name(&keys.ak.0),
        })
    }

    /// `sha256:` and the digest of the endorsement key as a SubjectPublicKeyInfo in DER, in hexadecimal.
    ///
    /// `tpm2_createek -G ecc -c ek.ctx -u ek.der -f der && sha256sum ek.der` gives the same.
    pub fn ek_digest(&self) -> String {
        text(digest(&SHA256, &self.ek.info()).as_ref())
    }

    /// `sha256:` and the digest of the public area of the attestation key, in hexadecimal, as in the name of the key.
    pub fn ak_digest(&self) -> String {
        let [_, _, digest @ ..] = &self.ak_name;
        text(digest)
    }
}

fn endorsement_key(public: &[u8]) -> Result<PublicKey, &'static str> {
    let public = Public::parse(public)?;
    if public.attributes & (OWN | RESTRICTED | DECRYPT | SIGN) != OWN | RESTRICTED | DECRYPT {
        return Err("it must be a restricted decryption key that the TPM made and that cannot leave it");
    }
    if !public.has_aes || public.has_ecdsa {
        return Err("it must encrypt with AES-128-CFB and have no signature scheme");
    }
    Ok(public.key)
}

fn attestation_key(public: &[u8]) -> Result<PublicKey, &'static str> {
    let public = Public::parse(public)?;
    if public.attributes & (OWN | RESTRICTED | DECRYPT | SIGN) != OWN | RESTRICTED | SIGN {
        return Err("it must be a restricted signing key that the TPM made and that cannot leave it");
    }
    if matches!(public.key, PublicKey::Rsa { .. }) || !public.has_ecdsa || public.has_aes {
        return Err("it must sign with ECDSA over P-256 and SHA-256");
    }
    Ok(public.key)
}

impl Public {
    fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        const SHORT: &str = "it is truncated";
        let mut rest = Reader(bytes);
        let kind = rest.u16().ok_or(SHORT)?;
        if rest.u16().ok_or(SHORT)? != wire::SHA256 {
            return Err("its name algorithm must be SHA-256");
        }
        let attributes = rest.u32().ok_or(SHORT)?;
        rest.sized().ok_or(SHORT)?;
        let has_aes = match rest.u16().ok_or(SHORT)? {
            NONE => false,
            AES if rest.u16().ok_or(SHORT)? == 128 && rest.u16().ok_or(SHORT)? == CFB => true,
            _ => return Err("its symmetric algorithm must be AES-128-CFB, or none"),
        };
        let has_ecdsa = match rest.u16().ok_or(SHORT)? {
            NONE => false,
            ECDSA if rest.u16().ok_or(SHORT)? == wire::SHA256 => true,
            _ => return Err("its scheme must be ECDSA with SHA-256, or none"),
        };
        let key = match kind {
            ECC => {
                if rest.u16().ok_or(SHORT)? != NIST_P256 {
                    return Err("its curve must be P-256");
                }
                if rest.u16().ok_or(SHORT)? != NONE {
                    return Err("its key derivation scheme must be none");
                }
                const NUMBER: &str = "its coordinates must have at most 32 bytes";
                PublicKey::P256 { x: rest.number().ok_or(NUMBER)?, y: rest.number().ok_or(NUMBER)? }
            }
            RSA => {
                if rest.u16().ok_or(SHORT)? != 2048 {
                    return Err("an RSA key must have 2048 bits");
                }
                if !matches!(rest.u32().ok_or(SHORT)?, 0 | 65537) {
                    return Err("its exponent must be 65537");
                }
                let modulus = rest.sized().ok_or(SHORT)?.try_into().map_err(|_| "its modulus must have 256 bytes")?;
                if !is_modulus(&modulus) {
                    return Err("its modulus must be an odd number of 2048 bits");
                }
                PublicKey::Rsa { modulus }
            }
            _ => return Err("it must be an ECC or an RSA key"),
        };
        if !rest.is_empty() {
            return Err("more bytes follow it");
        }
        Ok(Self { attributes, has_aes, has_ecdsa, key })
    }
}

/// Whether a number has 2048 bits and is odd.
fn is_modulus([first, .., last]: &[u8; 256]) -> bool {
    first & 0x80 != 0 && last & 1 != 0
}

impl PublicKey {
    /// The bits of the key in a SubjectPublicKeyInfo: the uncompressed point, or RSAPublicKey.
    pub(crate) fn bits(&self) -> Vec<u8> {
        match self {
            Self::P256 { x, y } => [&[4][..], x, y].concat(),
            Self::Rsa { modulus } => [&RSA_BEFORE_MODULUS[..], modulus, &RSA_AFTER_MODULUS].concat(),
        }
    }

    /// The key as a SubjectPublicKeyInfo in DER.
    fn info(&self) -> Vec<u8> {
        let before: &[u8] = match self {
            Self::P256 { .. } => &P256_INFO,
            Self::Rsa { .. } => &RSA_INFO,
        };
        [before, &self.bits()].concat()
    }
}

/// The name of an object with this public area, whose algorithm is SHA-256.
fn name(public: &[u8]) -> Name {
    let mut name = [0; 34];
    let (algorithm, digest_of_it) = name.split_at_mut(2);
    algorithm.copy_from_slice(&wire::SHA256.to_be_bytes());
    digest_of_it.copy_from_slice(digest(&SHA256, public).as_ref());
    name
}

fn text(digest: &[u8]) -> String {
    format!("sha256:{}", base16ct::lower::encode_string(digest))
}
