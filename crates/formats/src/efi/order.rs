//! Chooses the entry for the installed system and its place in the boot order (UEFI specification 2.10, 3.3).

use std::collections::BTreeMap;

use slipway_protocol::BootPosition;

use super::device_path::{Signature, utf16_units};
use super::load_option::{LoadOption, LoaderPath};

/// The entries that the firmware has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// Every `Boot####` by its number. None if it is not a readable load option.
    pub options: BTreeMap<u16, Option<LoadOption>>,
    /// `BootOrder`.
    pub order: Vec<u16>,
}

/// The entries that the firmware should get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of the entry.
    pub number: u16,
    /// What the entry is.
    pub option: LoadOption,
    /// `BootOrder`.
    pub order: Vec<u16>,
    /// Numbers of the entries to remove.
    pub removed: Vec<u16>,
    /// Numbers of entries that start the same loader with arguments, such as those of an earlier system. They stay.
    pub passed_over: Vec<u16>,
}

/// Name of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    /// Name from the operator; an existing entry is renamed to it.
    pub given: Option<&'a str>,
    /// Name of a new entry if the operator gives none.
    pub otherwise: &'a str,
}

/// The content of `BootOrder`.
pub fn decode(bytes: &[u8]) -> Vec<u16> {
    utf16_units(bytes).collect()
}

/// The bytes of `BootOrder`.
pub fn encode(order: &[u16]) -> Vec<u8> {
    order.iter().copied().flat_map(u16::to_le_bytes).collect()
}

/// Plans an entry for a loader at a position of the boot order. An existing entry for the loader is reused if it is for
/// booting and passes no arguments, such as the name of another program. The other entries and their order stay, except
/// that entries on partitions known to be gone are removed. None if every number is in use.
pub fn plan(
    has: &Entries,
    loader: &LoaderPath,
    name: Name<'_>,
    position: BootPosition,
    gone: &[Signature],
) -> Option<Plan> {
    let leads_there = |option: &&LoadOption| option.loader().is_some_and(|found| found.is_same(loader));
    let starts_it = |number: &u16| {
        let option = has.options.get(number)?.as_ref().filter(leads_there)?;
        (option.is_for_booting() && option.arguments().is_none()).then_some((*number, option))
    };
    // Of several such entries, the first in the boot order is reused.
    let taken = has.order.iter().chain(has.options.keys()).find_map(starts_it);
    let (number, option) = match taken {
        Some((number, option)) => (number, option.renewed(name.given, loader)),
        None => {
            let number = (0..=u16::MAX).find(|number| !has.options.contains_key(number))?;
            (number, LoadOption::new(name.given.unwrap_or(name.otherwise), loader))
        }
    };
    let is_gone = |option: &LoadOption| option.loader().is_some_and(|found| gone.contains(&found.drive.signature));
    let options = has.options.iter().filter(|(other, _)| **other != number);
    let removed: Vec<u16> =
        options.filter(|(_, option)| option.as_ref().is_some_and(is_gone)).map(|(number, _)| *number).collect();
    let is_passed_over = |(number, option): (&u16, &Option<LoadOption>)| {
        let option = option.as_ref().filter(leads_there).filter(|option| !option.names_a_program())?;
        option.arguments().filter(|_| !removed.contains(number)).map(|_| *number)
    };
    let passed_over = has.options.iter().filter_map(is_passed_over).collect();
    let mut order: Vec<u16> = Vec::with_capacity(has.order.len() + 1);
    order.extend(Some(number).filter(|_| position == BootPosition::First));
    // Firmware may delete an entry that is not in the order. So the entry is added at the end if it is not wanted
    // elsewhere.
    for other in has.order.iter().chain([&number]) {
        if !order.contains(other) && !removed.contains(other) {
            order.push(*other);
        }
    }
    Some(Plan { number, option, order, removed, passed_over })
}

#[cfg(test)]
mod tests {
    use super::super::device_path::HardDrive;
    use super::*;

    fn loader(partition: u8) -> LoaderPath {
        let drive = HardDrive { number: 1, start: 2048, blocks: 8, signature: Signature::Guid([partition; 16]) };
        LoaderPath { drive, file: "\\EFI\\debian\\shimx64.efi".to_owned() }
    }

    fn disk(partition: u8) -> Option<LoadOption> {
        Some(LoadOption::new("disk", &loader(partition)))
    }

    /// An entry for a network card: its path ends at once.
    fn network() -> Option<LoadOption> {
        LoadOption::decode(&[1, 0, 0, 0, 4, 0, b'P', 0, 0, 0, 0x7F, 0xFF, 4, 0])
    }

    fn utf16(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    const NAME: Name<'_> = Name { given: None, otherwise: "Debian" };

    /// Checks number, order and removed entries for a loader on partition 7, when partition 9 is gone.
    fn check(
        options: &[(u16, Option<LoadOption>)],
        order: &[u16],
        position: BootPosition,
        (number, expect, removed): (u16, &[u16], &[u16]),
    ) {
        let has = Entries { options: options.iter().cloned().collect(), order: order.to_vec() };
        let plan = plan(&has, &loader(7), NAME, position, &[Signature::Guid([9; 16])]).unwrap();
        assert_eq!((plan.number, plan.order.as_slice(), plan.removed.as_slice()), (number, expect, removed), "{has:?}");
        assert_eq!(plan.option.loader(), Some(loader(7)));
    }

    #[test]
    fn the_disk_is_first_and_the_others_keep_their_order() {
        use BootPosition::First;
        check(&[], &[], First, (0, &[0], &[]));
        check(&[(0, network()), (1, network()), (3, disk(1))], &[1, 0, 3], First, (2, &[2, 1, 0, 3], &[]));
        check(&[(0, network()), (4, disk(7))], &[0, 4], First, (4, &[4, 0], &[]));
        // One number appears several times, and one has no entry: that may be the firmware's own.
        check(&[(0, network()), (1, disk(7))], &[0, 0x2001, 0, 1, 1], First, (1, &[1, 0, 0x2001], &[]));
        // One entry that is not in the order; then two entries, of which only one is in the order.
        check(&[(0, network()), (5, disk(7))], &[0], First, (5, &[5, 0], &[]));
        check(&[(2, disk(7)), (5, disk(7))], &[5], First, (5, &[5], &[]));
    }

    #[test]
    fn an_entry_that_has_the_loader_start_something_else_is_not_taken() {
        let with = |data: &[u8]| LoadOption::decode(&[&disk(7).unwrap().encode(), data].concat());
        for data in [utf16("\\fwupdx64.efi\0"), utf16("shimx64.EFI \\a"), utf16("\\a")] {
            check(&[(0, with(&data))], &[0], BootPosition::First, (1, &[1, 0], &[]));
        }
        // Data that mainboards and Windows append to their entries.
        for data in [&b"\0\0BO"[..], b"WINDOWS\0\x01\0\0\0"] {
            check(&[(0, with(data))], &[0], BootPosition::First, (0, &[0], &[]));
        }
    }

    #[test]
    fn an_entry_with_arguments_of_an_earlier_system_is_passed_over() {
        let with = |data: &[u8]| LoadOption::decode(&[&disk(7).unwrap().encode(), data].concat());
        let old = utf16("root=/dev/mapper/oldvg-root\0");
        let passed_over = |options: &[(u16, Option<LoadOption>)]| {
            let has = Entries { options: options.iter().cloned().collect(), order: vec![0] };
            plan(&has, &loader(7), NAME, BootPosition::First, &[]).unwrap().passed_over
        };
        for data in [old.as_slice(), b"root=/dev/mapper/oldvg-root", b"x"] {
            check(&[(0, with(data))], &[0], BootPosition::First, (1, &[1, 0], &[]));
            check(&[(0, with(data)), (1, disk(7))], &[0, 1], BootPosition::First, (1, &[1, 0], &[]));
            assert_eq!(passed_over(&[(0, with(data)), (1, disk(7)), (2, disk(1))]), [0]);
        }
        assert_eq!(passed_over(&[(0, with(&utf16("\\fwupdx64.efi\0")))]), [0; 0]);
        // An application, which firmware does not start by itself.
        let mut application = disk(7).unwrap().encode();
        application[1] = 1;
        check(&[(0, LoadOption::decode(&application))], &[0], BootPosition::First, (1, &[1, 0], &[]));
    }

    #[test]
    fn for_the_next_time_only_the_order_stays() {
        use BootPosition::Next;
        check(&[(0, network()), (1, disk(7))], &[0, 1, 0], Next, (1, &[0, 1], &[]));
        check(&[(0, network())], &[0], Next, (1, &[0, 1], &[]));
    }

    #[test]
    fn only_entries_of_partitions_that_are_gone_are_removed() {
        use BootPosition::First;
        let options = [(0, disk(9)), (1, network()), (2, disk(8)), (3, None), (4, disk(9))];
        check(&options, &[0, 1, 2, 3], First, (5, &[5, 1, 2, 3], &[0, 4]));
    }

    #[test]
    fn the_name_of_an_entry_that_is_there_stays_unless_one_is_given() {
        let has = Entries { options: [(0, disk(7))].into(), order: vec![0] };
        let called = |given| {
            let name = Name { given, otherwise: "Debian" };
            plan(&has, &loader(7), name, BootPosition::First, &[]).unwrap().option.description()
        };
        assert_eq!((called(None), called(Some("rack 7"))), ("disk".to_owned(), "rack 7".to_owned()));
        let all = Entries { options: (0..=u16::MAX).map(|number| (number, None)).collect(), order: Vec::new() };
        assert_eq!(plan(&all, &loader(7), NAME, BootPosition::First, &[]), None);
    }

    #[test]
    fn an_order_of_odd_length_loses_half_a_number() {
        assert_eq!(decode(&[1, 0, 2, 0x80, 3]), [1, 0x8002]);
        assert_eq!(decode(&encode(&[1, 0x8002])), [1, 0x8002]);
    }
}
