//! The header of a zstd frame (RFC 8878, 3.1.1), and whether the frame can be decoded.

use crate::image::ZSTD_MAGIC;

/// Most bytes of history that a decoder keeps, as by default in libzstd (`ZSTD_WINDOWLOG_LIMIT_DEFAULT`, 27).
const MAX_WINDOW: u64 = (1 << 27) + 1;

/// What the header of a frame states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// Whether a checksum of four bytes follows the last block.
    pub has_checksum: bool,
    /// Decoded size of the frame in bytes, if the header states it.
    pub content: Option<u64>,
    /// Bytes of history that a decoder must keep.
    pub window: u64,
    /// The dictionary that the frame was compressed with; 0 if there is none, or if the frame does not state it.
    pub dictionary: u64,
}

impl FrameHeader {
    /// Size of the header after the magic number and the descriptor, in bytes.
    pub fn len(descriptor: u8) -> usize {
        usize::from(!is_single_segment(descriptor)) + dictionary_len(descriptor) + content_len(descriptor)
    }

    /// Parses the header: its descriptor, and the bytes after that. Missing bytes are taken as absent fields.
    pub fn parse(descriptor: u8, rest: &[u8]) -> Self {
        let (window, rest) = rest.split_at(usize::from(!is_single_segment(descriptor)).min(rest.len()));
        let (dictionary, content) = rest.split_at(dictionary_len(descriptor).min(rest.len()));
        let content = match content {
            [] => None,
            // 3.1.1.1.4: a field of two bytes has an offset of 256.
            [_, _] => Some(little_endian(content) + 256),
            _ => Some(little_endian(content)),
        };
        let window = match window.first() {
            Some(byte) => {
                let base = 1_u64 << (10 + (byte >> 3));
                base + base / 8 * u64::from(byte & 7)
            }
            None => content.unwrap_or_default(),
        };
        let has_checksum = descriptor & 0x04 != 0;
        Self { has_checksum, content, window, dictionary: little_endian(dictionary) }
    }

    /// The header of a stream that begins with these bytes; none if it does not begin with a frame.
    pub fn of(head: &[u8]) -> Option<Self> {
        let (&descriptor, rest) = head.strip_prefix(&ZSTD_MAGIC)?.split_first()?;
        Some(Self::parse(descriptor, rest.get(..Self::len(descriptor))?))
    }

    /// Fails with the reason and the remedy if the frame cannot be decoded.
    pub fn check(&self) -> Result<(), String> {
        if self.window > MAX_WINDOW {
            let (needed, supported) = (self.window.div_ceil(1 << 20), MAX_WINDOW >> 20);
            return Err(format!(
                "a frame needs a window of {needed} MiB to decode, but {supported} MiB are supported; compress it with \
                 zstd --long=27, or without --long"
            ));
        }
        match self.dictionary {
            0 => Ok(()),
            id => Err(format!(
                "a frame was compressed with the dictionary {id}, which is not part of it; compress it without one \
                 (zstd without -D)"
            )),
        }
    }
}

fn is_single_segment(descriptor: u8) -> bool {
    descriptor & 0x20 != 0
}

fn dictionary_len(descriptor: u8) -> usize {
    match descriptor & 3 {
        0 => 0,
        1 => 1,
        2 => 2,
        _ => 4,
    }
}

fn content_len(descriptor: u8) -> usize {
    match descriptor >> 6 {
        0 => usize::from(is_single_segment(descriptor)),
        1 => 2,
        2 => 4,
        _ => 8,
    }
}

/// The little-endian number in at most eight bytes.
fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_states_what_a_decoder_needs() {
        let check = |rest: &[u8], content: Option<u64>, window: u64, dictionary: u64| {
            let header = FrameHeader::of(&[&ZSTD_MAGIC, rest].concat()).unwrap();
            assert_eq!((header.content, header.window, header.dictionary), (content, window, dictionary), "{rest:?}");
        };
        check(&[0x04, 0x58], None, 2 << 20, 0);
        check(&[0x04, 0xA8], None, 2 << 30, 0);
        check(&[0x20, 7], Some(7), 7, 0);
        check(&[0x60, 0, 1], Some(512), 512, 0);
        check(&[0x83, 0x58, 4, 3, 2, 1, 1, 0, 0, 0], Some(1), 2 << 20, 0x0102_0304);
        assert_eq!(FrameHeader::of(&[&ZSTD_MAGIC[..], &[0x04]].concat()), None);
        assert_eq!(FrameHeader::of(b"text"), None);
    }

    #[test]
    fn a_frame_that_cannot_be_decoded_is_told_with_the_remedy() {
        let check = |window: u64, dictionary: u64, expect: Option<&str>| {
            let found = FrameHeader { window, dictionary, ..FrameHeader::default() }.check().err();
            assert_eq!(
                found.as_deref().map(|found| expect.is_some_and(|part| found.contains(part))),
                expect.map(|_| true)
            );
        };
        check(1 << 27, 0, None);
        check(
            2 << 30,
            0,
            Some("a window of 2048 MiB to decode, but 128 MiB are supported; compress it with zstd --long=27"),
        );
        check((1 << 27) + 2, 0, Some("a window of 129 MiB"));
        check(1 << 20, 7, Some("the dictionary 7, which is not part of it"));
    }
}
