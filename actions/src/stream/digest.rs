//! Hashes what passes by: the stream as delivered, and the raw image.

use sha2::{Digest as _, Sha256, Sha512};
use slipway_protocol::{Algorithm, Digest};

use super::Halt;
use super::buffers::Queue;
use super::progress::Meter;
use crate::error::Error;

enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Hasher::Sha256(Sha256::new()),
            Algorithm::Sha512 => Hasher::Sha512(Sha512::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// Lower-case hexadecimal digits.
    fn finish(self) -> String {
        let bytes = match self {
            Hasher::Sha256(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha512(hasher) => hasher.finalize().to_vec(),
        };
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Passes every buffer on, and fails at the end if the bytes were not those of the digest.
pub(super) fn run(
    what: &'static str,
    expected: &Digest,
    input: &Queue,
    out: &Queue,
    meter: &Meter,
) -> Result<(), Halt> {
    let mut hasher = Hasher::new(expected.algorithm());
    let mut bytes = 0;
    while let Some(buffer) = input.recv(meter)? {
        hasher.update(buffer.filled());
        bytes += buffer.filled().len() as u64;
        out.send(buffer);
    }
    out.close();
    let found = hasher.finish();
    if found != expected.hex() {
        return Err(Halt::Failed(Error::Digest { what, expected: expected.clone(), found, bytes }));
    }
    Ok(())
}
