//! Detached signatures over a stream: minisign, and plain Ed25519 (RFC 8032).
//!
//! The format of minisign is defined by its manual page, "Signature format" and "Public key format". By default it
//! signs the BLAKE2b-512 digest of the file ("ED"). Its older format ("Ed") signs the file itself, like plain Ed25519.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use blake2::{Blake2b512, Digest as _};
use ed25519_dalek::{Signature, StreamVerifier, VerifyingKey};

/// Most bytes of a signature file that are read; a longer one is refused.
pub const MAX_SIGNATURE: usize = 8 << 10;
/// Most bytes of a public key that are read; a longer one is refused.
const MAX_KEY: usize = 8 << 10;
/// The bytes before the key in a SubjectPublicKeyInfo of Ed25519 (RFC 8410, section 4): two sequences, the object
/// identifier 1.3.101.112, a bit string.
const SPKI: [u8; 12] = [0x30, 0x2A, 0x30, 0x05, 0x06, 0x03, 0x2B, 0x65, 0x70, 0x03, 0x21, 0x00];
const KEY: usize = 32;
const SIGNATURE: usize = 64;
/// In minisign, a key and a signature begin with two letters for the algorithm and eight bytes for the key number.
const MINISIGN_HEAD: usize = 10;
const TRUSTED_COMMENT: &str = "trusted comment: ";

/// Why a signature is not valid, or cannot be checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// The public key has no known format.
    #[error(
        "reading the public key: {reason}; give a minisign key, or an Ed25519 key as PEM, base64 or hexadecimal digits"
    )]
    Key { reason: &'static str },
    /// The signature has no known format, or does not fit the key's format.
    #[error("reading the signature: {reason}; check the URL of the signature")]
    Signature { reason: &'static str },
    /// The signature was made with another key.
    #[error("checking the signature: it was made with key {found}, not with {expected}")]
    OtherKey {
        /// Number of the public key, as minisign prints it.
        expected: String,
        /// Number of the key that the signature names.
        found: String,
    },
    /// The signature does not match the data and the key.
    #[error(
        "checking the signature of {what}: it was made over other data or with another key; check the URL, the URL of \
         the signature and the public key"
    )]
    Wrong {
        /// The signed data: the content, or the trusted comment of a minisign signature.
        what: &'static str,
    },
}

/// Verifies a signature over a stream.
pub struct Verifier(Signed);

enum Signed {
    /// The stream itself.
    Stream(StreamVerifier),
    /// The BLAKE2b-512 digest of the stream.
    Digest { hasher: Blake2b512, key: VerifyingKey, signature: Signature },
}

impl Verifier {
    /// Takes a public key and a signature: for a minisign key a minisign file, otherwise 64 bytes, raw or in base64.
    /// Everything that does not need the stream is checked here.
    pub fn new(public_key: &str, signature: &[u8]) -> Result<Self, Error> {
        let key = PublicKey::parse(public_key)?;
        if signature.len() > MAX_SIGNATURE {
            return Err(Error::Signature { reason: "it is too long" });
        }
        match key.minisign {
            Some(number) => minisign(&key.key, number, signature),
            None => plain(&key.key, signature),
        }
    }

    /// Takes the next bytes of the stream.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Signed::Stream(verifier) => verifier.update(bytes),
            Signed::Digest { hasher, .. } => hasher.update(bytes),
        }
    }

    /// Fails if the signature is not valid for all bytes taken.
    pub fn finish(self) -> Result<(), Error> {
        let holds = match self.0 {
            Signed::Stream(verifier) => verifier.finalize_and_verify().is_ok(),
            Signed::Digest { hasher, key, signature } => is_signed(&key, &signature, &hasher.finalize()),
        };
        if holds { Ok(()) } else { Err(Error::Wrong { what: "the content" }) }
    }
}

struct PublicKey {
    key: VerifyingKey,
    /// Number of the key, if it is a minisign key.
    minisign: Option<[u8; 8]>,
}

impl PublicKey {
    fn parse(text: &str) -> Result<Self, Error> {
        let refused = |reason| Error::Key { reason };
        if text.len() > MAX_KEY {
            return Err(refused("it is too long"));
        }
        // The comment of minisign and the armour of PEM are on lines of their own.
        let is_key = |line: &&str| !line.starts_with("untrusted comment:") && !line.starts_with("-----");
        let text: String = text.lines().map(str::trim).filter(is_key).collect();
        let bytes = bytes_of_hex(&text).or_else(|| STANDARD.decode(&text).ok());
        let bytes = bytes.ok_or_else(|| refused("it is neither base64 nor 64 hexadecimal digits"))?;
        let (minisign, key) = match bytes.split_last_chunk::<KEY>() {
            Some(([], key)) => (None, key),
            Some((head, key)) if head == SPKI => (None, key),
            Some(([b'E', b'd', number @ ..], key)) if number.len() == 8 => (number.first_chunk().copied(), key),
            _ => return Err(refused("it is not an Ed25519 key")),
        };
        let key = VerifyingKey::from_bytes(key).ok().filter(|key| !key.is_weak());
        Ok(Self { key: key.ok_or_else(|| refused("it is not a point on the curve, or it is a weak key"))?, minisign })
    }
}

fn plain(key: &VerifyingKey, signature: &[u8]) -> Result<Verifier, Error> {
    let decoded = || STANDARD.decode(signature.trim_ascii()).ok();
    let bytes = <[u8; SIGNATURE]>::try_from(signature).ok().or_else(|| decoded()?.try_into().ok());
    let bytes = bytes.ok_or(Error::Signature { reason: "it is not 64 bytes, raw or in base64" })?;
    over_stream(key, &Signature::from_bytes(&bytes))
}

fn over_stream(key: &VerifyingKey, signature: &Signature) -> Result<Verifier, Error> {
    let verifier = key.verify_stream(signature);
    let verifier = verifier.map_err(|_| Error::Signature { reason: "its number is out of range" })?;
    Ok(Verifier(Signed::Stream(verifier)))
}

fn minisign(key: &VerifyingKey, number: [u8; 8], signature: &[u8]) -> Result<Verifier, Error> {
    let refused = Error::Signature { reason: "it is not a minisign signature" };
    let parsed = str::from_utf8(signature).ok().and_then(MinisignSignature::parse).ok_or(refused)?;
    if parsed.number != number {
        // minisign prints the number as a 64-bit little-endian integer.
        let shown = |number| format!("{:016X}", u64::from_le_bytes(number));
        return Err(Error::OtherKey { expected: shown(number), found: shown(parsed.number) });
    }
    let comment = [parsed.signature.to_bytes().as_slice(), parsed.trusted_comment.as_bytes()].concat();
    if !is_signed(key, &parsed.global_signature, &comment) {
        return Err(Error::Wrong { what: "the trusted comment" });
    }
    match parsed.algorithm {
        [b'E', b'd'] => over_stream(key, &parsed.signature),
        _ => Ok(Verifier(Signed::Digest { hasher: Blake2b512::new(), key: *key, signature: parsed.signature })),
    }
}

struct MinisignSignature<'a> {
    algorithm: [u8; 2],
    number: [u8; 8],
    signature: Signature,
    trusted_comment: &'a str,
    /// Signature of the signature and the trusted comment together.
    global_signature: Signature,
}

impl<'a> MinisignSignature<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut lines = text.lines();
        lines.next().filter(|line| line.starts_with("untrusted comment:"))?;
        let bytes: [u8; MINISIGN_HEAD + SIGNATURE] = STANDARD.decode(lines.next()?.trim()).ok()?.try_into().ok()?;
        let trusted_comment = lines.next()?.strip_prefix(TRUSTED_COMMENT)?;
        let global: [u8; SIGNATURE] = STANDARD.decode(lines.next()?.trim()).ok()?.try_into().ok()?;
        let (algorithm, rest) = bytes.split_first_chunk::<2>()?;
        let (number, signature) = rest.split_first_chunk::<8>()?;
        let known = matches!(algorithm, b"Ed" | b"ED");
        known.then_some(Self {
            algorithm: *algorithm,
            number: *number,
            signature: Signature::from_slice(signature).ok()?,
            trusted_comment,
            global_signature: Signature::from_bytes(&global),
        })
    }
}

fn is_signed(key: &VerifyingKey, signature: &Signature, message: &[u8]) -> bool {
    key.verify_stream(signature).is_ok_and(|mut verifier| {
        verifier.update(message);
        verifier.finalize_and_verify().is_ok()
    })
}

/// Decodes 64 hexadecimal digits.
fn bytes_of_hex(digits: &str) -> Option<Vec<u8>> {
    base16ct::mixed::decode_vec(digits).ok().filter(|bytes| bytes.len() == KEY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &[u8] = b"the image\0";
    /// Made by minisign 0.11 and OpenSSL 3.0, according to the file names.
    const MINISIGN_KEY: &str = include_str!("../tests/signatures/minisign.pub");
    const MINISIGN: &str = include_str!("../tests/signatures/minisign.sig");
    const MINISIGN_LEGACY: &str = include_str!("../tests/signatures/minisign-legacy.sig");
    const OPENSSL_KEY: &str = include_str!("../tests/signatures/openssl.pem");
    const OPENSSL_KEY_HEX: &str = "3d1bf88e9ea56d5286667cab9e87c268cac3c602fe9a2955da35c8ea0cf01033";
    const OPENSSL: &str = include_str!("../tests/signatures/openssl.sig");

    fn verify(key: &str, signature: &[u8], message: &[u8]) -> Result<(), Error> {
        let mut verifier = Verifier::new(key, signature)?;
        message.chunks(3).for_each(|part| verifier.update(part));
        verifier.finish()
    }

    /// Checks that the signature is valid for the message, and for nothing else.
    fn check(key: &str, signature: &[u8]) {
        assert_eq!(verify(key, signature, MESSAGE), Ok(()), "{key}");
        let wrong = Err(Error::Wrong { what: "the content" });
        for changed in [b"".as_slice(), b"the image", b"the image\0\0", b"The image\0"] {
            assert_eq!(verify(key, signature, changed), wrong, "{key} {changed:?}");
        }
    }

    #[test]
    fn signatures_of_minisign_and_openssl_hold_for_what_they_sign() {
        check(MINISIGN_KEY, MINISIGN.as_bytes());
        check(MINISIGN_KEY, MINISIGN_LEGACY.as_bytes());
        check(MINISIGN_KEY.lines().nth(1).unwrap(), MINISIGN.as_bytes());
        check(OPENSSL_KEY, OPENSSL.as_bytes());
        let raw = STANDARD.decode(OPENSSL.trim()).unwrap();
        check(OPENSSL_KEY, &raw);
        check(OPENSSL_KEY_HEX, &raw);
        check(&STANDARD.encode(bytes_of_hex(OPENSSL_KEY_HEX).unwrap()), &raw);
    }

    #[test]
    fn a_changed_signature_does_not_hold() {
        let raw = STANDARD.decode(OPENSSL.trim()).unwrap();
        for bit in 0..raw.len() * 8 {
            let mut changed = raw.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(OPENSSL_KEY, &changed, MESSAGE).is_err(), "bit {bit}");
        }
        let comment = MINISIGN.replace("trusted words", "trusted swords");
        assert_eq!(
            verify(MINISIGN_KEY, comment.as_bytes(), MESSAGE),
            Err(Error::Wrong { what: "the trusted comment" })
        );
    }

    #[test]
    fn what_cannot_be_checked_is_refused_before_the_stream() {
        let refused = |key: &str, signature: &[u8]| Verifier::new(key, signature).err().unwrap().to_string();
        assert!(refused("", MINISIGN.as_bytes()).contains("not an Ed25519 key"));
        assert!(refused("?", MINISIGN.as_bytes()).contains("neither base64"));
        // With the point of order one as the key, any signature would be valid.
        let weak = format!("01{}", "00".repeat(31));
        assert!(refused(&weak, OPENSSL.as_bytes()).contains("a weak key"));
        assert!(refused(&"A".repeat(MAX_KEY + 1), b"").contains("too long"));
        assert!(refused(MINISIGN_KEY, &[b'A'; MAX_SIGNATURE + 1]).contains("too long"));
        assert!(refused(MINISIGN_KEY, OPENSSL.as_bytes()).contains("not a minisign signature"));
        assert!(refused(OPENSSL_KEY, MINISIGN.as_bytes()).contains("not 64 bytes"));
        for cut in 0..MINISIGN.len() - 1 {
            refused(MINISIGN_KEY, &MINISIGN.as_bytes()[..cut]);
        }
        let mut other = STANDARD.decode(MINISIGN_KEY.lines().nth(1).unwrap()).unwrap();
        other[2] ^= 1;
        let message = refused(&STANDARD.encode(other), MINISIGN.as_bytes());
        assert!(message.contains("made with key CECB9D45458180F1, not with CECB9D45458180F0"), "{message}");
    }
}
