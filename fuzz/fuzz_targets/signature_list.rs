//! What is read of a list of what firmware trusts is no more than was there, and is read again when it is written.
#![no_main]

use slipway_secure_boot::lists::{build, parse};

/// Bytes of the smallest entry: its owner, and one of content.
const SMALLEST: usize = 17;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(entries) = parse(input) else { return };
    assert!(entries.len() * SMALLEST <= input.len());
    assert_eq!(parse(&build(&entries)).expect("lists of ours"), entries);
});
