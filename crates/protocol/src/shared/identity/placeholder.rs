//! Values that many machines share instead of having their own.
//!
//! Vendors leave such values where a technician should have written a real value. The values come from public
//! inventories: the blacklists of GLPI, FusionInventory and OCS Inventory, FOG's invalid UUIDs, FreeBSD's
//! `rc.d/hostid`, Dell OpenManage's common MAC addresses, and reports of lshw and dmidecode. Most of the values follow
//! from a few rules, which also find values that no inventory lists.

/// Words that make up placeholders, such as "To be filled by O.E.M." or "Enter Serial Number".
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "all", "applicable", "asset", "assigned", "atn", "available", "bad", "base", "be", "blank", "board", "bsn", "by",
    "change", "chassis", "company", "config", "configured", "data", "default", "defined", "dummy", "empty",
    "enclosure", "enter", "error", "example", "factory", "family", "fill", "filled", "filler", "here", "id", "index",
    "info", "information", "initialized", "input", "insert", "invalid", "location", "main", "manufacturer", "mb",
    "me", "missing", "model", "more", "mother", "name", "nil", "no", "none", "not", "nothing", "null", "num", "numb",
    "number", "oem", "of", "or", "out", "part", "placeholder", "please", "present", "product", "programmed", "proto",
    "prototype", "provided", "read", "reserved", "sample", "ser", "serial", "series", "service", "set", "settable",
    "sku", "sn", "some", "spec", "specified", "ssn", "string", "supported", "sys", "system", "tag", "tba", "tbd",
    "test", "the", "this", "to", "todo", "type", "unassigned", "unavailable", "undefined", "undetermined",
    "uninitialized", "unknow", "unknown", "unset", "unspecified", "unused", "used", "uuid", "value", "vendor",
    "version", "write", "your", "zero",
];
/// The longest text that may be a placeholder, in letters and digits.
const MAX_MARKS: usize = 64;

/// Serial numbers of many machines that no rule covers: letters and digits, in lower case.
const SERIALS: &[&str] = &[
    "123456789000",
    "5ekpm18320000397",
    "eval",
    "iatpass",
    "qemu",
    "sn123456fvgv3i0b8o5n6n7k",
    "standard",
    "tulipcomputers",
    "virtualbox",
    "vmware",
];

/// UUIDs of many machines that no rule covers, and examples from documents.
const UUIDS: &[&str] = &[
    "01234567891011121314151617181920",
    "02000300040005000006000700080009",
    "03000200040005000006000700080009",
    "07090201010303010807060504030201",
    "10000000000080000040000000000000",
    "12345678123412341234123456789abc",
    "12345678123456781234567812345678",
    "123456781234567890abcddeefaabbcc",
    "4c4c4544000010108010c4c04f313233",
    "550e8400e29b41d4a716446655440000",
    "6ab5b300538d10149fb5b0684d007b53",
    "890e2d14cacd45d1ae66bc80e8bfeb0f",
    "8a95d1987f4611e5bf8b08002704d48e",
    "8e275844178f44a8aceba7d7e5178c63",
    "a1b2c3d4e5f67890abcdef1234567890",
    "dc698397fa544cf282c8b1b5307a6a7f",
];

/// MAC addresses of many machines that no rule covers: software adapters, and cards of a model that all have the same
/// address.
const MACS: &[&str] = &[
    "00:01:02:7d:9b:1c",
    "00:05:9a:3c:78:00",
    "00:05:9a:3c:7a:00",
    "00:08:a1:46:06:35",
    "00:08:a1:66:e2:1a",
    "00:09:dd:10:37:68",
    "00:0a:35:00:01:22",
    "00:0b:ca:fe:00:00",
    "00:0c:43:28:80:00",
    "00:0f:ea:9a:e2:f0",
    "00:10:5a:72:71:f3",
    "00:11:11:85:08:8b",
    "00:90:4c:11:22:33",
    "00:e0:11:22:33:44",
    "00:e0:4c:36:00:01",
    "00:e0:4c:36:33:33",
    "00:e0:4c:53:44:58",
    "00:e0:4c:68:00:01",
    "02:00:4c:4f:4f:50",
    "02:00:4e:43:50:49",
    "02:80:37:ec:02:00",
    "10:11:11:11:11:11",
    "20:41:53:59:4e:ff",
    "44:45:53:54:00:00",
    "44:45:53:54:00:01",
    "44:45:53:54:42:00",
    "44:45:53:54:61:6f",
    "50:50:54:50:30:30",
    "80:00:60:0f:e8:00",
    "ba:d0:be:ef:fa:ce",
    "d2:0a:2d:a0:04:be",
    "d2:6b:25:2f:2c:e7",
    "de:ad:de:ad:de:ad",
    "e2:e6:16:20:0a:35",
];
/// Beginnings of MAC addresses that are used again on each host: of virtual routers (RFC 9568, section 7.3, and HSRP),
/// of the host's own adapters in VirtualBox and VMware, and of the first containers in Docker; and of made-up
/// addresses.
const MAC_BEGINNINGS: &[&str] = &[
    "00:00:5e:00:01:",
    "00:00:5e:00:02:",
    "00:00:0c:07:ac:",
    "0a:00:27:00:00:",
    "00:50:56:c0:00:",
    "02:42:ac:",
    "00:00:00:00:",
    "de:ad:be:ef:",
    "ca:fe:ba:be:",
    "00:de:ad:be:ef:",
];
/// Ends of MAC addresses of software adapters (" RAS" in ASCII), and of cards that were not given an address.
const MAC_ENDS: &[&str] = &[":20:52:41:53", ":00:00:00", ":ff:ff:ff"];

/// The beginning of MAC addresses that people give to virtual machines by hand, counting from zero.
const GIVEN: &str = "52:54:00:";

/// Whether a text is a placeholder or empty: words about values, one repeated character, or characters in counting
/// order. Case, spacing and punctuation do not matter.
pub(super) fn is_text(text: &str) -> bool {
    let marks: String = text.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect();
    let marks = marks.strip_prefix("0x").unwrap_or(&marks);
    if marks.len() > MAX_MARKS {
        return is_repeated(marks);
    }
    let parts = parts(marks);
    let is_word = |part: &&&str| is_made_of_words(part);
    let has_word = parts.iter().any(|part| is_word(&part));
    // One or two digits behind all words are the number of a machine, unless they are zeros: TEST1, SerNum00.
    let is_number = |index: usize, part: &str| index + 1 == parts.len() && !part.bytes().all(|byte| byte == b'0');
    let is_filler = |(index, part): (usize, &&str)| {
        let is_digits = part.starts_with(|c: char| c.is_ascii_digit());
        let counts = part.len() >= 3 || has_word && is_digits && !is_number(index, part);
        is_word(&part) || counts && (is_repeated(part) || is_run(part))
    };
    is_repeated(marks) || is_run(marks) || marks == "na" || parts.iter().enumerate().all(is_filler)
}

/// Whether a serial number that is not a placeholder still belongs to many machines.
pub(super) fn is_serial(text: &str) -> bool {
    let marks: String = text.to_lowercase().chars().filter(|c| c.is_alphanumeric()).collect();
    SERIALS.contains(&marks.as_str())
}

/// Whether the 32 digits are a UUID of many machines, in this byte order or with the bytes of the first three fields
/// reversed. Firmware before SMBIOS 2.6 has these fields in reverse order (DSP0134, 7.2.1).
pub(super) fn is_uuid(digits: &str) -> bool {
    let bytes = base16ct::mixed::decode_vec(digits).ok().and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    let Some(bytes @ [a, b, c, d, e, f, g, h, rest @ ..]) = bytes else { return false };
    let swapped: Vec<u8> = [d, c, b, a, f, e, h, g].into_iter().chain(rest).collect();
    [bytes.as_slice(), &swapped].into_iter().any(is_shared_uuid)
}

fn is_shared_uuid(bytes: &[u8]) -> bool {
    let digits = base16ct::lower::encode_string(bytes);
    let count = |byte: u8| bytes.iter().filter(|found| **found == byte).count();
    let is_filler = |part: &str| is_repeated(part) || is_run(part);
    let fields = [0..8, 8..12, 12..16, 16..20, 20..32].map(|field| digits.get(field).unwrap_or_default());
    let mut quarters = digits.as_bytes().chunks(4).map(|quarter| str::from_utf8(quarter).unwrap_or_default());
    UUIDS.contains(&digits.as_str())
        || [1, 2, 4, 8].iter().any(|period| bytes.iter().zip(bytes.iter().skip(*period)).all(|(a, b)| a == b))
        || is_even(bytes)
        || fields.iter().all(|field| is_filler(field))
        || quarters.all(is_repeated)
        // A few bytes were written over a blank value.
        || count(0xFF) >= 12
        || count(0) >= 14
        || is_blank_dell(bytes)
        || is_of_mac(bytes)
}

/// Whether the UUID is filler and a MAC address that many cards have, as in UUIDs from Supermicro's firmware.
fn is_of_mac(bytes: &[u8]) -> bool {
    let Some((blank, mac)) = bytes.split_at_checked(10) else { return false };
    let mac: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    is_even(blank) && is_mac(&mac.join(":"))
}

/// Whether a Dell derived its UUID from a missing service tag. The UUID is "DELL" and the seven characters of the tag,
/// one of them with an additional bit.
fn is_blank_dell(bytes: &[u8]) -> bool {
    let at = |place: usize| bytes.get(place).map_or(' ', |byte| char::from(byte & 0x7F));
    let tag: String = [5, 6, 9, 10, 13, 14, 15].map(at).iter().filter(|c| c.is_ascii_graphic()).collect();
    bytes.starts_with(&[0x4C, 0x4C, 0x45, 0x44]) && is_text(&tag)
}

/// Whether a MAC address, in lower case with colons, belongs to many cards or to none. Group addresses belong to none
/// (IEEE 802, section 8.2.2).
pub(super) fn is_mac(mac: &str) -> bool {
    let bytes: Vec<u8> = mac.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.first().is_some_and(|first| first & 1 == 1)
        || is_even(&bytes)
        // The first byte only shows who assigned the address.
        || !mac.starts_with(GIVEN) && bytes.get(1..).is_some_and(is_even)
        || MACS.contains(&mac)
        || MAC_BEGINNINGS.iter().any(|beginning| mac.starts_with(beginning))
        || !mac.starts_with(GIVEN) && MAC_ENDS.iter().any(|end| mac.ends_with(end))
}

/// Whether each byte differs from the previous one by the same amount: 11:11:11, 00:01:02, 00:11:22, ff:ee:dd.
fn is_even(bytes: &[u8]) -> bool {
    let mut steps = bytes.iter().zip(bytes.iter().skip(1)).map(|(a, b)| b.wrapping_sub(*a));
    let first = steps.next();
    steps.all(|step| Some(step) == first)
}

/// Splits a text into pieces that are only digits and pieces without digits.
fn parts(marks: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = marks;
    while let Some(first) = rest.chars().next() {
        let is_other = |c: char| c.is_ascii_digit() != first.is_ascii_digit();
        let (part, after) = rest.split_at(rest.find(is_other).unwrap_or(rest.len()));
        parts.push(part);
        rest = after;
    }
    parts
}

/// Whether letters are words of [`WORDS`] in a row. Three or more of the same letter count as a word.
fn is_made_of_words(letters: &str) -> bool {
    let is_rest = |rest: &str| rest.is_empty() || is_made_of_words(rest);
    let after_blank = letters.chars().next().map_or("", |first| letters.trim_start_matches(first));
    let has_blank = letters.len() - after_blank.len() >= 3;
    WORDS.iter().any(|word| letters.strip_prefix(word).is_some_and(is_rest)) || has_blank && is_rest(after_blank)
}

/// Whether a text is one repeated character, or empty.
fn is_repeated(marks: &str) -> bool {
    let mut marks = marks.chars();
    let first = marks.next();
    marks.all(|c| Some(c) == first)
}

/// Whether a text counts up or down: 12345, 67890123, 987, abcdef, 789abc. Three characters or more.
fn is_run(marks: &str) -> bool {
    let follows = |a: u8, b: u8| a + 1 == b || matches!((a, b), (b'9', b'0' | b'a') | (b'f', b'0'));
    let pairs = || marks.as_bytes().iter().zip(marks.as_bytes().iter().skip(1));
    let counts = pairs().all(|(a, b)| follows(*a, *b)) || pairs().all(|(a, b)| follows(*b, *a));
    marks.len() >= 3 && marks.bytes().all(|byte| byte.is_ascii_alphanumeric()) && counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::identity::{Unusable, mac_address, meaningful, serial_number, system_uuid};

    /// The values of the inventories named above, in spellings that the inventories or firmware use.
    #[test]
    fn serial_numbers_of_many_machines_are_known() {
        let table = [
            "Enter Serial",
            "ENTER SERIAL NUMBER",
            "To be filled by O.E.M.",
            "To Be Filled By O.E.M",
            "TobefilledbyO.E.M.",
            "To be filled by OEM",
            "Default string",
            "Default_string",
            "\"Default string\"",
            "System Serial Number",
            "SystemSerialNumber",
            "SystemSerialNumb",
            "Chassis Serial Number",
            "Base Board Serial Number",
            "Unspecified System Serial Number",
            "Type1ProductConfigId",
            "Type2 - Board Serial Number",
            "Not Specified",
            "Not Applicable",
            "Not  Available",
            "Not Settable",
            "Not Present",
            "Not Defined",
            "None",
            "none.",
            "N/A",
            "NA",
            "Unknown",
            "Unknow",
            "OEM",
            "O.E.M.",
            "OEM_Serial",
            "INVALID",
            "empty",
            "(null string)",
            "null",
            "<OUT OF SPEC>",
            "<BAD INDEX>",
            "Serial Number xxxxxx",
            "SerialNumber",
            "S/N",
            "Serial#",
            "0",
            "1",
            "00000000",
            "0x00000000",
            "1111111",
            "XXXXXXX",
            "XxXxXxX",
            "NNNNNNN",
            "x.x",
            "...",
            ".......",
            "---",
            "*",
            "  ",
            "123456789",
            "0123456789",
            "1234567890",
            "12345",
            "123456789000",
            "12345678901234567",
            "0123456789ABCDEF",
            "9876543210",
            "SYS-1234567890",
            "SYS-9876543210",
            "SN-12345",
            "SN 0000000",
            "MB-1234567890",
            "SN-123456fvgv3i0b8o5n6n7k",
            "EVAL",
            "IATPASS",
            "Tulip Computers",
            "Standard",
            "No Asset Tag",
            "BSN12345678901234567",
            "Change me",
            "Unassigned",
            "Undetermined",
            "SerNum00",
            "VirtualBox",
            "03000200-0400-0500-0006-000700080009",
            "00000000-0000-0000-0000-000000000000",
        ];
        for shared in table {
            assert_eq!(serial_number(shared), Err(Unusable::Shared), "{shared:?}");
        }
    }

    #[test]
    fn serial_numbers_of_one_machine_are_no_placeholders() {
        let table = [
            "7CZ1234",
            "CZC1234567",
            "PF0ABCDE",
            "MXL0421F5P",
            "S4EVNF0M",
            "5CD9363GC3",
            "BXNFSNN",
            "GM00ABCD",
            "F0",
            "S1",
            "00A1",
            "0012",
            "1004",
            "BENCH0001",
            "DEMO0001",
            "TEST1",
            "TEST2",
            "TEST10",
            "TEST11",
            "system-1",
            "data1",
            "X1234",
            "A1234567",
            "E123456",
            "SN-12346578",
            "M80-5B020501684",
            "VMware-56 4d 8c 1e",
            "Parallels-4B 5E",
            "ec2e1916-9099-7caf-fd21-012345abcdef",
            "QTF4J051400040",
            "S233087X5C08765",
            "111122",
            "1112",
            "12345679",
        ];
        for real in table {
            assert_eq!(serial_number(real).as_deref(), Ok(real));
        }
        for real in [
            "HP",
            "LENOVO",
            "Tulip Computers",
            "X99",
            "MODEL5",
            "System x3650 M4",
            "K7NF2-RAID",
            "Standard PC (Q35 + ICH9, 2009)",
        ] {
            assert_eq!(meaningful(real), Some(real), "a vendor or a model");
        }
    }

    #[test]
    fn uuids_of_many_machines_are_known_in_both_orders_of_bytes() {
        let table = [
            "00000000-0000-0000-0000-000000000000",
            "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
            "ffffffff-ffff-ffff-ffff-ffffffffff00",
            "FFFFFF00-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
            "56f49712-ffff-ffff-ffff-ffffffffffff",
            "00000000-0000-0000-0000-ac1f6b000000",
            "00000000-0000-0000-0000-001122334455",
            "550E8400-E29B-41D4-A716-446655440000",
            "00000000-0000-0000-0000-000000000001",
            "03000200-0400-0500-0006-000700080009",
            "00020003-0004-0005-0006-000700080009",
            "03020100-0504-0706-0809-0a0b0c0d0e0f",
            "00010203-0405-0607-0809-0a0b0c0d0e0f",
            "01020304-0506-0708-090a-0b0c0d0e0f10",
            "04030201-0605-0807-090a-0b0c0d0e0f10",
            "12345678-1234-5678-90ab-cddeefaabbcc",
            "78563412-3412-7856-90ab-cddeefaabbcc",
            "12345678-1234-5678-1234-567812345678",
            "12345678-1234-1234-1234-123456789abc",
            "12345678-1234-1234-1234-123456789012",
            "01234567-89ab-cdef-0123-456789abcdef",
            "01234567-8910-1112-1314-151617181920",
            "11111111-1111-1111-1111-111111111111",
            "11111111-2222-3333-4444-555555555555",
            "11112222-3333-4444-5555-666677778888",
            "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
            "58585858-5858-5858-5858-585858585858",
            "01010101-0101-0101-0101-010101010101",
            "fefefefe-fefe-fefe-fefe-fefefefefefe",
            "deadbeef-dead-beef-dead-beefdeadbeef",
            "efbeadde-adde-efbe-dead-beefdeadbeef",
            "4c4c4544-0000-2010-8020-80c04f202020",
            "4c4c4544-0000-1010-8010-c4c04f313233",
            "44454c4c-0000-1020-8020-80c04f202020",
            "07090201-0103-0301-0807-060504030201",
            "890e2d14-cacd-45d1-ae66-bc80e8bfeb0f",
            "8e275844-178f-44a8-aceb-a7d7e5178c63",
            "dc698397-fa54-4cf2-82c8-b1b5307a6a7f",
            "6AB5B300-538D-1014-9FB5-B0684D007B53",
            "8a95d198-7f46-11e5-bf8b-08002704d48e",
            "10000000-0000-8000-0040-000000000000",
        ];
        for shared in table {
            assert_eq!(system_uuid(shared), Err(Unusable::Shared), "{shared}");
        }
        for real in [
            "4c4c4544-0042-3010-8058-b7c04f503432",
            "00000000-0000-0000-0000-0cc47a1b2c3d",
            "03d40274-0435-05dc-8506-010700080009",
            "35434439-3336-3347-4333-f8b46ab6fe18",
            "d2c8d5b6-5a59-4b3e-8c3c-2a5d8e2b1f00",
        ] {
            assert_eq!(system_uuid(real).as_deref(), Ok(real));
        }
    }

    #[test]
    fn mac_addresses_of_many_cards_are_known() {
        let table = [
            "00:00:00:00:00:00",
            "FF-FF-FF-FF-FF-FF",
            "01:00:5e:00:00:01",
            "33:33:00:00:00:01",
            "00:11:22:33:44:55",
            "aa:bb:cc:dd:ee:ff",
            "12:34:56:78:9a:bc",
            "00:01:02:03:04:05",
            "22:22:22:22:22:22",
            "02:00:00:00:00:00",
            "00:53:45:00:00:00",
            "44:45:53:54:00:00",
            "44:45:53:54:42:00",
            "50:50:54:50:30:30",
            "24:b6:20:52:41:53",
            "0a:00:27:00:00:00",
            "0a:00:27:00:00:05",
            "00:50:56:C0:00:08",
            "00:00:5e:00:01:0a",
            "fe:ff:ff:ff:ff:ff",
            "00:05:9a:3c:7a:00",
            "00:e0:4c:53:44:58",
            "BA:D0:BE:EF:FA:CE",
            "0050.56c0.0001",
            "de:ad:be:ef:00:01",
            "00:22:33:44:55:66",
            "02:42:ac:11:00:02",
            "00:00:00:00:00:01",
            "00:e0:4c:36:00:01",
        ];
        for shared in table {
            assert_eq!(mac_address(shared), Err(Unusable::Shared), "{shared}");
        }
        for real in [
            "52:54:00:12:34:56",
            "52:54:00:00:00:00",
            "00:0c:29:3e:5a:01",
            "e4:1d:2d:03:00:5e",
            "08:00:27:4e:66:a1",
            "00:25:90:00:00:ab",
        ] {
            assert_eq!(mac_address(real).as_deref(), Ok(real));
        }
    }

    #[test]
    fn a_text_of_words_that_ends_otherwise_is_none() {
        assert!(!is_text(&"notno".repeat(10_000)));
        assert!(!is_text(&("not".repeat(20) + "q")));
        assert!(!is_text(&("x".repeat(MAX_MARKS - 1) + "q")));
    }
}
