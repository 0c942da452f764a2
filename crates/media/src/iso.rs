//! An ISO 9660 image (ECMA-119) that UEFI firmware starts from: its El Torito entry (El Torito Bootable CD-ROM Format
//! Specification 1.0; UEFI Specification 2.10, section 13.3.2) is an EFI system partition at the image's end. A GUID
//! partition table in the unused first sectors names the same partition, so the file also boots from a stick.

use crate::gpt;

/// Bytes per sector of a disc.
pub const SECTOR: u64 = 2048;
/// Bytes per sector in the counts of the boot catalog.
const VIRTUAL_SECTOR: u64 = 512;
/// Sectors of the descriptors (section 6.2.1 and El Torito, section 2), in the order of the image.
const VOLUME: u64 = 16;
const PATHS_LITTLE: u64 = 19;
const PATHS_BIG: u64 = 20;
const ROOT: u64 = 21;
const CATALOG: u64 = 22;
/// First sector of the EFI system partition.
pub const PARTITION: u64 = 23;
/// Name of the partition as a file.
const FILE: &str = "EFI.IMG;1";
/// Platform of the boot catalog: EFI.
const EFI: u8 = 0xEF;

/// Returns the sectors before the partition, up to [`PARTITION`]. `len` is the length of the partition in bytes, a
/// multiple of [`SECTOR`]. `label` may contain capitals, digits and underscores.
pub fn head(label: &str, len: u64, table: &gpt::Table) -> Vec<u8> {
    let mut head = table.head();
    head.resize((VOLUME * SECTOR) as usize, 0);
    head.extend(volume_descriptor(label, sectors(len)));
    head.extend(boot_record());
    head.extend(sector(&[&[255][..], b"CD001", &[1]].concat()));
    head.extend(sector(&path_table(u32::to_le_bytes, u16::to_le_bytes)));
    head.extend(sector(&path_table(u32::to_be_bytes, u16::to_be_bytes)));
    head.extend(sector(&root(len)));
    head.extend(sector(&catalog(len)));
    head
}

/// Returns the number of sectors of an image with a partition of `len` bytes and the backup partition table.
pub fn sectors(len: u64) -> u64 {
    PARTITION + len.div_ceil(SECTOR) + (gpt::TAIL_SECTORS * gpt::SECTOR).div_ceil(SECTOR)
}

fn sector(content: &[u8]) -> Vec<u8> {
    let mut sector = content.to_vec();
    sector.resize(SECTOR as usize, 0);
    sector
}

/// Returns a number in both byte orders (section 7.3.3).
fn both(number: u64) -> [u8; 8] {
    let number = number as u32;
    let mut bytes = [0; 8];
    bytes
        .iter_mut()
        .zip(number.to_le_bytes().into_iter().chain(number.to_be_bytes()))
        .for_each(|(to, from)| *to = from);
    bytes
}

fn both_short(number: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (number.to_le_bytes(), number.to_be_bytes());
    [a, b, c, d]
}

/// Returns a text of a fixed length, padded with blanks.
fn padded(text: &str, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = text.bytes().take(len).collect();
    bytes.resize(len, b' ');
    bytes
}

/// Returns the primary volume descriptor (section 8.4). All dates are unset.
fn volume_descriptor(label: &str, sectors: u64) -> Vec<u8> {
    let path_table_len = path_table(u32::to_le_bytes, u16::to_le_bytes).len() as u64;
    let no_date = [&[b'0'; 16][..], &[0]].concat();
    sector(
        &[
            &[1][..],
            b"CD001",
            &[1, 0],
            &padded("", 32),
            &padded(label, 32),
            &[0; 8],
            &both(sectors),
            &[0; 32],
            &both_short(1),
            &both_short(1),
            &both_short(SECTOR as u16),
            &both(path_table_len),
            &(PATHS_LITTLE as u32).to_le_bytes(),
            &[0; 4],
            &(PATHS_BIG as u32).to_be_bytes(),
            &[0; 4],
            &record(&[0], ROOT, SECTOR, true),
            &padded("", 128 * 4 + 37 * 3),
            &no_date,
            &no_date,
            &no_date,
            &no_date,
            &[1],
        ]
        .concat(),
    )
}

/// Returns the boot record (El Torito, section 2.0).
fn boot_record() -> Vec<u8> {
    let mut record = [&[0][..], b"CD001", &[1], b"EL TORITO SPECIFICATION"].concat();
    record.resize(0x47, 0);
    record.extend((CATALOG as u32).to_le_bytes());
    sector(&record)
}

/// Returns a path table with the only folder, the root (section 9.4).
fn path_table(long: fn(u32) -> [u8; 4], short: fn(u16) -> [u8; 2]) -> Vec<u8> {
    [&[1, 0][..], &long(ROOT as u32), &short(1), &[0, 0]].concat()
}

/// Returns the root folder (section 9.1). Its entries are itself, itself as its own parent, and the partition.
fn root(len: u64) -> Vec<u8> {
    [record(&[0], ROOT, SECTOR, true), record(&[1], ROOT, SECTOR, true), record(FILE.as_bytes(), PARTITION, len, false)]
        .concat()
}

fn record(name: &[u8], at: u64, len: u64, is_folder: bool) -> Vec<u8> {
    let size = (33 + name.len()).next_multiple_of(2);
    let mut record = vec![size as u8, 0];
    record.extend(both(at));
    record.extend(both(len));
    record.extend([0; 7]);
    record.push(if is_folder { 2 } else { 0 });
    record.extend([0, 0]);
    record.extend(both_short(1));
    record.push(name.len() as u8);
    record.extend(name);
    record.resize(size, 0);
    record
}

/// Returns the boot catalog: validation entry, and default entry without emulation (El Torito, sections 2.1 and 2.2).
fn catalog(len: u64) -> Vec<u8> {
    let mut validation = vec![1, EFI];
    validation.resize(28, 0);
    validation.extend([0, 0, 0x55, 0xAA]);
    let words = validation.chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]]));
    let checksum = 0_u16.wrapping_sub(words.fold(0, u16::wrapping_add));
    validation.splice(28..30, checksum.to_le_bytes());
    // 0 means that the partition, too large for the field, extends to the end of the disc.
    let count = u16::try_from(len.next_multiple_of(SECTOR) / VIRTUAL_SECTOR).unwrap_or_default();
    let mut entry = vec![0x88, 0, 0, 0, 0, 0];
    entry.extend(count.to_le_bytes());
    entry.extend((PARTITION as u32).to_le_bytes());
    [validation, entry].concat()
}
