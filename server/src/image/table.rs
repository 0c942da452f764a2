//! Checks the partition table of an image when it is added, as a machine does before writing. The disk is unknown here,
//! so tables for any block size and disk size are accepted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use slipway_formats::image::made_for::{HEAD, MadeFor};
use slipway_formats::partition_table::Table;
use slipway_protocol::ErrorCode;

use super::CHUNK_BYTES;
use crate::base::error::Error;

/// Reads a part of a raw image by offset and length in bytes. `None` if the part is not available.
pub(super) type Read<'a> = dyn FnMut(u64, usize) -> Option<Vec<u8>> + 'a;

/// Checks the partition table of a raw image, whose size in bytes may be unknown. Returns the kind of disk it is made
/// for, the table, and remarks for the operator. Fails if no machine can use the image.
pub(super) fn judge(
    name: &Path,
    size: Option<u64>,
    read: &mut Read<'_>,
) -> Result<(MadeFor, Table, Vec<String>), Error> {
    let (made_for, table) = MadeFor::of(size, read).map_err(|fault| {
        let message = format!("the image {name:?} cannot be installed: {fault}");
        Error::refused(ErrorCode::InvalidRequest, message)
    })?;
    let mut warnings = Vec::new();
    warnings.extend(table.lacks_partitions().map(|lack| format!("the image {name:?} {lack}")));
    warnings.extend(table.remarks.iter().map(|remark| format!("the partition table of the image {name:?}: {remark}")));
    warnings.extend(size.and_then(|size| table.beyond(size)).map(|partition| {
        let partition = partition.describe();
        format!("{partition} of the image {name:?} ends after the end of the image, which may be truncated")
    }));
    Ok((made_for, table, warnings))
}

/// The first [`HEAD`] bytes and at least the last [`CHUNK_BYTES`] of a stream, or all of a shorter stream.
#[derive(Debug, Default)]
pub(super) struct Ends {
    head: Vec<u8>,
    tail: Vec<u8>,
    size: u64,
}

impl Ends {
    /// Adds the next bytes of the stream, at most [`CHUNK_BYTES`].
    pub(super) fn push(&mut self, chunk: &[u8]) {
        let room = HEAD.saturating_sub(self.head.len());
        self.head.extend_from_slice(chunk.get(..room).unwrap_or(chunk));
        let before = self.tail.len().saturating_sub(CHUNK_BYTES);
        self.tail.drain(..before);
        self.tail.extend_from_slice(chunk);
        self.size += chunk.len() as u64;
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let within = |bytes: &[u8], start: u64| {
            let from = usize::try_from(offset.checked_sub(start)?).ok()?;
            bytes.get(from..from.checked_add(len)?).map(<[u8]>::to_vec)
        };
        within(&self.head, 0).or_else(|| within(&self.tail, self.size - self.tail.len() as u64))
    }
}

/// Reads a part of an uncompressed raw image.
pub(super) fn of_file(file: &File, offset: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).ok().map(|()| bytes)
}
