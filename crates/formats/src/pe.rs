//! Headers and sections of EFI programs (Microsoft, "PE Format", "File Headers" and "Section Table"). The sections of a
//! unified kernel image (UAPI.5), and of an addon to its command line, are files.

/// Bytes at the beginning of a file that hold the headers of any real image.
pub const HEAD: u64 = 64 << 10;
/// Offset of the field with the position of the PE header, and the length of the COFF header including the PE
/// signature.
const PE_OFFSET: usize = 0x3C;
const COFF_HEADER: usize = 24;
/// Bytes of an entry in the section table.
pub const SECTION: usize = 40;
/// No image has more sections (PE Format, "COFF File Header").
const MAX_SECTIONS: usize = 96;

/// Where a program has its headers, in bytes from the beginning of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Machine type (PE Format, "Machine Types").
    pub machine: u16,
    /// The PE signature, which the COFF header follows.
    pub pe: usize,
    /// The optional header.
    pub optional: usize,
    /// The section table.
    pub table: usize,
    /// Number of entries in the section table.
    pub sections: usize,
}

/// A section in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Name, padded with zeros.
    name: [u8; 8],
    /// Offset of its content in the file, in bytes.
    pub offset: u64,
    /// Bytes of content.
    pub len: u64,
    /// Bytes of content and padding.
    pub padded: u64,
}

/// The sections of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Machine type (PE Format, "Machine Types").
    pub machine: u16,
    /// Sections in the order of the table.
    pub list: Vec<Section>,
}

impl Headers {
    /// Reads the headers from the first bytes of a file. None if it is not a PE file or is cut off.
    pub fn read(head: &[u8]) -> Option<Self> {
        let pe = long(head, PE_OFFSET)? as usize;
        if !head.starts_with(b"MZ") || head.get(pe..)?.first_chunk() != Some(b"PE\0\0") {
            return None;
        }
        let optional = pe + COFF_HEADER;
        let table = optional + usize::from(short(head, pe + 20)?);
        Some(Self { machine: short(head, pe + 4)?, pe, optional, table, sections: short(head, pe + 6)?.into() })
    }

    /// An entry of the section table, counted from 0. None if it is cut off.
    pub fn section(&self, head: &[u8], index: usize) -> Option<Section> {
        let entry: &[u8; SECTION] = head.get(self.table + index * SECTION..)?.first_chunk()?;
        let (memory, padded) = (long(entry, 8)?, long(entry, 16)?);
        // The content may be padded in the file, and may continue with zeros in memory.
        let len = memory.min(padded).into();
        Some(Section { name: *entry.first_chunk()?, offset: long(entry, 20)?.into(), len, padded: padded.into() })
    }
}

impl Sections {
    /// Reads the sections from the first bytes of a file; [`HEAD`] bytes are enough. None if it is not a PE file or is
    /// cut off.
    pub fn read(head: &[u8]) -> Option<Self> {
        let headers = Headers::read(head)?;
        let list = (0..headers.sections.min(MAX_SECTIONS)).map(|index| headers.section(head, index));
        Some(Self { machine: headers.machine, list: list.collect::<Option<_>>()? })
    }

    /// All sections with a name. An image with several profiles has one for each.
    pub fn of(&self, name: &str) -> impl Iterator<Item = Section> {
        let is_named = move |section: &&Section| until_zero(&section.name) == name.as_bytes();
        self.list.iter().filter(is_named).copied()
    }

    /// The first section with a name.
    pub fn first(&self, name: &str) -> Option<Section> {
        self.of(name).next()
    }

    /// Whether this is a unified kernel image.
    pub fn has_kernel(&self) -> bool {
        self.first(".linux").is_some()
    }
}

/// The 32-bit number at an offset.
pub fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The 16-bit number at an offset.
pub fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The content of a section that holds a line of text.
pub fn line(content: &[u8]) -> String {
    String::from_utf8_lossy(until_zero(content)).replace(char::is_control, " ").trim().to_owned()
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers with these sections: name, bytes in memory, bytes in the file, offset.
    fn image(sections: &[(&str, u32, u32, u32)]) -> Vec<u8> {
        let mut image = vec![0; 0x40];
        image[..2].copy_from_slice(b"MZ");
        image[PE_OFFSET] = 0x40;
        image.extend(b"PE\0\0\x64\x86");
        image.extend((sections.len() as u16).to_le_bytes());
        image.extend([0; 12]);
        image.extend(16_u16.to_le_bytes());
        image.extend([0; 2 + 16]);
        for (name, memory, file, offset) in sections {
            let mut entry = [0; SECTION];
            entry[..name.len()].copy_from_slice(name.as_bytes());
            for (at, value) in [(8, memory), (16, file), (20, offset)] {
                entry[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            image.extend(entry);
        }
        image
    }

    #[test]
    fn sections_are_parts_of_the_file() {
        let image = image(&[(".text", 100, 512, 1024), (".cmdline", 20, 512, 2048), (".linux", 4096, 1000, 4096)]);
        let found = Sections::read(&image).unwrap();
        assert_eq!((found.machine, found.has_kernel()), (0x8664, true));
        let place = |name: &str| found.first(name).map(|section| (section.offset, section.len));
        assert_eq!(
            [place(".cmdline"), place(".linux"), place(".initrd")],
            [Some((2048, 20)), Some((4096, 1000)), None]
        );
        for cut in 0..image.len() {
            assert_eq!(Sections::read(&image[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_image_has_no_sections() {
        for other in [&b""[..], b"\x7fELF", &[0; 4096], &[b"MZ".as_slice(), &[0xFF; 70]].concat()] {
            assert_eq!(Sections::read(other), None);
        }
        let mut far = image(&[]);
        far[PE_OFFSET..PE_OFFSET + 4].fill(0xFF);
        assert_eq!(Sections::read(&far), None);
        let mut lying = image(&[(".linux", 1, 1, 1)]);
        lying[0x46..0x48].fill(0xFF);
        assert_eq!(Sections::read(&lying), None);
    }

    #[test]
    fn a_command_line_ends_where_its_padding_begins() {
        assert_eq!(line(b"root=x  ro\nquiet\n\0\0a\0"), "root=x  ro quiet");
    }
}
