//! A load option is written as it was read, and an entry for the loader it leads to leads there.
#![no_main]

use slipway_actions::fuzzing;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((encoded, leads_to_a_file)) = fuzzing::load_option(input) else { return };
    assert_eq!(encoded, input);
    assert!(!leads_to_a_file || fuzzing::renewed_option(input) == Some(true));
});
