//! Examines qcow2 images.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use slipway_formats::qcow2::{BUFFER, BUFFERS, Block, Error as Qcow2Error, FileOrder, HEADER_LEN, Header, Image};

use super::{Raw, inside, refused, table};
use crate::base::error::Error;
use crate::store::findings::Inside;

/// Reads the header, and the clusters with the partition table.
pub(super) fn look(file: &File, head: &[u8], len: u64, name: &Path) -> Result<Raw, Error> {
    let refused = |reason: &str| refused(name, reason);
    let header = Header::parse(head.get(..HEADER_LEN).unwrap_or(head)).map_err(|error| refused(&error.to_string()))?;
    let needed = header.l1.end.max(header.refcounts.end);
    if len < needed {
        let reason =
            format!("the file ends at byte {len}, but its tables end at byte {needed}; download or create it again");
        return Err(refused(&reason));
    }
    let mut read_at = |at, buffer: &mut [u8]| file.read_exact_at(buffer, at);
    let image = Image::open(len, &mut read_at).map_err(|error| refused(&error.to_string()))?;
    let mut failure = None;
    let judged = table::judge(name, Some(header.size), &mut |offset, len| {
        let range = offset..offset.saturating_add(len as u64);
        image.bytes(range, &mut read_at).map_err(|error| failure = Some(error)).ok()
    });
    if let Some(error) = failure {
        return Err(refused(&error.to_string()));
    }
    let (made_for, table, warnings) = judged?;
    let inside = match file.try_clone() {
        Ok(file) => inside::look(&table, header.size, Box::new(move |at, buffer| piece(&image, &file, at, buffer))),
        Err(_) => Inside::default(),
    };
    Ok(Raw { size: header.size, digest: None, warnings, made_for, inside })
}

/// Reads a piece of the raw image.
fn piece(image: &Image, file: &File, at: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut read_at = |at, buffer: &mut [u8]| file.read_exact_at(buffer, at);
    let bytes = image.bytes(at..at + buffer.len() as u64, &mut read_at).map_err(io::Error::other)?;
    buffer.copy_from_slice(&bytes);
    Ok(())
}

/// Whether machines can read the image in a single pass, which they do to check its digest while writing. Reads and
/// decodes all of it.
pub(super) fn can_be_read_once(input: impl Read, name: &Path) -> Result<bool, Error> {
    let (mut is_begun, mut held) = (false, 0);
    let read = FileOrder::open(input).and_then(|image| {
        image.run(|at, block| {
            is_begun |= at == 0;
            if !is_begun && let Block::Data(bytes) = block {
                held += bytes.len().div_ceil(BUFFER);
            }
            Ok::<(), Qcow2Error>(())
        })
    });
    match read {
        Ok(()) => Ok(held < BUFFERS),
        Err(Qcow2Error::NotInOrder { .. } | Qcow2Error::TooManyPending { .. }) => Ok(false),
        Err(error) => Err(refused(name, &error.to_string())),
    }
}
