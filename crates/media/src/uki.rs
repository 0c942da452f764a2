//! The unified kernel image: systemd's stub followed by kernel, initramfs and command line as sections of one EFI
//! program (<https://uapi-group.org/specifications/specs/unified_kernel_image/>).
//!
//! Offsets are those of the PE format ("PE Format", section 3, "File Headers" and section 4, "Section Table").

use slipway_formats::pe::{Headers, SECTION, long};

/// IMAGE_SCN_CNT_INITIALIZED_DATA | IMAGE_SCN_MEM_READ.
const READ_ONLY_DATA: u32 = 0x4000_0040;

/// Why a unified kernel image cannot be assembled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UkiError {
    /// The stub is not a PE file, or is truncated.
    #[error("reading the stub of the unified kernel image: {0}")]
    Stub(&'static str),
    /// The stub's header is full.
    #[error("adding section {0} to the unified kernel image: the stub's header has no room for it")]
    NoRoom(String),
    /// Offsets in PE files have 32 bits.
    #[error("assembling the unified kernel image: it would be larger than 4 GiB")]
    TooLarge,
}

/// The stub is shorter than its headers say.
const CUT_OFF: UkiError = UkiError::Stub("it is truncated");

/// Returns the stub with these sections appended, in this order.
pub fn assemble(stub: &[u8], sections: &[(&str, &[u8])]) -> Result<Vec<u8>, UkiError> {
    let mut image = stub.to_vec();
    let headers = Headers::read(stub).ok_or(UkiError::Stub("it is not a PE file"))?;
    let Headers { pe, optional, table, sections: mut count, .. } = headers;
    let section_alignment = get(&image, optional + 32)?;
    let file_alignment = get(&image, optional + 36)?;
    let headers_end = get(&image, optional + 60)?;

    // Each section follows the one before it, in memory and in the file.
    let (mut address, mut end) = (0, headers_end);
    for index in 0..count {
        let entry = table + index * SECTION;
        address = address.max(get(&image, entry + 8)? + get(&image, entry + 12)?);
        end = end.max(get(&image, entry + 16)? + get(&image, entry + 20)?);
    }
    // The stub has symbols behind its last section. They belong to no section and would end up between sections, where
    // a signature does not cover them, so they are dropped.
    if end > image.len() {
        return Err(CUT_OFF);
    }
    image.truncate(end);
    put(&mut image, pe + 12, 0)?;
    put(&mut image, pe + 16, 0)?;
    for (name, content) in sections {
        let entry = table + count * SECTION;
        if entry + SECTION > headers_end {
            return Err(UkiError::NoRoom((*name).to_owned()));
        }
        // The kernel needs its own page, whatever the stub's alignment.
        address = address.next_multiple_of(section_alignment.max(4096));
        image.resize(image.len().next_multiple_of(file_alignment), 0);
        let offset = image.len();
        let padded = content.len().next_multiple_of(file_alignment);
        image.extend_from_slice(content);
        image.resize(offset + padded, 0);

        let Some(name_field) = image.get_mut(entry..entry + 8) else { return Err(CUT_OFF) };
        name_field.fill(0);
        name_field[..name.len()].copy_from_slice(name.as_bytes());
        for (field, value) in [(8, content.len()), (12, address), (16, padded), (20, offset)] {
            put(&mut image, entry + field, value)?;
        }
        image[entry + 24..entry + 36].fill(0);
        put(&mut image, entry + 36, READ_ONLY_DATA as usize)?;
        address += content.len();
        count += 1;
    }
    image[pe + 6..pe + 8].copy_from_slice(&u16::try_from(count).map_err(|_| UkiError::TooLarge)?.to_le_bytes());
    put(&mut image, optional + 56, address.next_multiple_of(section_alignment))?; // SizeOfImage
    put(&mut image, optional + 64, 0)?; // CheckSum: firmware checks it only in drivers
    Ok(image)
}

fn get(image: &[u8], at: usize) -> Result<usize, UkiError> {
    long(image, at).map(|value| value as usize).ok_or(CUT_OFF)
}

fn put(image: &mut [u8], at: usize, value: usize) -> Result<(), UkiError> {
    let bytes = u32::try_from(value).map_err(|_| UkiError::TooLarge)?.to_le_bytes();
    image.get_mut(at..at + 4).ok_or(CUT_OFF)?.copy_from_slice(&bytes);
    Ok(())
}
