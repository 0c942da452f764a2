//! A network configuration is judged without a panic, and a refusal names a place in the text.
#![no_main]

use slipway_user_data::network;

libfuzzer_sys::fuzz_target!(|config: &str| {
    if let Err(refusal) = network::check(config) {
        let lines = 1 + config.replace("\r\n", "\n").matches(['\n', '\r']).count();
        assert!((1..=lines).contains(&refusal.line) && refusal.column >= 1, "{refusal}");
    }
});
