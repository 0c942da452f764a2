//! The Authenticode digest of a PE image and the fields it depends on (Microsoft, "PE Format"; "Windows Authenticode
//! Portable Executable Signature Format", "Calculating the PE Image Hash").

use std::ops::Range;

use ring::digest::{Context, SHA256};
use slipway_formats::pe::{Headers, SECTION, long, short};
use thiserror::Error;

use crate::key_error::KeyError;

/// Offsets in the optional header: size of all headers, and checksum.
const SIZE_OF_HEADERS: usize = 60;
const CHECKSUM: usize = 64;
/// Offset of the number of data directories, which the directories follow, in 32-bit and 64-bit images.
const DIRECTORIES_32: usize = 92;
const DIRECTORIES_64: usize = 108;
/// Index of the data directory of the certificate table, and bytes of one directory.
const CERTIFICATES: usize = 4;
const DIRECTORY: usize = 8;
/// Alignment of signatures in bytes.
pub const ALIGNMENT: usize = 8;

/// Why an image cannot be signed or verified.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ImageError {
    /// The image is not PE.
    #[error("reading an EFI program: it is not a PE image")]
    NotPe,
    /// The image is truncated, or its headers are wrong.
    #[error("reading an EFI program: {what} is outside the file, which is truncated or damaged")]
    CutOff { what: &'static str },
    /// The headers have no entry for the certificate table.
    #[error("reading an EFI program: its headers have no place for a signature")]
    NoDirectory,
    /// A digest would not cover all bytes, or some of them twice.
    #[error(
        "signing an EFI program: its sections overlap or leave gaps, so a signature would not cover all of it; \
         build it again with sections that follow one another"
    )]
    Gaps,
    /// The image is already signed.
    #[error("signing an EFI program: it is already signed; use the unsigned program, or remove its signatures first")]
    Signed,
    /// The image would be larger than 4 GiB.
    #[error("signing an EFI program: it is larger than 4 GiB")]
    TooLarge,
    /// A signature cannot be read.
    #[error("reading an EFI program: its signature {number} cannot be read: {reason}")]
    Signature {
        /// Number of the signature, from 1.
        number: usize,
        reason: &'static str,
    },
    /// The key cannot sign.
    #[error("signing an EFI program")]
    Key { source: KeyError },
}

/// Offsets in an image. All are inside it.
pub struct Layout {
    /// The field with the checksum, 4 bytes.
    pub checksum: usize,
    /// The data directory of the certificate table, 8 bytes.
    pub directory: usize,
    /// The signatures, at the end. Empty if there are none.
    pub certificates: Range<usize>,
    /// Bytes of all headers.
    headers: usize,
    /// The sections in the file, in ascending order.
    sections: Vec<Range<usize>>,
}

impl Layout {
    /// Reads the headers of a whole image.
    pub fn read(image: &[u8]) -> Result<Self, ImageError> {
        let found = Headers::read(image).ok_or(ImageError::NotPe)?;
        let Headers { optional, table, .. } = found;
        let cut_off = |what| ImageError::CutOff { what };
        let number_of_directories = match short(image, optional) {
            Some(0x10B) => optional + DIRECTORIES_32,
            Some(0x20B) => optional + DIRECTORIES_64,
            _ => return Err(ImageError::NotPe),
        };
        let directory = number_of_directories + 4 + CERTIFICATES * DIRECTORY;
        let directories = long(image, number_of_directories).ok_or(cut_off("the optional header"))? as usize;
        if directories <= CERTIFICATES || table < directory + DIRECTORY {
            return Err(ImageError::NoDirectory);
        }
        let headers = long(image, optional + SIZE_OF_HEADERS).ok_or(cut_off("the optional header"))? as usize;
        if headers > image.len() || table + found.sections * SECTION > headers {
            return Err(cut_off("the section table"));
        }
        let certificates = certificates(image, directory)?;
        let range = |index| {
            let section = found.section(image, index)?;
            let end = section.offset.checked_add(section.padded)?;
            Some(section.offset.try_into().ok()?..end.try_into().ok()?)
        };
        let sections = (0..found.sections).map(range).collect::<Option<_>>();
        let mut sections: Vec<Range<usize>> = sections.ok_or(cut_off("the section table"))?;
        sections.retain(|section| !section.is_empty());
        sections.sort_by_key(|section| section.start);
        let layout = Self { checksum: optional + CHECKSUM, directory, certificates, headers, sections };
        let end = layout.certificates.start;
        // The last condition bounds the work for overlapping sections.
        if headers > end || layout.sections.iter().any(|section| section.end > end) || layout.counted() > end {
            return Err(cut_off("a section"));
        }
        Ok(layout)
    }

    /// Whether the sections follow the headers and each other without gaps or overlaps.
    pub fn is_without_gaps(&self) -> bool {
        let mut end = self.headers;
        self.sections.iter().all(|section| std::mem::replace(&mut end, section.end) == section.start)
    }

    /// The Authenticode digest with SHA-256 of the image that has this layout.
    pub fn digest(&self, image: &[u8]) -> [u8; 32] {
        let mut sum = Context::new(&SHA256);
        let mut add = |range: Range<usize>| sum.update(image.get(range).unwrap_or_default());
        add(0..self.checksum);
        add(self.checksum + 4..self.directory);
        add(self.directory + DIRECTORY..self.headers);
        self.sections.iter().cloned().for_each(&mut add);
        // By the specification, the rest begins at the number of bytes that were hashed so far. Without gaps, that is
        // the end of the last section.
        add(self.counted()..self.certificates.start);
        let mut digest = [0; 32];
        digest.copy_from_slice(sum.finish().as_ref());
        digest
    }

    /// Bytes of headers and sections.
    fn counted(&self) -> usize {
        self.sections.iter().fold(self.headers, |sum, section| sum.saturating_add(section.len()))
    }
}

/// The certificate table. It must be at the end of the file, because it is not hashed.
fn certificates(image: &[u8], directory: usize) -> Result<Range<usize>, ImageError> {
    let cut_off = ImageError::CutOff { what: "the table of signatures" };
    let Some((start, size)) = long(image, directory).zip(long(image, directory + 4)) else { return Err(cut_off) };
    let (start, size) = (start as usize, size as usize);
    match start.checked_add(size) {
        _ if size == 0 => Ok(image.len()..image.len()),
        Some(end) if end == image.len() => Ok(start..end),
        _ => Err(cut_off),
    }
}

/// Computes the checksum of an image (PE Format, "Optional Header Windows-Specific Fields"): the sum of all 16-bit
/// words with the carry added, plus the length. The checksum field, at byte `field`, counts as zero.
pub fn checksum(image: &[u8], field: usize) -> u32 {
    let (before, after) = image.split_at_checked(field).unwrap_or((image, &[]));
    let sum = |bytes: &[u8]| -> u64 {
        let (words, rest) = bytes.as_chunks::<2>();
        let last = rest.first().copied().unwrap_or_default();
        words.iter().map(|word| u64::from(u16::from_le_bytes(*word))).sum::<u64>() + u64::from(last)
    };
    let mut sum = sum(before) + sum(after.get(4..).unwrap_or_default());
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    (sum as u32).wrapping_add(image.len() as u32)
}
