//! A zstd stream decoded frame by frame gives the same as the plain decoder, or both refuse it.
#![no_main]

use std::io::Read;

use slipway_actions::fuzzing;

/// Size of the disk in bytes.
const ROOM: u64 = 1 << 20;

libfuzzer_sys::fuzz_target!(|stream: &[u8]| {
    let is_skippable = matches!(stream, [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..]);
    if !(is_skippable || stream.starts_with(&[0x28, 0xB5, 0x2F, 0xFD])) {
        return;
    }
    let mut expect = Vec::new();
    let plain = zstd::Decoder::new(stream).and_then(|decoder| decoder.take(ROOM + 1).read_to_end(&mut expect));
    match fuzzing::decode(stream, ROOM) {
        Ok(image) => assert!(plain.is_ok() && image == expect),
        Err(error) => assert!(plain.is_err() || expect.is_empty() || expect.len() as u64 > ROOM, "{error:?}"),
    }
});
