//! User-data compressed with gzip. cloud-init uncompresses it before anything else.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;

/// Most bytes of user-data that are read, both compressed and uncompressed.
pub const MAX_BYTES: usize = 16 << 20;

const MAGIC: [u8; 2] = [0x1f, 0x8b];

pub(crate) fn is_compressed(user_data: &[u8]) -> bool {
    user_data.starts_with(&MAGIC)
}

/// Uncompresses, or says why that fails. As in Python, zeros may follow each member (gzip.py, `_read_eof`).
pub(crate) fn unpack(user_data: &[u8]) -> Result<Vec<u8>, String> {
    let mut unpacked = Vec::new();
    let mut rest = user_data;
    while !rest.is_empty() {
        if !is_compressed(rest) {
            return Err("it begins like gzip, but something else follows the compressed data".to_owned());
        }
        let mut member = GzDecoder::new(&mut rest).take((MAX_BYTES - unpacked.len()) as u64 + 1);
        member
            .read_to_end(&mut unpacked)
            .map_err(|error| format!("it begins like gzip but cannot be unpacked: {error}"))?;
        if unpacked.len() > MAX_BYTES {
            return Err(format!("it has more than {} MiB when unpacked", MAX_BYTES >> 20));
        }
        rest = &rest[rest.iter().take_while(|byte| **byte == 0).count()..];
    }
    if is_compressed(&unpacked) {
        return Err("it is compressed twice, but cloud-init unpacks it only once; compress it once".to_owned());
    }
    Ok(unpacked)
}

/// Compresses a text without a time stamp, so that the same text gives the same bytes.
pub(crate) fn pack(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to a vector cannot fail.
    let written = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    written.unwrap_or_default()
}
