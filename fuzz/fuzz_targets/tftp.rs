//! What a TFTP client asks for is granted within bounds, and the answer is never a packet that only clients send.
#![no_main]

use slipway_pxe::tftp::packet::{Packet, self};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some(Packet::Read(request)) = packet::parse(input) else { return };
    assert!(!request.name.is_empty() && !request.name.contains('\0') && request.name.len() < input.len());
    let options = request.options;
    assert!((8..=1468).contains(&options.block_size()) && (1..=64).contains(&options.window()));
    assert!(options.timeout() > 0);
    if let Some(answer) = options.acknowledgement(u64::MAX) {
        assert!(answer.len() <= 512);
        assert_eq!(packet::parse(&answer), None);
    }
});
