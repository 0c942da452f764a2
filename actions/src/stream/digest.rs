//! Hashes what passes by: the stream as delivered, and the raw image.

use ring::digest::{Context, SHA256, SHA384, SHA512};
use slipway_protocol::{Algorithm, Digest};

use super::Halt;
use super::buffers::Queue;
use super::progress::Meter;
use crate::error::Error;

/// Begins a digest.
pub(super) fn context(algorithm: Algorithm) -> Context {
    Context::new(match algorithm {
        Algorithm::Sha256 => &SHA256,
        Algorithm::Sha384 => &SHA384,
        Algorithm::Sha512 => &SHA512,
    })
}

/// Passes every buffer on, and fails at the end if the bytes were not those of the digest.
pub(super) fn run(
    what: &'static str,
    expected: &Digest,
    input: &Queue,
    out: &Queue,
    meter: &Meter,
) -> Result<(), Halt> {
    let mut context = context(expected.algorithm());
    let mut bytes = 0;
    while let Some(buffer) = input.recv(meter)? {
        context.update(buffer.filled());
        bytes += buffer.filled().len() as u64;
        out.send(buffer);
    }
    out.close();
    let found: String = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    if found != expected.hex() {
        return Err(Halt::Failed(Error::Digest { what, expected: expected.clone(), found, bytes }));
    }
    Ok(())
}
