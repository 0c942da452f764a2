//! xz streams whose decoder needs a different amount of memory than they were made with.

/// The stream with another dictionary size in the header of its first block (The .xz file format, 3.1 and 5.3.1).
pub fn with_dictionary(mut stream: Vec<u8>, bits: u8) -> Vec<u8> {
    const BLOCK: usize = 12;
    let crc_at = BLOCK + usize::from(stream[BLOCK]) * 4;
    let header = &mut stream[BLOCK..crc_at];
    let filter = header.windows(2).position(|pair| pair == [0x21, 1]).unwrap();
    header[filter + 2] = bits;
    let mut crc = flate2::Crc::new();
    crc.update(header);
    stream[crc_at..crc_at + 4].copy_from_slice(&crc.sum().to_le_bytes());
    stream
}
