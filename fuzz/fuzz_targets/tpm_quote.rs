//! A quote ends where the input ends. The size of its PCR selection is bounded by the input's size.
#![no_main]

use slipway_tpm::judge::quote::Quote;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some(quote) = Quote::parse(input) else { return };
    // Each entry has at least two bytes for the algorithm, and one for the length of the bitmap.
    assert!(quote.selection.len() * 3 <= input.len());
    assert!(quote.selection.iter().all(|(_, registers)| registers.is_sorted()));
    assert_eq!(Quote::parse(&[input, &[0]].concat()), None);
    assert_eq!(Quote::parse(&input[..input.len() - 1]), None);
});
