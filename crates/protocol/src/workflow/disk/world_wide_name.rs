//! World Wide Names of disks, as sysfs shows them.

/// Whether a maker gives this name to a single disk: an IEEE name with the maker's number in it (SPC-4, 7.8.6.5 and
/// 7.8.6.6; NVM Express Base Specification 2.0, 4.5.1). Locally assigned names (NAA 3) and vendor-specific ones
/// (`t10.`, `nvme.`) do not count, because software targets give them to all their volumes. Names that were never
/// written do not count either.
pub fn is_of_one_disk(name: &str) -> bool {
    let Some((kind, digits)) = name.split_once('.') else { return false };
    // The maker's number, and the rest, which the maker chooses.
    let parts = match (kind, digits.len(), digits.as_bytes().first()) {
        ("naa", 16, Some(b'2')) => [digits.get(4..10), digits.get(10..)],
        ("naa", 16, Some(b'5')) | ("naa", 32, Some(b'6')) => [digits.get(1..7), digits.get(7..)],
        ("eui", 16 | 24, _) => [digits.get(..6), digits.get(6..)],
        // The maker's number is in the middle of an NGUID (its bytes 8 to 10), and in no UUID.
        ("eui", 32, _) | ("uuid", 36, _) => [Some(digits); 2],
        _ => return false,
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit() || kind == "uuid" && byte == b'-');
    // A part that was never written repeats one digit.
    let is_given = |part: &str| {
        let mut digits = part.bytes().filter(|byte| *byte != b'-');
        let first = digits.next();
        digits.any(|digit| Some(digit) != first)
    };
    is_number && parts.iter().all(|part| part.is_some_and(is_given))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_that_a_maker_gives_once_is_of_one_disk() {
        for name in [
            "naa.5000c500a1b2c3d4",
            "naa.2001a0b1c2d3e4f5",
            "naa.6001405d27e5d898829468b90ce4ef8c",
            // The first volume of an array that numbers them from 0.
            "naa.60050768018180c9b000000000000000",
            "eui.0025385b11b2c3d4",
            "eui.0025385b11b2c3d400000001",
            "eui.36344630528005150025384100000001",
            "uuid.0f3c2a5e-8d41-4c59-9d3e-2f6a7b8c9d01",
        ] {
            assert!(is_of_one_disk(name), "{name}");
        }
        for name in [
            "",
            "0123456789ABCDEF",
            "naa.",
            "naa.3333333000000000",
            "naa.3001405d27e5d898",
            "naa.0000000000000000",
            "naa.5000000000000000",
            "naa.5000000000000001",
            "naa.5000c50000000000",
            "naa.ffffffffffffffff",
            "naa.6001",
            "naa.600140500000000000000000000000000",
            "naa.60000000000000000000000000000000",
            "eui.0000000000000000",
            "eui.0025380000000000",
            "eui.00000000000000000000000000000000",
            "uuid.00000000-0000-0000-0000-000000000000",
            "t10.ATA     QEMU HARDDISK                           QM00001             ",
            "t10.IET     00010001",
            "t10.QEMU    QEMU HARDDISK   0123456789ABCDEF",
            "nvme.1af4-646561646265656600-51454d55204e564d65204374726c-00000001",
            "iqn.2003-01.org.linux-iscsi:target,L,0x0000",
        ] {
            assert!(!is_of_one_disk(name), "{name}");
        }
    }
}
