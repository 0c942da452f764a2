//! A hint that is printed and parsed again is the same. A disk is chosen only if it is the one disk that the hint
//! matches. The first line is the hint, the others are properties of disks.
#![no_main]

use slipway_actions::{Candidate, choose};
use slipway_protocol::{Disk, DiskHints, SizeHint, TextHint};

libfuzzer_sys::fuzz_target!(|input: &str| {
    let mut lines = input.split('\n');
    let hint = lines.next().unwrap_or_default();
    let found: Vec<&str> = lines.take(8).collect();
    if let Ok(text) = hint.parse::<TextHint>() {
        check_text(&text, &found);
    }
    if let Ok(size) = hint.parse::<SizeHint>() {
        check_size(&size, &found);
    }
});

fn check_text(hint: &TextHint, found: &[&str]) {
    let again: TextHint = hint.to_string().parse().expect("what a hint says of itself is a hint");
    assert_eq!(*hint, again);
    assert!(!hint.values().is_empty());
    assert!(!hint.matches(&[], |text| text), "nothing is known, and nothing matches");
    let candidates: Vec<Candidate> = (0..).zip(found).map(|(index, serial)| candidate(index, serial, 0)).collect();
    let hints = DiskHints { serial: Some(hint.clone()), ..DiskHints::default() };
    let meant: Vec<&Candidate> = candidates
        .iter()
        .filter(|candidate| candidate.disk.serial.iter().any(|serial| hint.matches(&[serial.as_str()], |text| text)))
        .collect();
    match (choose(&hints, &candidates), meant.as_slice()) {
        (Ok((chosen, _)), [only]) => assert_eq!(*chosen, only.disk),
        (Ok((chosen, _)), meant) => panic!("{hint} chose {chosen:?} of {meant:?}"),
        (Err(reason), [only]) => panic!("{hint} did not choose {only:?}: {reason}"),
        (Err(_), _) => {}
    }
    // The hint is tried with every key, because each key strips something different from a text.
    let hint = || Some(hint.clone());
    let (wwn, by_path, name) = (hint(), hint(), hint());
    let hints = DiskHints { wwn, by_path, name, wwn_vendor_extension: hint(), model: hint(), ..DiskHints::default() };
    _ = choose(&hints, &candidates);
}

fn check_size(hint: &SizeHint, found: &[&str]) {
    let again: SizeHint = hint.to_string().parse().expect("what a hint says of itself is a hint");
    assert_eq!(*hint, again);
    for (index, bytes) in found.iter().filter_map(|line| line.parse().ok()).enumerate() {
        let hints = DiskHints { size: Some(hint.clone()), ..DiskHints::default() };
        assert_eq!(choose(&hints, &[candidate(index, "", bytes)]).is_ok(), hint.matches(bytes));
    }
}

fn candidate(index: usize, text: &str, size: u64) -> Candidate {
    let text = || Some(text.to_owned());
    let path = format!("/dev/{index}");
    let disk = Disk {
        path,
        size,
        serial: text(),
        wwn: text(),
        model: text(),
        vendor: text(),
        by_path: text(),
        ..Disk::default()
    };
    Candidate { disk, in_use: None, by_name_only: false, boot_medium: None }
}
