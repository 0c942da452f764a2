//! Finds the end of each frame of a zstd stream (RFC 8878, 3.1).

use std::io;

use slipway_formats::image::{ZSTD_MAGIC as MAGIC, ZSTD_SKIPPABLE as SKIPPABLE};
use slipway_formats::zstd::FrameHeader;

use super::pieces::{Next, Walk};

/// One frame, skippable or not.
#[derive(Debug, Default)]
pub(super) struct Frame {
    at: At,
    /// The frame's header, once it was read. A skippable frame has no header and no content.
    pub(super) header: FrameHeader,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Start,
    Magic,
    SkippableSize,
    Descriptor,
    FrameHeader(u8),
    Blocks,
    BlockHeader,
    LastBlock,
    End,
}

impl Walk for Frame {
    fn next(&mut self, header: &[u8]) -> io::Result<Next> {
        let (at, next) = match self.at {
            At::Start => (At::Magic, Next::Header(4)),
            At::Magic if header == MAGIC => (At::Descriptor, Next::Header(1)),
            At::Magic if is_skippable(header) => (At::SkippableSize, Next::Header(4)),
            At::Magic => return Err(invalid("the last frame is followed by other data")),
            At::SkippableSize => {
                self.header.content = Some(0);
                (At::End, Next::Body(little_endian(header)))
            }
            At::Descriptor => {
                let descriptor = header.first().copied().unwrap_or_default();
                match FrameHeader::len(descriptor) {
                    0 => return self.frame_header(descriptor, &[]),
                    size => (At::FrameHeader(descriptor), Next::Header(size)),
                }
            }
            At::FrameHeader(descriptor) => return self.frame_header(descriptor, header),
            At::Blocks => (At::BlockHeader, Next::Header(3)),
            At::BlockHeader => {
                let block = little_endian(header);
                let size = match (block >> 1) & 3 {
                    0 | 2 => block >> 3,
                    1 => 1,
                    _ => return Err(invalid("a block is of the reserved type")),
                };
                (if block & 1 == 1 { At::LastBlock } else { At::Blocks }, Next::Body(size))
            }
            At::LastBlock => (At::End, Next::Body(if self.header.has_checksum { 4 } else { 0 })),
            At::End => (At::End, Next::End),
        };
        self.at = at;
        Ok(next)
    }
}

impl Frame {
    fn frame_header(&mut self, descriptor: u8, header: &[u8]) -> io::Result<Next> {
        self.header = FrameHeader::parse(descriptor, header);
        self.at = At::BlockHeader;
        Ok(Next::Header(3))
    }

    /// Fails if the frame cannot be decoded.
    pub(super) fn check(&self) -> io::Result<()> {
        self.header.check().map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, reason))
    }
}

/// Whether the first frame that is not skippable states the size of its content, according to the first bytes of the
/// stream. Programs that write streams of many frames state it for all of them or none.
pub(super) fn says_size(mut head: &[u8]) -> bool {
    while let Some((start, rest)) = head.split_first_chunk::<8>()
        && is_skippable(&start[..4])
    {
        head = rest.get(little_endian(&start[4..]) as usize..).unwrap_or_default();
    }
    head.get(4).is_none_or(|descriptor| descriptor & 0x20 != 0 || descriptor >> 6 != 0)
}

fn is_skippable(header: &[u8]) -> bool {
    matches!(header, [0x50..=0x5F, rest @ ..] if rest == SKIPPABLE)
}

/// Decodes a little-endian number of at most eight bytes.
fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::pieces::Piece;
    use std::io::Read;

    /// The frames of a stream: bytes, content, window.
    fn frames(mut stream: &[u8]) -> io::Result<Vec<(usize, Option<u64>, u64)>> {
        let mut found = Vec::new();
        while !stream.is_empty() {
            let mut frame = Frame::default();
            let n = Piece::new(&mut stream, &mut frame)?.read_to_end(&mut Vec::new())?;
            found.push((n, frame.header.content, frame.header.window));
        }
        Ok(found)
    }

    #[test]
    fn frames_end_where_the_next_begins() {
        let data: Vec<u8> = (0..300_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let streaming = zstd::encode_all(&data[..], 3).unwrap();
        let sized = zstd::bulk::compress(&data, 19).unwrap();
        let small = zstd::bulk::compress(&data[..300], 1).unwrap();
        let skippable = [&[0x5A][..], &SKIPPABLE, &[3, 0, 0, 0, 1, 2, 3]].concat();
        let stream = [&streaming[..], &skippable, &sized, &small].concat();
        let found = frames(&stream).unwrap();
        let sizes: Vec<usize> = found.iter().map(|frame| frame.0).collect();
        assert_eq!(sizes, [streaming.len(), skippable.len(), sized.len(), small.len()]);
        let contents: Vec<Option<u64>> = found.iter().map(|frame| frame.1).collect();
        assert_eq!(contents, [None, Some(0), Some(1_200_000), Some(300)]);
        assert_eq!((found[0].2, found[3].2), (2 << 20, 300));
    }

    #[test]
    fn a_stream_says_by_its_first_frame_whether_sizes_are_known() {
        let streaming = zstd::encode_all(&[7; 1000][..], 3).unwrap();
        let sized = zstd::bulk::compress(&[7; 1000], 3).unwrap();
        let skippable = [&[0x5A][..], &SKIPPABLE, &[3, 0, 0, 0, 1, 2, 3]].concat();
        for (stream, expect) in [(&streaming, false), (&sized, true)] {
            assert_eq!(says_size(stream), expect);
            assert_eq!(says_size(&[&skippable[..], &skippable, stream].concat()), expect);
        }
        assert!(says_size(&[]));
        for kept in 8..=skippable.len() {
            assert!(says_size(&skippable[..kept]), "{kept} bytes");
        }
    }

    #[test]
    fn what_is_no_frame_or_ends_early_is_an_error() {
        let stream = zstd::bulk::compress(&[7; 1000], 3).unwrap();
        for kept in 1..stream.len() {
            let error = frames(&stream[..kept]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{kept} bytes");
        }
        assert!(frames(&[&stream[..], b"rest"].concat()).is_err());
        let reserved = [&MAGIC[..], &[0x20, 1], &[0x07, 0, 0]].concat();
        assert_eq!(frames(&reserved).unwrap_err().to_string(), "a block is of the reserved type");
    }
}
