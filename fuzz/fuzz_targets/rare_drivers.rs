//! An index of rare drivers that passes its check has bounded pieces, names that stay in their folders, and a load
//! order with every module.
#![no_main]

use slipway_protocol::node::rare_drivers::{MAX_FILE_BYTES, MAX_PIECE_BYTES, RareDrivers};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(index) = serde_json::from_slice::<RareDrivers>(input) else { return };
    let Ok(()) = index.check("6.1.0") else { return };
    let pieces = index.modules.values().map(|module| &module.piece).chain(index.firmware.values());
    for piece in pieces {
        assert!(piece.size <= MAX_PIECE_BYTES && piece.unpacked <= MAX_FILE_BYTES);
        assert!(piece.offset < u64::MAX - piece.size + 1);
    }
    assert!(!index.modules.keys().any(|name| name.contains(['/', '.', '-'])));
    assert!(!index.firmware.keys().any(|name| name.starts_with('/') || name.split('/').any(|part| part == "..")));
    let wanted: Vec<&str> = index.modules.keys().map(String::as_str).collect();
    let order: Vec<&str> = index.in_order(&wanted, |_| false).into_iter().map(|(name, _)| name).collect();
    assert_eq!(order.len(), index.modules.len());
});
