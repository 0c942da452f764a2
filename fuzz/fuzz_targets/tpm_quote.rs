//! A quote has one end. Its selection is bounded by its size.
#![no_main]

use slipway_tpm::judge::quote::Quote;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some(quote) = Quote::parse(input) else { return };
    // Two bytes for the algorithm, one for the length of the bits.
    assert!(quote.selection.len() * 3 <= input.len());
    assert!(quote.selection.iter().all(|(_, registers)| registers.is_sorted()));
    assert_eq!(Quote::parse(&[input, &[0]].concat()), None);
    assert_eq!(Quote::parse(&input[..input.len() - 1]), None);
});
