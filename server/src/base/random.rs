//! Unguessable ids, codes and tokens, and the hashes by which tokens are stored.

use base16ct::lower::encode_string as hex;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// Letters and digits that cannot be confused when read from a console: without I, L, O, 0, 1.
const CLAIM_ALPHABET: &[u8; 31] = b"ABCDEFGHJKMNPQRSTUVWXYZ23456789";
const CLAIM_LENGTH: usize = 6;

/// Returns bytes from the kernel's random number generator.
///
/// # Panics
/// If the kernel returns no random bytes, which does not happen on supported systems. Without them, keys could be
/// guessed.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
    bytes
}

/// An id for a node or a run: 64 random bits in hexadecimal.
pub fn id() -> String {
    hex(&bytes::<8>())
}

/// A secret of 256 bits in URL-safe base64.
pub fn token() -> String {
    URL_SAFE_NO_PAD.encode(bytes::<32>())
}

/// The short claim code that a machine shows on its console while it waits for an operator. `bytes` must look random.
pub fn claim_code(bytes: impl IntoIterator<Item = u8>) -> String {
    // Values beyond the alphabet are skipped, so that all letters are equally likely.
    let letters = bytes.into_iter().filter_map(|byte| CLAIM_ALPHABET.get(usize::from(byte % 32)));
    letters.take(CLAIM_LENGTH).map(|letter| char::from(*letter)).collect()
}

/// SHA-256 of a public key (SubjectPublicKeyInfo in DER), in hexadecimal.
pub fn fingerprint(public_key: &[u8]) -> String {
    hex(&Sha256::digest(public_key))
}

/// SHA-256 of a token in hexadecimal, stored instead of the token. Tokens are random, so no salt is needed.
pub fn token_hash(token: &str) -> String {
    hex(&Sha256::digest(token))
}

/// SHA-256, in hexadecimal, of a token that is valid for a single image.
pub fn image_token_hash(token: &str, digest: &slipway_protocol::Digest) -> String {
    token_hash(&format!("{token} {digest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_code_is_six_letters_that_cannot_be_confused() {
        for _ in 0..1000 {
            let code = claim_code(bytes::<32>());
            assert_eq!(code.len(), 6);
            assert!(!code.contains(['I', 'L', 'O', '0', '1']), "{code}");
        }
    }
}
