//! Checks the raw image against the digests of its block map while it passes.

use std::mem;

use base16ct::lower::encode_string as hex;
use ring::digest::Context;
use slipway_formats::bmap::{Bmap, Checksum, Mapped};

use crate::error::{Error, ImageError};

/// The state of the check.
pub(crate) struct RangeCheck<'a> {
    map: &'a Bmap,
    /// Runs that were not checked yet, including those without a digest.
    left: &'a [Mapped],
    checksum: Checksum,
    /// Digest context of the first run in `left`.
    context: Box<Context>,
    /// Number of bytes that have passed.
    at: u64,
}

impl<'a> RangeCheck<'a> {
    /// Starts at the first byte of the image; none if the map has no digests.
    pub(crate) fn new(map: &'a Bmap) -> Option<Self> {
        let checksum = map.checksum.filter(|_| map.has_digests())?;
        Some(Self { map, left: &map.ranges, checksum, context: Box::new(checksum.context()), at: 0 })
    }

    /// Processes the next bytes. Fails at the end of a run that does not match the map.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while let Some((mapped, rest)) = self.left.split_first() {
            let skip = mapped.bytes.start.saturating_sub(self.at).min(bytes.len() as u64);
            let take = mapped.bytes.end.saturating_sub(self.at + skip).min(bytes.len() as u64 - skip);
            let (_, wanted) = bytes.split_at(skip as usize);
            let (taken, after) = wanted.split_at(take as usize);
            if mapped.digest.is_some() {
                self.context.update(taken);
            }
            self.at += skip + take;
            bytes = after;
            if self.at < mapped.bytes.end {
                return Ok(());
            }
            let found = mem::replace(&mut *self.context, self.checksum.context()).finish();
            self.verify(mapped, found.as_ref())?;
            self.left = rest;
        }
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Fails if the image has ended before the map.
    pub(crate) fn finish(self) -> Result<(), Error> {
        match self.left {
            [] => Ok(()),
            _ => Err(ImageError::RawSize { expected: self.map.image_size, found: self.at.to_string() }.into()),
        }
    }

    fn verify(&self, mapped: &Mapped, found: &[u8]) -> Result<(), Error> {
        let Some(expected) = mapped.digest.as_deref().filter(|expected| *expected != found) else { return Ok(()) };
        Err(ImageError::MappedDigest {
            blocks: self.map.blocks(&mapped.bytes),
            bytes: mapped.bytes.clone(),
            algorithm: self.checksum.name(),
            expected: hex(expected),
            found: hex(found),
        }
        .into())
    }
}
