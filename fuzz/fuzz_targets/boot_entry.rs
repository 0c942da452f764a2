//! Boot loader configuration and headers of unified kernel images are read in bounded memory.
#![no_main]

use slipway_formats::boot_entry::{bls, extlinux, grub};
use slipway_formats::pe::Sections;

/// Maximum size of an entry's command line in bytes. Its variables are expanded only once, so it cannot be longer.
const LONGEST: usize = 1 << 20;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(sections) = Sections::read(input) {
        assert!(sections.list.len() <= 96);
    }
    let Ok(text) = str::from_utf8(input) else { return };
    let variables = grub::environment(text);
    let entry = match bls::parse("entry.conf", text, &variables).map(|entry| entry.start) {
        Some(bls::Start::Kernel(boot)) => Some(boot),
        _ => None,
    };
    let patterns: Vec<String> = bls::default_pattern(text).into_iter().collect();
    _ = bls::default(&mut [bls::MenuEntry::default()], &patterns);
    let found = [entry, grub::default(text, variables), extlinux::default(text, "boot")];
    for boot in found.into_iter().flatten() {
        assert!(boot.cmdline.len() <= LONGEST);
    }
});
