//! The input is a key, an empty line, and a signature. No fuzzer finds a valid signature.
#![no_main]

use slipway_formats::signature::Verifier;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some(at) = input.windows(2).position(|pair| pair == b"\n\n") else { return };
    let Ok(key) = str::from_utf8(&input[..at]) else { return };
    let Ok(mut verifier) = Verifier::new(key, &input[at + 2..]) else { return };
    verifier.update(b"changed");
    assert!(verifier.finish().is_err());
});
