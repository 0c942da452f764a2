//! A signature list of firmware has no more entries than its size allows. Written entries are read back unchanged.
#![no_main]

use slipway_secure_boot::lists::{build, parse};

/// Size in bytes of the smallest entry: the owner's GUID, and one byte of content.
const SMALLEST: usize = 17;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(entries) = parse(input) else { return };
    assert!(entries.len() * SMALLEST <= input.len());
    assert_eq!(parse(&build(&entries)).expect("lists of ours"), entries);
});
