//! A module's pattern matches a device exactly if a slow, separate implementation says so.
#![no_main]

use slipway_installer::drivers::modalias::fits;

/// Whether a pattern without brackets matches. `reach[t]`: the pattern read so far matches the first `t` bytes.
fn fits_by_matrix(pattern: &[u8], text: &[u8]) -> bool {
    let mut reach = vec![false; text.len() + 1];
    reach[0] = true;
    for wanted in pattern {
        let before = reach.clone();
        for t in 0..=text.len() {
            reach[t] = match wanted {
                b'*' => before[t] || t > 0 && reach[t - 1],
                b'?' => t > 0 && before[t - 1],
                wanted => t > 0 && before[t - 1] && text[t - 1] == *wanted,
            };
        }
    }
    reach[text.len()]
}

libfuzzer_sys::fuzz_target!(|input: (&str, &str)| {
    let (pattern, text) = input;
    // Longer texts would be slow.
    if pattern.len() > 512 || text.len() > 512 {
        return;
    }
    let found = fits(pattern, text);
    if !pattern.contains('[') {
        assert_eq!(found, fits_by_matrix(pattern.as_bytes(), text.as_bytes()), "{pattern:?} and {text:?}");
    }
});
