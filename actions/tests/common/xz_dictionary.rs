//! xz streams with another filter in the header of their first block (The .xz file format, 3.1 and 5.3.1).

/// The stream with another dictionary size, so that its decoder needs a different amount of memory.
pub fn with_dictionary(stream: Vec<u8>, bits: u8) -> Vec<u8> {
    with_filter(stream, &[0x21, 1, bits])
}

/// The stream with this beginning of its filter: number, length of the properties, properties.
pub fn with_filter(mut stream: Vec<u8>, filter: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 12;
    let crc_at = BLOCK + usize::from(stream[BLOCK]) * 4;
    let header = &mut stream[BLOCK..crc_at];
    let at = header.windows(2).position(|pair| pair == [0x21, 1]).unwrap();
    header[at..at + filter.len()].copy_from_slice(filter);
    let mut crc = flate2::Crc::new();
    crc.update(header);
    stream[crc_at..crc_at + 4].copy_from_slice(&crc.sum().to_le_bytes());
    stream
}
