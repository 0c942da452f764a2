//! A block map that can be read has ranges in order and within the image.
#![no_main]

use slipway_formats::bmap;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let Ok(map) = bmap::parse(text) else { return };
    let mut end = 0;
    for mapped in &map.ranges {
        assert!(end <= mapped.bytes.start && mapped.bytes.start < mapped.bytes.end);
        end = mapped.bytes.end;
    }
    assert!(end <= map.image_size);
});
