//! Configuration of boot loaders and headers of unified kernel images are read in memory that has bounds.
#![no_main]

use slipway_actions::fuzzing;

/// No entry's command line is longer, in bytes, than what it was made from by expanding its variables once.
const LONGEST: usize = 1 << 20;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(sections) = fuzzing::sections(input) {
        assert!(sections.len() <= 96);
    }
    let Ok(text) = str::from_utf8(input) else { return };
    for cmdline in fuzzing::boot_entries(text) {
        assert!(cmdline.len() <= LONGEST);
    }
});
