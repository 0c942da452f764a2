//! Event logs that were made by hand, whole and damaged.

use slipway_tpm::judge::event_log::EventLog;

use super::log::{IPL, NO_ACTION, SEPARATOR, event_log, header, sha256};

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

/// Linux 6.1 on OVMF with a software TPM, started by its boot stub. The values are those of the TPM, read from Linux.
#[test]
fn the_log_of_a_machine_gives_the_values_of_its_tpm() {
    let log = EventLog::parse(include_bytes!("../../../../fuzz/corpus/event_log/linux-on-ovmf")).unwrap();
    let values = log.replay().into_values().map(|value| base16ct::lower::encode_string(&value));
    let expected = [
        "eaa650ae9b6b9c6d0ef4fab4dda3af9769f23c839ca3c98307a7a84831cbb472",
        "8e9d1fe23131f12d6a523e9c32eb3223d4dc25e14eb5fd60163e7ba8de0f248c",
        "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969",
        "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969",
        "e229f782dcca5475c2da075de025aeca74949ed54d3cc270b7bb67e3e4b61d3d",
        "a5ceb755d043f32431d63e39f5161464620a3437280494b5850dc1b47cc074e0",
        "3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969",
        "65caf8dd1e0ea7a6347b635d2b379c93b9a1351edc2afc3ecda700e534eb3068",
        "cc44c05c2ac7584fbb9b0d26fa72d07e7f1ebec957ec104a0d5f1b98b022cda5",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000000",
    ];
    assert_eq!(values.collect::<Vec<_>>(), expected);
    // The firmware measures the end of its services after Linux has fetched the log, so these are final events.
    let last: Vec<_> =
        log.events.iter().rev().take(2).map(|event| (event.pcr, event.kind_name(), event.sha256)).collect();
    let action = |text: &[u8]| (5, Some("EV_EFI_ACTION"), sha256(text));
    let returned = action(b"Exit Boot Services Returned with Success");
    assert_eq!(last, [returned, action(b"Exit Boot Services Invocation")]);
}

#[test]
fn a_log_that_is_damaged_is_refused_with_the_reason() {
    let good = event_log(&[(0, SEPARATOR, &[0; 4])]);
    let event = &good[header(&[(4, 20), (0x0b, 32)]).len()..];
    let with = |header: Vec<u8>, event: &[u8]| [header, event.to_vec()].concat();
    let table: &[(Vec<u8>, &str)] = &[
        (vec![], "it does not begin with the header of a crypto-agile log (TCG_EfiSpecIDEvent)"),
        (event.to_vec(), "it does not begin with the header of a crypto-agile log (TCG_EfiSpecIDEvent)"),
        (header(&[(4, 20)]), "it has no SHA-256 digests"),
        (header(&[(0x0b, 31)]), "it has no SHA-256 digests"),
        (with(header(&[(0x0b, 32)]), event), "an event has a digest whose algorithm is not listed in the first event"),
        (event_log(&[(24, SEPARATOR, &[])]), "an event names a register that does not exist"),
        (
            // No digests, and no data.
            with(header(&[(0x0b, 32)]), &[&[0; 4][..], &SEPARATOR.to_le_bytes(), &[0; 8]].concat()),
            "an event has no SHA-256 digest",
        ),
        (
            // More digests than there are bytes.
            with(header(&[(0x0b, 32)]), &[&[0; 8][..], &[0xff; 4]].concat()),
            "its last event is truncated",
        ),
    ];
    for (log, reason) in table {
        assert_eq!(EventLog::parse(log), Err(*reason));
    }
    for end in good.len() - event.len() + 1..good.len() {
        assert_eq!(EventLog::parse(&good[..end]), Err("its last event is truncated"), "{end}");
    }
}
