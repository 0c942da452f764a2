//! An xz stream decoded block by block gives the same as the plain decoder, or both refuse it.
#![no_main]

use std::io::Read;

use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use slipway_actions::fuzzing;

/// Size of the disk in bytes.
const ROOM: u64 = 1 << 20;
/// Memory limit of a decoder in bytes, the same as slipway's.
const MEMORY: u64 = 80 << 20;

libfuzzer_sys::fuzz_target!(|stream: &[u8]| {
    if !stream.starts_with(&[0xFD, b'7', b'z', b'X', b'Z', 0]) {
        return;
    }
    let decoder = Stream::new_stream_decoder(MEMORY, CONCATENATED).expect("making a decoder");
    let mut expect = Vec::new();
    let plain = XzDecoder::new_stream(stream, decoder).take(ROOM + 1).read_to_end(&mut expect);
    match fuzzing::decode(stream, ROOM) {
        Ok(image) => assert!(plain.is_ok() && image == expect),
        Err(error) => assert!(plain.is_err() || expect.is_empty() || expect.len() as u64 > ROOM, "{error:?}"),
    }
});
