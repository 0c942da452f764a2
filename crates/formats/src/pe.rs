//! Sections of EFI programs (Microsoft, "PE Format", "File Headers" and "Section Table"). The sections of a unified
//! kernel image (UAPI.5), and of an addon to its command line, are files.

/// Bytes at the beginning of a file that hold the headers of any real image.
pub const HEAD: u64 = 64 << 10;
/// Offset of the field with the position of the PE header, and the length of the COFF header including the PE
/// signature.
const PE_OFFSET: usize = 0x3C;
const COFF_HEADER: usize = 24;
/// Bytes of an entry in the section table.
const SECTION: usize = 40;
/// No image has more sections (PE Format, "COFF File Header").
const MAX_SECTIONS: usize = 96;

/// A section in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Name, padded with zeros.
    name: [u8; 8],
    /// Offset of its content in the file, in bytes.
    pub offset: u64,
    /// Bytes of content.
    pub len: u64,
}

/// The sections of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Machine type (PE Format, "Machine Types").
    pub machine: u16,
    /// Sections in the order of the table.
    pub list: Vec<Section>,
}

impl Sections {
    /// Reads the sections from the first bytes of a file; [`HEAD`] bytes are enough. None if it is not a PE file or is
    /// cut off.
    pub fn read(head: &[u8]) -> Option<Self> {
        let long = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let short = |at: usize| Some(u16::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let machine = machine(head)?;
        let pe = long(PE_OFFSET)? as usize;
        let table = pe + COFF_HEADER + usize::from(short(pe + 20)?);
        let count = usize::from(short(pe + 6)?).min(MAX_SECTIONS);
        let section = |index: usize| {
            let entry: &[u8; SECTION] = head.get(table + index * SECTION..)?.first_chunk()?;
            let field = |at: usize| Some(u32::from_le_bytes(*entry.get(at..)?.first_chunk()?));
            // The content may be padded in the file, and may continue with zeros in memory.
            let len = field(8)?.min(field(16)?).into();
            Some(Section { name: *entry.first_chunk()?, offset: field(20)?.into(), len })
        };
        Some(Self { machine, list: (0..count).map(section).collect::<Option<_>>()? })
    }

    /// All sections with a name. An image has one for each profile.
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

/// The machine type of a program (PE Format, "Machine Types") by its first bytes. None if it is not a PE file.
pub fn machine(head: &[u8]) -> Option<u16> {
    let pe = u32::from_le_bytes(*head.get(PE_OFFSET..)?.first_chunk()?) as usize;
    if !head.starts_with(b"MZ") || head.get(pe..)?.first_chunk() != Some(b"PE\0\0") {
        return None;
    }
    Some(u16::from_le_bytes(*head.get(pe + 4..)?.first_chunk()?))
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
