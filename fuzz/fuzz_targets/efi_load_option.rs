//! A load option is written as it was read. A new load option for its loader leads to the same loader.
#![no_main]

use slipway_formats::efi::load_option::LoadOption;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some(option) = LoadOption::decode(input) else { return };
    assert_eq!(option.encode(), input);
    let Some(loader) = option.loader() else { return };
    assert_eq!(LoadOption::new("new", &loader).loader().as_ref(), Some(&loader));
    assert_eq!(option.renewed(None, &loader).loader().as_ref(), Some(&loader));
});
