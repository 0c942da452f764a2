//! Looks for a URL's file name in a list of checksums. The input's first line is the URL, and the rest is the list.
#![no_main]

use slipway_formats::sums;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let at = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let Some(name) = str::from_utf8(&input[..at]).ok().and_then(sums::file_name) else { return };
    assert!(!name.is_empty());
    _ = sums::find(&input[at..], &name);
});
