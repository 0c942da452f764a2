//! Event logs that were made by hand, whole and damaged.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

#[path = "common/log.rs"]
mod log;

use log::{IPL, NO_ACTION, SEPARATOR, event_log, header, sha256};
use slipway_attestation::event_log::EventLog;

#[test]
fn what_was_measured_is_replayed_and_what_was_only_said_is_not() {
    let log = event_log(&[
        (0, NO_ACTION, b"StartupLocality\0\x03"),
        (0, 8, b"version"),
        (7, SEPARATOR, &[0; 4]),
        (u32::MAX, NO_ACTION, b"vendor"),
        (8, IPL, b"a register that is not quoted"),
        (0, SEPARATOR, &[0; 4]),
    ]);
    let log = EventLog::parse(&log).unwrap();
    let pcrs = log.replay();

    let extended = |value: &[u8], data: &[u8]| sha256(&[value, &sha256(data)].concat());
    let mut start = [0; 32];
    start[31] = 3;
    assert_eq!(pcrs[&0], extended(&extended(&start, b"version"), &[0; 4]));
    assert_eq!(pcrs[&7], extended(&[0; 32], &[0; 4]));
    assert_eq!((pcrs.len(), pcrs[&9]), (12, [0; 32]));
    let events: Vec<_> = log.events.iter().map(|event| (event.pcr, event.kind_name(), event.sha256)).collect();
    let separator = sha256(&[0; 4]);
    assert_eq!(
        events,
        [
            (0, Some("EV_S_CRTM_VERSION"), sha256(b"version")),
            (7, Some("EV_SEPARATOR"), separator),
            (0, Some("EV_SEPARATOR"), separator)
        ]
    );
}

#[test]
fn a_log_that_is_damaged_is_refused_with_the_reason() {
    let good = event_log(&[(0, SEPARATOR, &[0; 4])]);
    let event = &good[header(&[(4, 20), (0x0b, 32)]).len()..];
    let with = |header: Vec<u8>, event: &[u8]| [header, event.to_vec()].concat();
    let table: &[(Vec<u8>, &str)] = &[
        (vec![], "it does not begin as a log with several algorithms (TCG_EfiSpecIDEvent)"),
        (event.to_vec(), "it does not begin as a log with several algorithms (TCG_EfiSpecIDEvent)"),
        (header(&[(4, 20)]), "it has no SHA-256 digests"),
        (header(&[(0x0b, 31)]), "it has no SHA-256 digests"),
        (
            with(header(&[(0x0b, 32)]), event),
            "an event has a digest of an algorithm that its first event does not list",
        ),
        (event_log(&[(24, SEPARATOR, &[])]), "an event is of a register that no TPM has"),
        (
            // No digests, and no data.
            with(header(&[(0x0b, 32)]), &[&[0; 4][..], &SEPARATOR.to_le_bytes(), &[0; 8]].concat()),
            "an event has no SHA-256 digest",
        ),
        (
            // More digests than there are bytes.
            with(header(&[(0x0b, 32)]), &[&[0; 8][..], &[0xff; 4]].concat()),
            "its last event is not whole",
        ),
    ];
    for (log, reason) in table {
        assert_eq!(EventLog::parse(log), Err(*reason));
    }
    for end in good.len() - event.len() + 1..good.len() {
        assert_eq!(EventLog::parse(&good[..end]), Err("its last event is not whole"), "{end}");
    }
}
