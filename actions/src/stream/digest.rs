//! Checks what passes by: the stream as delivered, and the raw image.

use ring::digest::{Context, SHA256, SHA384, SHA512};
use slipway_protocol::{Algorithm, Digest};

use super::Halt;
use super::bmap::RangeCheck;
use super::buffers::Queue;
use super::progress::Meter;
use crate::error::{Error, ImageError, SourceError};
use crate::signature::Verifier;

/// What bytes must prove to be once the last of them has passed.
pub(crate) enum Check<'a> {
    /// Those of a digest.
    Digest {
        /// What they are, for the error.
        what: &'static str,
        expected: Digest,
        context: Box<Context>,
    },
    /// Those that were signed.
    Signature {
        /// What they are, for the error.
        what: &'static str,
        /// Where the signature is from, for the error.
        url: String,
        verifier: Box<Verifier>,
    },
    /// Those of the digests of a block map.
    Ranges(RangeCheck<'a>),
}

impl Check<'_> {
    /// A check against a digest.
    pub(crate) fn digest(what: &'static str, expected: &Digest) -> Self {
        Check::Digest { what, expected: expected.clone(), context: Box::new(context(expected.algorithm())) }
    }

    fn update(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Check::Digest { context, .. } => context.update(bytes),
            Check::Signature { verifier, .. } => verifier.update(bytes),
            Check::Ranges(ranges) => return ranges.update(bytes),
        }
        Ok(())
    }

    fn finish(self, bytes: u64) -> Result<(), Error> {
        match self {
            Check::Digest { what, expected, context } => {
                let found = hex(*context);
                if found == expected.hex() {
                    Ok(())
                } else {
                    Err(ImageError::Digest { what, expected, found, bytes }.into())
                }
            }
            Check::Signature { what, url, verifier } => {
                verifier.finish().map_err(|source| Error::Source(SourceError::Signature { what, url, source }))
            }
            Check::Ranges(ranges) => ranges.finish(),
        }
    }
}

/// The digits of a digest of all that was put in.
fn hex(context: Context) -> String {
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest of all that was put in, by SHA-256.
pub(super) fn finish(context: Context) -> Digest {
    Digest::new(Algorithm::Sha256, &hex(context)).expect("a SHA-256 in hexadecimal is a digest")
}

/// Begins a digest.
pub(super) fn context(algorithm: Algorithm) -> Context {
    Context::new(match algorithm {
        Algorithm::Sha256 => &SHA256,
        Algorithm::Sha384 => &SHA384,
        Algorithm::Sha512 => &SHA512,
    })
}

/// Checks bytes that are all there.
pub(crate) fn verify(what: &'static str, expected: &Digest, bytes: &[u8]) -> Result<(), Error> {
    let mut check = Check::digest(what, expected);
    check.update(bytes)?;
    check.finish(bytes.len() as u64)
}

/// Passes every buffer on, and fails at the end, or before, if the bytes were not what they had to be.
pub(super) fn run(mut checks: Vec<Check<'_>>, input: &Queue, out: &Queue, meter: &Meter) -> Result<(), Halt> {
    let mut bytes = 0;
    while let Some(buffer) = input.recv(meter)? {
        checks.iter_mut().try_for_each(|check| check.update(buffer.filled()))?;
        bytes += buffer.filled().len() as u64;
        out.send(buffer);
    }
    out.close();
    checks.into_iter().try_for_each(|check| check.finish(bytes)).map_err(Halt::Failed)
}
