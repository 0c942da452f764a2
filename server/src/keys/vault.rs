//! Encrypts texts that the store keeps and the server needs again, with ChaCha20-Poly1305 (RFC 8439). The key is
//! derived from the site's secret, which the database has at most encrypted, so a copy of the database alone does not
//! reveal the texts.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use slipway_protocol::Secret;

use crate::base::random;
use crate::keys::jwt::Signer;

/// Encrypts and decrypts texts.
pub struct Vault {
    key: LessSafeKey,
}

impl Vault {
    /// Makes a vault whose key is the same on all servers of the site.
    pub fn of(signer: &Signer) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &signer.derived("texts in the store"));
        Self { key: LessSafeKey::new(key.expect("the key has 32 bytes")) }
    }

    /// Encrypts a text. `place` says what the text belongs to. It is needed to decrypt the text, so that nobody
    /// who can write to the database can move it elsewhere.
    pub fn seal(&self, place: &str, text: &str) -> Vec<u8> {
        // Random, because several servers have the key. They would need thousands of millions of texts to draw one
        // twice.
        let nonce: [u8; NONCE_LEN] = random::bytes();
        let mut sealed = text.as_bytes().to_vec();
        let done = self.key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(place.as_bytes()),
            &mut sealed,
        );
        done.expect("texts are far below 256 GiB");
        [&nonce[..], &sealed].concat()
    }

    /// Decrypts a text. `None` if it was encrypted with another key or for another place, or was changed.
    pub fn open(&self, place: &str, sealed: &[u8]) -> Option<Secret> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let mut sealed = sealed.to_vec();
        let text = self.key.open_in_place(nonce, Aad::from(place.as_bytes()), &mut sealed).ok()?;
        Some(Secret::from(String::from_utf8(text.to_vec()).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_and_place_open_a_text_that_was_not_changed() {
        let vault = Vault::of(&Signer::new("a secret of this site"));
        let sealed = vault.seal("run a", "#cloud-config");
        let open = |vault: &Vault, place: &str, sealed: &[u8]| Some(vault.open(place, sealed)?.reveal().to_owned());
        assert_eq!(open(&vault, "run a", &sealed).as_deref(), Some("#cloud-config"));
        assert_ne!(vault.seal("run a", "#cloud-config"), sealed, "another one each time");
        assert!(!sealed.windows(5).any(|part| part == b"cloud"));
        assert_eq!(open(&vault, "run b", &sealed), None);
        assert_eq!(open(&Vault::of(&Signer::new("a secret of another site")), "run a", &sealed), None);
        for index in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[index] ^= 1;
            assert_eq!(open(&vault, "run a", &changed), None);
            assert_eq!(open(&vault, "run a", &sealed[..index]), None);
        }
    }
}
