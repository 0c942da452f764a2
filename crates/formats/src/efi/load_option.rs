//! Load options: the content of a variable such as `Boot0000` (UEFI specification 2.10, 3.1.3).

use super::device_path::{self, utf16_units};

pub use super::device_path::LoaderPath;

/// Firmware tries the entry automatically.
const ACTIVE: u32 = 1;
/// Menus do not show the entry.
const HIDDEN: u32 = 8;
/// Mask of the category. Category 0 is for booting; firmware does not try entries of another category by itself.
const CATEGORY: u32 = 0x1F00;
/// Data that Windows appends to its entries.
const WINDOWS: &[u8] = b"WINDOWS\0";
/// Bytes before the description: attributes and length of the device path.
const HEADER: usize = 6;

/// A load option. Encoding it gives exactly the bytes that were decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOption {
    attributes: u32,
    /// UCS-2 without the terminating zero.
    description: Vec<u16>,
    /// Packed device paths. The first one is started.
    path: Vec<u8>,
    /// Optional data, which is passed to the program.
    data: Vec<u8>,
}

impl LoadOption {
    /// An entry that starts a loader.
    pub fn new(description: &str, loader: &LoaderPath) -> Self {
        let (description, path) = (description.encode_utf16().collect(), device_path::encode(loader));
        Self { attributes: ACTIVE, description, path, data: Vec::new() }
    }

    /// Decodes the content of a variable. None if it is not a load option.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
        let attributes = u32::from_le_bytes(*header.first_chunk()?);
        let path_len = usize::from(u16::from_le_bytes(*header.last_chunk()?));
        let description: Vec<u16> = utf16_units(rest).take_while(|unit| *unit != 0).collect();
        let (path, data) = rest.get(2 * (description.len() + 1)..)?.split_at_checked(path_len)?;
        Some(Self { attributes, description, path: path.to_vec(), data: data.to_vec() })
    }

    /// The bytes of the variable.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.attributes.to_le_bytes().to_vec();
        bytes.extend((self.path.len() as u16).to_le_bytes());
        bytes.extend(self.description.iter().copied().chain([0]).flat_map(u16::to_le_bytes));
        bytes.extend(&self.path);
        bytes.extend(&self.data);
        bytes
    }

    /// The name that menus show.
    pub fn description(&self) -> String {
        String::from_utf16_lossy(&self.description)
    }

    /// The loader that the entry starts. None if the entry starts something else, such as a network card.
    pub fn loader(&self) -> Option<LoaderPath> {
        device_path::loader(&self.path)
    }

    /// Whether the optional data names a program for the loader to start, as fwupd does with shim. Other data are marks
    /// of firmware or of Windows.
    pub fn names_a_program(&self) -> bool {
        let text = String::from_utf16_lossy(&utf16_units(&self.data).take_while(|unit| *unit != 0).collect::<Vec<_>>());
        text.starts_with('\\') || text.to_ascii_lowercase().contains(".efi")
    }

    /// What the entry passes to its program, as text, or the bytes in hexadecimal if it is not text. None if it passes
    /// nothing that a program would treat as arguments: no data, an empty text with a mark of the firmware after it, or
    /// the mark of Windows.
    pub fn arguments(&self) -> Option<String> {
        let data = &self.data;
        if data.is_empty() || data.starts_with(&[0, 0]) || data.starts_with(WINDOWS) {
            return None;
        }
        let wide: Vec<u16> = utf16_units(data).take_while(|unit| *unit != 0).collect();
        // efibootmgr writes one byte for each character unless told otherwise.
        let narrow = String::from_utf8_lossy(data.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
        let wide = String::from_utf16(&wide).ok().filter(|_| data.get(1) == Some(&0));
        let text = wide.unwrap_or(narrow);
        let is_text = !text.is_empty() && text.chars().all(|c| !c.is_control() && c != char::REPLACEMENT_CHARACTER);
        Some(if is_text { text } else { base16ct::lower::encode_string(data) })
    }

    /// Whether the firmware may start the entry by itself, once it is active.
    pub fn is_for_booting(&self) -> bool {
        self.attributes & CATEGORY == 0
    }

    /// The same entry, made active and visible, with the current place of its loader.
    pub fn renewed(&self, description: Option<&str>, loader: &LoaderPath) -> Self {
        let mut renewed = self.clone();
        renewed.attributes = (renewed.attributes | ACTIVE) & !HIDDEN;
        if let Some(description) = description {
            renewed.description = description.encode_utf16().collect();
        }
        // A full path also names controller and port, which may have changed.
        renewed.path = device_path::encode(loader);
        renewed
    }
}

#[cfg(test)]
mod tests {
    use super::device_path::{HardDrive, Signature};
    use super::*;

    fn loader() -> LoaderPath {
        let signature = Signature::Guid([7; 16]);
        LoaderPath { drive: HardDrive { number: 1, start: 2048, blocks: 8, signature }, file: "\\x.efi".to_owned() }
    }

    #[test]
    fn an_option_is_read_as_it_was_written() {
        let option = LoadOption::new("Debian GNU/Linux", &loader());
        let mut bytes = option.encode();
        assert_eq!(&bytes[..10], [1, 0, 0, 0, 42 + 18 + 4, 0, b'D', 0, b'e', 0]);
        assert_eq!(LoadOption::decode(&bytes), Some(option));
        bytes.extend(b"data of the program");
        let with_data = LoadOption::decode(&bytes).unwrap();
        assert_eq!((with_data.encode(), with_data.loader()), (bytes, Some(loader())));
        assert_eq!(with_data.description(), "Debian GNU/Linux");
    }

    #[test]
    fn an_option_that_is_cut_off_is_none() {
        let bytes = LoadOption::new("Debian", &loader()).encode();
        for cut in 0..bytes.len() {
            assert_eq!(LoadOption::decode(&bytes[..cut]), None, "cut at {cut}");
        }
        // A description without a terminating zero.
        assert_eq!(LoadOption::decode(&[1, 0, 0, 0, 0, 0, b'D', 0]), None);
    }

    #[test]
    fn an_entry_is_renewed_without_losing_what_is_somebody_elses() {
        let mut old = LoadOption::new("mine", &loader());
        old.attributes = 0x0000_000A;
        old.data = b"\0\0BO".to_vec();
        let same = old.renewed(None, &loader());
        assert_eq!(
            (same.attributes, same.description(), &same.path, &same.data),
            (3, "mine".into(), &old.path, &old.data)
        );
        let mut moved = loader();
        moved.drive.start = 4096;
        assert_eq!(old.renewed(Some("new"), &moved).loader(), Some(moved));
        assert_eq!(old.renewed(Some("new"), &loader()).description(), "new");
        // A full path, with PciRoot(0x0) at its beginning.
        old.path = [&[2, 1, 12, 0, 0xD0, 0x41, 3, 10, 0, 0, 0, 0], old.path.as_slice()].concat();
        assert_eq!(old.renewed(None, &loader()).path, device_path::encode(&loader()));
    }

    #[test]
    fn what_a_program_is_passed_is_told_from_marks_of_firmware() {
        let check = |data: &[u8], expect: Option<&str>| {
            let option = LoadOption { data: data.to_vec(), ..LoadOption::new("x", &loader()) };
            assert_eq!(option.arguments().as_deref(), expect, "{data:?}");
        };
        let wide = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
        for none in [&b""[..], b"\0\0BO", b"\0\0", b"WINDOWS\0\x01\0\0\0"] {
            check(none, None);
        }
        check(&wide("root=/dev/mapper/oldvg-root ro\0"), Some("root=/dev/mapper/oldvg-root ro"));
        check(b"root=/dev/mapper/oldvg-root", Some("root=/dev/mapper/oldvg-root"));
        check(b"root=x\0", Some("root=x"));
        check(b"x", Some("x"));
        check(&wide("q"), Some("q"));
        check(&[0x4E, 0xAC, 0x08, 0x81], Some("4eac0881"));
        check(&[1], Some("01"));
    }
}
