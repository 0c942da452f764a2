//! Recognises a file by its first bytes: an image in a format that can be written, or clearly something else.

mod foreign;
pub mod made_for;

use foreign::foreign;

/// First bytes of a zstd frame (RFC 8878, 3.1.1).
pub const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// First bytes of a skippable zstd frame, after one byte from 0x50 to 0x5F (RFC 8878, 3.1.2).
pub const ZSTD_SKIPPABLE: [u8; 3] = [0x2A, 0x4D, 0x18];
/// First bytes of an xz stream (The .xz file format, 2.1.1.1).
pub const XZ_MAGIC: [u8; 6] = [0xFD, b'7', b'z', b'X', b'Z', 0];
/// Bytes of text that show that a file is no disk: the first blocks of a disk hold boot code, a partition table, or the
/// superblock of a file system.
const TEXT: usize = 4096;
/// Formats that can be written to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Uncompressed bytes of the disk.
    Raw,
    /// Compressed with zstd.
    Zstd,
    /// Compressed with gzip.
    Gzip,
    /// Compressed with xz.
    Xz,
    /// Compressed with bzip2.
    Bzip2,
    /// A disk image of QEMU.
    Qcow2,
}

impl Format {
    /// Usual name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Zstd => "zstd",
            Format::Gzip => "gzip",
            Format::Xz => "xz",
            Format::Bzip2 => "bzip2",
            Format::Qcow2 => "qcow2",
        }
    }

    /// The format of a file that begins with these bytes. Fails with the name of a container or compression that is not
    /// supported: written to a disk as it is, it would never boot.
    pub fn of(head: &[u8]) -> Result<Self, &'static str> {
        match head {
            _ if head.starts_with(&ZSTD_MAGIC) => Ok(Format::Zstd),
            [0x50..=0x5F, rest @ ..] if rest.starts_with(&ZSTD_SKIPPABLE) => Ok(Format::Zstd),
            // RFC 1952, 2.3.1.
            [0x1F, 0x8B, ..] => Ok(Format::Gzip),
            _ if head.starts_with(&XZ_MAGIC) => Ok(Format::Xz),
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Ok(Format::Bzip2),
            [b'Q', b'F', b'I', 0xFB, ..] => Ok(Format::Qcow2),
            [0x04, 0x22, 0x4D, 0x18, ..] => Err("an LZ4 stream"),
            [b'P', b'K', 3, 4, ..] => Err("a zip archive"),
            [b'7', b'z', 0xBC, 0xAF, 0x27, 0x1C, ..] => Err("a 7z archive"),
            _ if head.starts_with(b"Rar!\x1A\x07") => Err("a RAR archive"),
            _ if head.starts_with(b"!<arch>\n") => Err("an ar archive, such as a Debian package"),
            [0xED, 0xAB, 0xEE, 0xDB, ..] => Err("an RPM package"),
            _ if head.starts_with(b"MSWIM\0\0\0") => Err("a WIM image"),
            [b'K', b'D', b'M', b'V', ..] => Err("a VMDK image"),
            [b'v', b'h', b'd', b'x', ..] => Err("a VHDX image"),
            _ if head.starts_with(b"conectix") => Err("a VHD image"),
            // VirtualBox, VDICore.h: VDI_IMAGE_SIGNATURE, after 64 bytes of text.
            _ if head.get(64..68) == Some(&[0x7F, 0x10, 0xDA, 0xBE]) => Err("a VDI image"),
            // AOSP, libsparse/sparse_format.h.
            [0x3A, 0xFF, 0x26, 0xED, ..] => Err("an Android sparse image"),
            [b'<', ..] => Err("an HTML or XML page"),
            _ => Ok(Format::Raw),
        }
    }
}

/// Fails if `head` is clearly not the beginning of a raw image; the error names what it is. A bare file system and
/// unknown data pass: without a signature, they may be the start of a disk. More bytes give a better answer, up to
/// 4096.
pub fn check_raw(head: &[u8]) -> Result<(), &'static str> {
    let format = Format::of(head)?;
    if format != Format::Raw {
        return Err(format.name());
    }
    // A tar archive begins with the name of a file, which may look like another format. It is refused either way.
    if let Some(name) = foreign(head) {
        return Err(name);
    }
    // POSIX.1-2017, pax, "ustar Interchange Format".
    if head.get(257..262) == Some(b"ustar") {
        return Err("a tar archive");
    }
    // Linux, Documentation/driver-api/early-userspace/buffer-format.rst.
    if [b"070701", b"070702", b"070707"].iter().any(|magic| head.starts_with(*magic)) {
        return Err("a cpio archive");
    }
    if is_text(head) { Err("a text file") } else { Ok(()) }
}

/// Whether the first bytes are only UTF-8 text.
fn is_text(head: &[u8]) -> bool {
    let head = head.get(..TEXT).unwrap_or(head);
    let is_control = |byte: &u8| *byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0C | 0x1B);
    let is_utf8 = match std::str::from_utf8(head) {
        Ok(_) => true,
        // The last character may be cut off.
        Err(error) => error.error_len().is_none(),
    };
    !head.is_empty() && is_utf8 && !head.iter().any(is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block that is not text, with these bytes at an offset.
    fn block(at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut block = vec![0xFA; 8192];
        block.splice(at..at + bytes.len(), bytes.iter().copied());
        block
    }

    #[test]
    fn what_is_plainly_no_raw_image_is_told_by_its_first_bytes() {
        for (head, expect) in [
            (b"# a note\n".to_vec(), "a text file"),
            ("größer".repeat(1000).into_bytes(), "a text file"),
            (b"<!DOCTYPE html>".to_vec(), "an HTML or XML page"),
            (block(0, b"PK\x03\x04"), "a zip archive"),
            (block(0, b"7z\xBC\xAF\x27\x1C"), "a 7z archive"),
            (block(0, b"Rar!\x1A\x07\x01\0"), "a RAR archive"),
            (block(0, b"!<arch>\ndebian-binary"), "an ar archive, such as a Debian package"),
            (block(0, b"\xED\xAB\xEE\xDB"), "an RPM package"),
            (block(0, b"070701"), "a cpio archive"),
            (block(257, b"ustar"), "a tar archive"),
            (block(0, b"MSWIM\0\0\0"), "a WIM image"),
            (block(0, b"conectix"), "a VHD image"),
            (block(64, b"\x7F\x10\xDA\xBE"), "a VDI image"),
            (block(0, b"\x3A\xFF\x26\xED"), "an Android sparse image"),
            (block(0, &ZSTD_MAGIC), "zstd"),
            (block(0, b"QFI\xFB"), "qcow2"),
            (block(0, b"partclone-image"), "an image of one file system by partclone"),
        ] {
            assert_eq!(check_raw(&head), Err(expect));
        }
    }

    #[test]
    fn boot_code_file_systems_and_any_other_data_may_be_a_raw_image() {
        let text_after_a_block = [&[0; 4096][..], b"text"].concat();
        for head in [vec![], vec![0; 8192], vec![0xAA; 512], block(510, &[0x55, 0xAA]), text_after_a_block] {
            assert_eq!(check_raw(&head), Ok(()));
        }
        // Text with a single byte that is not text.
        let label = [&b"text"[..], &[0], b"text"].concat();
        assert_eq!(check_raw(&label), Ok(()));
    }
}
