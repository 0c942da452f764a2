//! A manifest of boot files that can be read stays the same when it is written and read again. So does the description
//! that a medium has of itself.
#![no_main]

use slipway_media::Manifest;
use slipway_protocol::Medium;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Ok(manifest) = serde_json::from_slice::<Manifest>(input) {
        let again: Manifest = serde_json::from_slice(&manifest.to_json()).expect("a manifest of ours");
        assert_eq!(again, manifest);
    }
    if let Ok(medium) = serde_json::from_slice::<Medium>(input) {
        let json = serde_json::to_vec(&medium).expect("a type of ours");
        assert_eq!(serde_json::from_slice::<Medium>(&json).expect("a medium of ours"), medium);
    }
});
