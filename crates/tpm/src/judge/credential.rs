//! TPM2_MakeCredential: encrypts a secret so that only one TPM can decrypt it, and only with one of its objects loaded.
//!
//! Trusted Platform Module Library, Part 1: section 24 "Credential Protection", 11.4.10 "Key Derivation Function", and
//! "Secret Sharing" in annexes B (RSA) and C (ECC).

use aes::Aes128;
use aes::cipher::array::Array;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use num_bigint::BigUint;
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use ring::digest::{Context, SHA256, digest};
use ring::error::Unspecified;
use ring::hmac::{self, HMAC_SHA256};
use ring::rand::{SecureRandom, SystemRandom};

use super::keys::{Name, PublicKey};

/// Label of the seed, with its final zero.
const IDENTITY: &[u8] = b"IDENTITY\0";

/// A secret that is encrypted to a TPM's key and bound to an object of the TPM.
pub struct Credential {
    /// TPMS_ID_OBJECT: the encrypted secret and its HMAC.
    pub object: Vec<u8>,
    /// The contents of TPM2B_ENCRYPTED_SECRET: the seed, encrypted to the key.
    pub seed: Vec<u8>,
}

/// Encrypts a secret to a key, for a TPM that also has the object with this name.
///
/// # Errors
/// If the key is not a valid curve point, or no random bytes are available.
pub fn make(key: &PublicKey, object: &Name, secret: &[u8; 32]) -> Result<Credential, Unspecified> {
    let (seed, encrypted_seed) = match key {
        PublicKey::P256 { x, .. } => share(&key.bits(), x)?,
        PublicKey::Rsa { modulus } => encrypt_seed(modulus)?,
    };
    // A TPM2B_DIGEST.
    let mut encrypted = [&[0, 32], &secret[..]].concat();
    encrypt(derive(&seed, b"STORAGE\0", object, 128).first_chunk().ok_or(Unspecified)?, &mut encrypted);
    let key = hmac::Key::new(HMAC_SHA256, &derive(&seed, b"INTEGRITY\0", &[], 256));
    let integrity = hmac::sign(&key, &[&encrypted, &object[..]].concat());
    let object = [&[0, 32], integrity.as_ref(), &encrypted].concat();
    Ok(Credential { object, seed: encrypted_seed })
}

/// Agrees on a seed with the owner of a point, whose first coordinate is `x`. Returns the seed and our public point
/// (TPMS_ECC_POINT).
fn share(point: &[u8], x: &[u8; 32]) -> Result<([u8; 32], Vec<u8>), Unspecified> {
    let ephemeral = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new())?;
    let public = ephemeral.compute_public_key()?;
    // The first byte says that both coordinates follow.
    let (our_x, our_y) = public.as_ref().get(1..).ok_or(Unspecified)?.split_at_checked(32).ok_or(Unspecified)?;
    let seed = agree_ephemeral(ephemeral, &UnparsedPublicKey::new(&ECDH_P256, point), |shared| {
        // KDFe: 256 bits take one round.
        sha256(&[&1_u32.to_be_bytes(), shared, IDENTITY, our_x, x])
    })?;
    Ok((seed, [&[0, 32], our_x, &[0, 32], our_y].concat()))
}

/// Makes a seed and encrypts it for the owner of an RSA key: RSAES-OAEP with SHA-256 (RFC 8017, section 7.1.1).
///
/// The arithmetic is not constant-time. Each seed is used once, so its timing cannot be measured repeatedly.
fn encrypt_seed(modulus: &[u8; 256]) -> Result<([u8; 32], Vec<u8>), Unspecified> {
    let (mut seed, mut salt) = ([0; 32], [0; 32]);
    SystemRandom::new().fill(&mut seed)?;
    SystemRandom::new().fill(&mut salt)?;
    // 256 bytes: a zero, the salt, and 223 bytes with the seed at their end.
    let mut data = [digest(&SHA256, IDENTITY).as_ref(), &[0; 158], &[1], &seed].concat();
    mask(&mut data, &salt);
    mask(&mut salt, &data);
    let message = BigUint::from_bytes_be(&[&salt[..], &data].concat());
    let encrypted = message.modpow(&65537_u32.into(), &BigUint::from_bytes_be(modulus)).to_bytes_be();
    let zeros = modulus.len().saturating_sub(encrypted.len());
    Ok((seed, [vec![0; zeros], encrypted].concat()))
}

/// Applies MGF1 with SHA-256 (RFC 8017, appendix B.2.1) to the data.
fn mask(data: &mut [u8], seed: &[u8]) {
    for (counter, piece) in (0_u32..).zip(data.chunks_mut(32)) {
        add(piece, &sha256(&[seed, &counter.to_be_bytes()]));
    }
}

/// Derives a key: KDFa with HMAC-SHA256, of which one round gives 256 bits. The label ends with a zero.
fn derive(seed: &[u8; 32], label: &[u8], context: &[u8], bits: u32) -> [u8; 32] {
    let message = [&1_u32.to_be_bytes(), label, context, &bits.to_be_bytes()].concat();
    let tag = hmac::sign(&hmac::Key::new(HMAC_SHA256, seed), &message);
    whole(tag.as_ref())
}

/// Encrypts data with AES-128 in CFB mode. The initialization vector is zero.
fn encrypt(key: &[u8; 16], data: &mut [u8]) {
    let cipher = Aes128::new(&Array(*key));
    let mut block = Array([0; 16]);
    for piece in data.chunks_mut(16) {
        cipher.encrypt_block(&mut block);
        add(piece, &block);
        // Only the last piece is shorter, and no piece comes after it.
        block.iter_mut().zip(piece).for_each(|(block, byte)| *block = *byte);
    }
}

fn add(data: &mut [u8], stream: &[u8]) {
    data.iter_mut().zip(stream).for_each(|(byte, other)| *byte ^= other);
}

fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    parts.iter().for_each(|part| context.update(part));
    whole(context.finish().as_ref())
}

/// A digest of SHA-256 as an array.
fn whole(digest: &[u8]) -> [u8; 32] {
    let mut array = [0; 32];
    array.copy_from_slice(digest);
    array
}
