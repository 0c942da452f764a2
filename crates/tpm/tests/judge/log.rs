//! Event logs, made by hand.
#![allow(dead_code, reason = "shared with other tests")]

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};

pub const NO_ACTION: u32 = 3;
pub const SEPARATOR: u32 = 4;
pub const IPL: u32 = 13;

/// A log with digests of SHA-1 and SHA-256. An event is a register, the event's type, and the data to digest.
pub fn event_log(events: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let mut log = header(&[(4, 20), (0x0b, 32)]);
    for (pcr, kind, data) in events {
        log.extend([pcr.to_le_bytes(), kind.to_le_bytes(), 2_u32.to_le_bytes()].concat());
        log.extend([&[4, 0], digest(&SHA1_FOR_LEGACY_USE_ONLY, data).as_ref()].concat());
        log.extend([&[0x0b, 0], sha256(data).as_slice()].concat());
        log.extend([&(data.len() as u32).to_le_bytes(), *data].concat());
    }
    log
}

/// The first event of a log, with these algorithms and the sizes of their digests.
pub fn header(algorithms: &[(u16, u16)]) -> Vec<u8> {
    let mut data =
        [&b"Spec ID Event03\0"[..], &[0, 0, 0, 0, 0, 2, 0, 2], &(algorithms.len() as u32).to_le_bytes()].concat();
    data.extend(algorithms.iter().flat_map(|(algorithm, size)| [algorithm.to_le_bytes(), size.to_le_bytes()].concat()));
    data.push(0);
    [&0_u32.to_le_bytes(), &NO_ACTION.to_le_bytes(), &[0; 20][..], &(data.len() as u32).to_le_bytes(), &data].concat()
}

pub fn sha256(data: &[u8]) -> [u8; 32] {
    digest(&SHA256, data).as_ref().try_into().expect("SHA-256 has 32 bytes")
}
