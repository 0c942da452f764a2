//! CRC-32 (RFC 1952, 8), the checksum of GPT headers (UEFI specification, 5.3.2) and .xz files.

use flate2::Crc;

/// CRC-32 of a complete buffer.
pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}
