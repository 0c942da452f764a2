//! Everything found on a disk is inside it, and each partition is reported once.
#![no_main]

use slipway_fuzz::Disk;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some(disk) = Disk::new(input) else { return };
    let Ok(places) = slipway_actions::probe(&disk.path()) else { return };
    assert!(!places.is_empty());
    for pair in places.windows(2) {
        assert!(pair[0].number < pair[1].number);
    }
    for place in places {
        assert!(place.start.checked_add(place.size).is_some_and(|end| end <= disk.size));
        assert!(place.number > 0 || (place.start == 0 && place.size == disk.size));
        assert!(place.kind.is_some() || (place.uuid.is_none() && place.label.is_none()));
    }
});
