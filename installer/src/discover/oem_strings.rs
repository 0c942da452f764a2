//! SMBIOS OEM strings (DSP0134, 7.12, type 11). A BMC or hypervisor can pass settings to the machine in them.

/// Size of a structure's header in bytes: type, length of the formatted part, handle (DSP0134, 6.1.2).
const HEADER: usize = 4;
const OEM_STRINGS: u8 = 11;
const END_OF_TABLE: u8 = 127;

/// Returns the strings of all type 11 structures, in order. Invalid data from the firmware gives no strings.
pub fn parse(table: &[u8]) -> Vec<String> {
    let mut strings = Vec::new();
    let mut rest = table;
    while let Some((kind, own, after)) = next_structure(rest) {
        match kind {
            OEM_STRINGS => strings.extend(own),
            END_OF_TABLE => break,
            _ => {}
        }
        rest = after;
    }
    strings
}

/// Returns type and strings of the first structure, and the rest of the table. Two NULs end the strings, even if there
/// are no strings.
fn next_structure(table: &[u8]) -> Option<(u8, Vec<String>, &[u8])> {
    let (kind, length) = (*table.first()?, usize::from(*table.get(1)?));
    let text = table.get(length.max(HEADER)..)?;
    let end = text.windows(2).position(|pair| pair == [0, 0])?;
    let strings = text.get(..end)?.split(|byte| *byte == 0);
    let strings = strings.filter(|s| !s.is_empty()).map(|s| String::from_utf8_lossy(s).into_owned()).collect();
    Some((kind, strings, text.get(end + 2..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_type_11_are_found_between_other_structures() {
        let mut table = vec![1, 4, 0, 0];
        table.extend(b"vendor\0\0");
        table.extend([11, 5, 1, 0, 2]);
        table.extend(b"slipway.server=https://s.example\0second\0\0");
        table.extend([127, 4, 2, 0, 0, 0]);
        table.extend([11, 4, 0, 0]);
        table.extend(b"behind the end\0\0");
        assert_eq!(parse(&table), ["slipway.server=https://s.example", "second"]);
    }

    #[test]
    fn no_table_gives_no_strings() {
        for table in [&b""[..], &[11], &[11, 255, 0, 0], &[11, 4, 0, 0, b'x'], &[0; 64]] {
            assert_eq!(parse(table), [""; 0], "{table:?}");
        }
    }
}
