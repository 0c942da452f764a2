//! Checks of data as it passes: the stream as delivered, and the raw image.

use std::io::{self, BufRead, BufReader, Read};

use ring::digest::{Context, SHA256, SHA384, SHA512};
use slipway_formats::signature::Verifier;
use slipway_protocol::{Algorithm, Digest};

use super::ranges::RangeCheck;
use crate::error::{Error, ImageError, SourceError};

/// A check that the data must have passed after its last byte.
pub(crate) enum Check<'a> {
    /// The data must have this digest.
    Digest {
        /// What is checked, for the error.
        what: &'static str,
        expected: Digest,
        context: Box<Context>,
    },
    /// The data must have a valid signature.
    Signature {
        /// What is checked, for the error.
        what: &'static str,
        /// Where the signature came from, for the error.
        url: String,
        verifier: Box<Verifier>,
    },
    /// The data must match the digests of a block map.
    Ranges(RangeCheck<'a>),
}

impl Check<'_> {
    /// A check against a digest.
    pub(crate) fn digest(what: &'static str, expected: &Digest) -> Self {
        Check::Digest { what, expected: expected.clone(), context: Box::new(context(expected.algorithm())) }
    }

    /// Processes the next bytes. Fails as soon as they cannot be right.
    pub(crate) fn update(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Check::Digest { context, .. } => context.update(bytes),
            Check::Signature { verifier, .. } => verifier.update(bytes),
            Check::Ranges(ranges) => return ranges.update(bytes),
        }
        Ok(())
    }

    /// Fails unless the check is passed after all `bytes` bytes.
    pub(crate) fn finish(self, bytes: u64) -> Result<(), Error> {
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

/// The digest of all data of a context, in hexadecimal digits.
fn hex(context: Context) -> String {
    base16ct::lower::encode_string(context.finish().as_ref())
}

/// The SHA-256 digest of all data of a context.
pub(crate) fn finish(context: Context) -> Digest {
    Digest::new(Algorithm::Sha256, &hex(context)).expect("a SHA-256 in hexadecimal is a digest")
}

/// Reads the input to its end and returns its SHA-256 digest.
pub(crate) fn sha256(input: impl Read) -> io::Result<Digest> {
    let (mut context, mut input) = (context(Algorithm::Sha256), BufReader::with_capacity(64 << 10, input));
    loop {
        let bytes = input.fill_buf()?;
        let n = bytes.len();
        if n == 0 {
            return Ok(finish(context));
        }
        context.update(bytes);
        input.consume(n);
    }
}

/// Starts a digest.
pub(crate) fn context(algorithm: Algorithm) -> Context {
    Context::new(match algorithm {
        Algorithm::Sha256 => &SHA256,
        Algorithm::Sha384 => &SHA384,
        Algorithm::Sha512 => &SHA512,
    })
}

/// Checks bytes that are all in memory.
pub(crate) fn verify(what: &'static str, expected: &Digest, bytes: &[u8]) -> Result<(), Error> {
    let mut check = Check::digest(what, expected);
    check.update(bytes)?;
    check.finish(bytes.len() as u64)
}
