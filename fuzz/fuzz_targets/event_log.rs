//! An event log has no more events than its size allows, all of them of quoted PCRs, and its replay gives these PCRs.
#![no_main]

use slipway_protocol::node::attestation::QUOTED_PCRS;
use slipway_tpm::judge::event_log::EventLog;

/// Bytes of the smallest event: one digest and no data.
const SMALLEST: usize = 50;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(log) = EventLog::parse(input) else { return };
    assert!(log.events.len() * SMALLEST < input.len());
    assert!(log.events.iter().all(|event| QUOTED_PCRS.contains(&event.pcr)));
    assert!(log.replay().into_keys().eq(QUOTED_PCRS));
});
