//! Finds the end of each block of an xz stream and verifies its index (The .xz file format, version 1.2.1).

use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead, Read};

use flate2::Crc;
use liblzma::stream::{Action, Error, Status, Stream};
use slipway_formats::crc32::crc32;
use slipway_formats::image::XZ_MAGIC as MAGIC;

use super::pieces::{Next, Walk};

/// Size of magic, flags and checksum of the flags, in bytes (2.1.1).
pub(super) const HEADER: usize = 12;
/// First byte of the index, in place of the size in a block header (4.1).
const INDEX: u8 = 0;
/// The byte appended to a single block: a decoder verifies the check of a block only once it gets the byte after it.
pub(super) const END_OF_BLOCK: [u8; 1] = [INDEX];
/// ID of the only filter that may end a chain (5.3.1).
const LZMA2: u64 = 0x21;
const DAMAGED: &str = "the header of a block is damaged";
/// Memory limit of a decoder in bytes. `xz -9` needs 65 MiB.
const MEMORY: u64 = 80 << 20;

/// The header of a stream, and the expected content of its index.
pub(super) struct Header {
    bytes: [u8; HEADER],
    blocks: u64,
    seen: DefaultHasher,
}

impl Header {
    /// Reads the header of a stream.
    pub(super) fn read(input: &mut impl Read) -> io::Result<Self> {
        let mut read = Vec::with_capacity(HEADER);
        input.take(HEADER as u64).read_to_end(&mut read)?;
        if !read.iter().zip(MAGIC).all(|(byte, magic)| *byte == magic) {
            return Err(invalid("the last stream is followed by other data"));
        }
        let bytes: [u8; HEADER] = read.try_into().map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        if crc32(&bytes[6..8]).to_le_bytes() != bytes[8..] || bytes[6] != 0 || bytes[7] > 0x0F {
            return Err(invalid("the header of the stream is damaged"));
        }
        Ok(Self { bytes, blocks: 0, seen: DefaultHasher::new() })
    }

    /// The bytes of the header.
    pub(super) fn bytes(&self) -> [u8; HEADER] {
        self.bytes
    }

    /// Starts a block of this stream.
    pub(super) fn block(&self) -> Block {
        // Sizes of the checks by their ID (2.1.1.2).
        let check = match self.bytes[7] & 0x0F {
            0 => 0,
            kind => 4 << ((kind - 1) / 3),
        };
        Block { at: At::Start, check, header: Vec::new(), compressed: 0, content: 0, dictionary: 0 }
    }

    /// Records a block that was read, for the index.
    pub(super) fn add(&mut self, block: &Block) {
        self.blocks += 1;
        note(&mut self.seen, block.unpadded(), block.content);
    }

    /// Reads index and footer (4 and 2.1.2), which must match the recorded blocks.
    pub(super) fn end(self, input: &mut impl Read) -> io::Result<()> {
        let mut input = Checked { input, crc: Crc::new(), bytes: 0 };
        let mut indicator = [0];
        input.read_exact(&mut indicator)?;
        let wrong = || invalid("the index does not match the blocks");
        let blocks = number(&mut input)?;
        let mut listed = DefaultHasher::new();
        for _ in 0..blocks.min(self.blocks) {
            note(&mut listed, number(&mut input)?, number(&mut input)?);
        }
        if indicator != [INDEX] || blocks != self.blocks || listed.finish() != self.seen.finish() {
            return Err(wrong());
        }
        while !input.bytes.is_multiple_of(4) {
            let mut padding = [0];
            input.read_exact(&mut padding)?;
            if padding != [0] {
                return Err(wrong());
            }
        }
        let (crc, size) = (input.crc.sum(), input.bytes + 4);
        let (mut index_crc, mut footer) = ([0; 4], [0; HEADER]);
        input.input.read_exact(&mut index_crc)?;
        input.input.read_exact(&mut footer)?;
        // 2.1.2.2: the size of the index in units of four bytes, minus one.
        let backward = u32::try_from(size / 4 - 1).map_err(|_| wrong())?.to_le_bytes();
        let sound = crc.to_le_bytes() == index_crc
            && crc32(&footer[4..10]).to_le_bytes() == footer[..4]
            && footer[4..8] == backward
            && footer[8..10] == self.bytes[6..8]
            && footer[10..] == *b"YZ";
        if sound { Ok(()) } else { Err(invalid("the end of the stream is damaged")) }
    }
}

fn note(hasher: &mut DefaultHasher, unpadded: u64, content: u64) {
    hasher.write_u64(unpadded);
    hasher.write_u64(content);
}

/// One block (section 3).
#[derive(Debug)]
pub(super) struct Block {
    at: At,
    /// Size of the check at its end, in bytes.
    check: u64,
    header: Vec<u8>,
    compressed: u64,
    /// Decoded size of the block in bytes; known after the block was read to its end.
    pub(super) content: u64,
    /// Bytes of history that a decoder must keep.
    pub(super) dictionary: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Size,
    Rest,
    Chunk,
    Control,
    Sizes(u8),
    End,
}

impl Walk for Block {
    fn next(&mut self, header: &[u8]) -> io::Result<Next> {
        let (at, next) = match (self.at, header) {
            (At::Start, _) => (At::Size, Next::Header(1)),
            (At::Size, [size]) => {
                self.header = header.to_vec();
                // 3.1.1: (size byte + 1) * 4 bytes, including the size byte.
                (At::Rest, Next::Header(usize::from(*size) * 4 + 3))
            }
            (At::Rest, _) => {
                self.header.extend_from_slice(header);
                self.dictionary = dictionary(&self.header)?;
                (At::Control, Next::Header(1))
            }
            (At::Chunk, _) => (At::Control, Next::Header(1)),
            // LZMA2 chunks, as liblzma's lzma2_decoder.c reads them.
            (At::Control, [control]) => {
                self.compressed += 1;
                match *control {
                    0 => (At::End, Next::Body((4 - self.compressed % 4) % 4 + self.check)),
                    control @ (1 | 2) => (At::Sizes(control), Next::Header(2)),
                    control @ 0x80.. => (At::Sizes(control), Next::Header(if control >= 0xC0 { 5 } else { 4 })),
                    _ => return Err(invalid("a chunk of a block is of an unknown kind")),
                }
            }
            (At::Sizes(control), [high, low, rest @ ..]) => {
                let size = |high: &u8, low: &u8| u64::from(u16::from_be_bytes([*high, *low])) + 1;
                let content = size(high, low);
                let (content, body) = match (control, rest) {
                    (1 | 2, _) => (content, content),
                    (_, [high, low, ..]) => (content + (u64::from(control & 0x1F) << 16), size(high, low)),
                    _ => return Err(invalid(DAMAGED)),
                };
                self.content += content;
                self.compressed += header.len() as u64 + body;
                (At::Chunk, Next::Body(body))
            }
            (At::End, _) => (At::End, Next::End),
            _ => return Err(invalid(DAMAGED)),
        };
        self.at = at;
        Ok(next)
    }
}

impl Block {
    /// Unpadded size in bytes: header, data and check (4.3).
    fn unpadded(&self) -> u64 {
        self.header.len() as u64 + self.compressed + self.check
    }
}

/// Whether a block begins here, rather than the index.
pub(super) fn is_block(input: &mut impl BufRead) -> io::Result<bool> {
    match input.fill_buf()? {
        [] => Err(io::ErrorKind::UnexpectedEof.into()),
        [first, ..] => Ok(*first != INDEX),
    }
}

/// Skips the padding between streams: zeros, a multiple of four bytes (2.2).
pub(super) fn skip_padding(input: &mut impl BufRead) -> io::Result<()> {
    let mut skipped = 0;
    while let [0, ..] = input.fill_buf()? {
        input.consume(1);
        skipped += 1;
    }
    if skipped % 4 == 0 { Ok(()) } else { Err(invalid("the last stream is followed by other data")) }
}

/// Reads the size of the dictionary, in bytes, from a block header (3.1, 5.3.1).
fn dictionary(header: &[u8]) -> io::Result<u64> {
    let damaged = || invalid(DAMAGED);
    let (fields, crc) = header.split_at(header.len().saturating_sub(4));
    if crc32(fields).to_le_bytes() != *crc {
        return Err(damaged());
    }
    let (flags, mut rest) = fields.get(1).zip(fields.get(2..)).ok_or_else(damaged)?;
    for _ in 0..(flags >> 6).count_ones() {
        number(&mut rest)?;
    }
    for _ in 0..=(flags & 3) {
        let (filter, size) = (number(&mut rest)?, number(&mut rest)?);
        let parts = usize::try_from(size).ok().and_then(|size| rest.split_at_checked(size));
        let (properties, after) = parts.ok_or_else(damaged)?;
        rest = after;
        if let (LZMA2, [bits]) = (filter, properties) {
            return match bits {
                0..40 => Ok((2 | u64::from(bits & 1)) << (bits / 2 + 11)),
                40 => Ok(u64::from(u32::MAX)),
                _ => Err(damaged()),
            };
        }
    }
    Err(invalid("a block is not compressed by LZMA2"))
}

/// Reads an integer of variable length (1.2).
fn number(input: &mut impl Read) -> io::Result<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let mut byte = [0];
        input.read_exact(&mut byte)?;
        value |= u64::from(byte[0] & 0x7F) << shift;
        if byte[0] & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(invalid("a number in a header is too long"))
}

/// Counts the bytes read and computes their checksum.
struct Checked<'a, R> {
    input: &'a mut R,
    crc: Crc,
    bytes: u64,
}

impl<R: Read> Read for Checked<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.crc.update(buffer.get(..n).unwrap_or_default());
        self.bytes += n as u64;
        Ok(n)
    }
}

/// Decodes one block. The input is the header of its stream, the block, and the indicator of an index: liblzma only
/// consumes that last byte if the check of the block was right.
pub(super) struct Decoder<R> {
    stream: Stream,
    input: R,
    /// The error that follows the bytes already returned.
    failed: Option<io::Error>,
}

impl<R: BufRead> Decoder<R> {
    pub(super) fn new(input: R) -> io::Result<Self> {
        Ok(Self { stream: Stream::new_stream_decoder(MEMORY, 0)?, input, failed: None })
    }
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            let input = self.input.fill_buf()?;
            let at_end = input.is_empty();
            let (read, written) = (self.stream.total_in(), self.stream.total_out());
            let processed = self.stream.process(input, buffer, Action::Run);
            self.input.consume((self.stream.total_in() - read) as usize);
            let n = (self.stream.total_out() - written) as usize;
            self.failed = match processed {
                Ok(Status::MemNeeded) if !at_end => Some(invalid("it cannot be decoded")),
                Ok(_) => None,
                Err(Error::MemLimit) => {
                    Some(invalid("it needs more than 80 MiB of memory to decode; compress it with xz -9 or less"))
                }
                Err(error) => Some(error.into()),
            };
            if n > 0 || (at_end && self.failed.is_none()) {
                return Ok(n);
            }
        }
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
