//! Files that are clearly not a disk: compressed or encrypted in a way that cannot be undone here, images of other
//! programs, programs, documents. A disk with their bytes would never boot.
//!
//! The signatures come from file(1), which uses these names, and from the specifications named beside them.

use crate::pe::Headers;

/// The name of the format of a file with this head. None of these can be a disk: file systems without a partition table
/// are not included, because a disk may contain nothing else.
pub(super) fn foreign(head: &[u8]) -> Option<&'static str> {
    let known = |(at, magic, name): &(usize, &[u8], &'static str)| {
        head.get(*at..).is_some_and(|rest| rest.starts_with(magic)).then_some(*name)
    };
    MAGIC.iter().find_map(known).or_else(|| {
        [
            (is_lzma(head), "an LZMA stream"),
            (is_openpgp(head), "an OpenPGP message"),
            (is_pe(head), "an EFI or Windows program"),
            (is_old_tar(head), "a tar archive"),
        ]
        .into_iter()
        .find_map(|(is, name)| is.then_some(name))
    })
}

/// Offsets of the header of a GPT for the block sizes of disks (UEFI specification, 5.3.2).
const GPT_HEADERS: [usize; 2] = [512, 4096];
/// Signatures: offset, bytes, and name of the format.
const MAGIC: [(usize, &[u8], &str); 78] = [
    (0, b"LZIP", "an lzip stream"),
    (0, b"\x89LZO\0\r\n\x1A\n", "an lzop stream"),
    (0, b"LRZI", "an lrzip stream"),
    (0, b"\x1F\x9D", "a stream of compress (.Z)"),
    (0, b"\x02\x21\x4C\x18", "an LZ4 stream in the old format"),
    (0, b"\xFF\x06\0\0sNaPpY", "a snappy stream"),
    (0, b"\x37\xA4\x30\xEC", "a dictionary of zstd"),
    // Frames before RFC 8878: lib/legacy/zstd_v01.h to zstd_v07.h.
    (0, b"\xFD\x2F\xB5\x1E", "a stream of zstd before 0.8"),
    (0, b"\x22\xB5\x2F\xFD", "a stream of zstd before 0.8"),
    (0, b"\x23\xB5\x2F\xFD", "a stream of zstd before 0.8"),
    (0, b"\x24\xB5\x2F\xFD", "a stream of zstd before 0.8"),
    (0, b"\x25\xB5\x2F\xFD", "a stream of zstd before 0.8"),
    (0, b"\x26\xB5\x2F\xFD", "a stream of zstd before 0.8"),
    (0, b"\x27\xB5\x2F\xFD", "a stream of zstd before 0.8"),
    // PKWARE, APPNOTE.TXT, 4.3.16 and 8.5.3: an archive without files, and one in several parts.
    (0, b"PK\x05\x06", "a zip archive"),
    (0, b"PK\x07\x08", "a zip archive"),
    (0, b"\0ZCK1", "a zchunk file"),
    (0, b"MSCF\0\0\0\0", "a cabinet archive"),
    (0, b"xar!", "an xar archive"),
    // Encrypted. age-encryption.org/v1, "Header".
    (0, b"age-encryption.org/v1\n", "a file encrypted by age"),
    (0, b"-----BEGIN AGE ENCRYPTED FILE-----", "a file encrypted by age"),
    (0, b"-----BEGIN PGP MESSAGE-----", "an OpenPGP message"),
    (0, b"Salted__", "a file encrypted by openssl enc"),
    // Copies of file systems.
    (0, b"partclone-image", "an image of one file system by partclone"),
    (0, b"PaRtImAgE-VoLuMe", "an image of one file system by partimage"),
    (0, b"\0ntfsclone-image", "an image of one file system by ntfsclone"),
    (0, b"FsA0", "an archive of fsarchiver"),
    (0, b"btrfs-stream\0", "a stream of btrfs send"),
    (0, b"xFSdump0", "a dump of xfsdump"),
    // Linux, dump(8): NFS_MAGIC in the record's header.
    (24, b"\x6C\xEA\0\0", "a dump of dump(8)"),
    // OpenZFS, sys/zfs_ioctl.h: DMU_BACKUP_MAGIC behind DRR_BEGIN.
    (8, b"\xAC\xCB\xBA\xF5\x02\0\0\0", "a stream of zfs send"),
    // Disk images of other programs.
    (0, b"COWD", "a VMDK image"),
    (0, b"# Disk DescriptorFile", "the descriptor of a VMDK image, without its data"),
    (0, b"QED\0", "a QED image"),
    (0, b"WithoutFreeSpace", "a Parallels image"),
    (0, b"WithouFreSpacExt", "a Parallels image"),
    (0, b"Bochs Virtual HD Image", "a Bochs image"),
    (0, b"#!/bin/sh\n#V2.0 Format\n", "a cloop image"),
    (0, b"VMA\0", "a backup of Proxmox VE (VMA)"),
    (0, b"EVF\x09\x0D\x0A\xFF\0", "an EWF image"),
    (0, b"encrcdsa", "an encrypted DMG image"),
    (0, b"\xFE\xEF\x01", "a Ghost image"),
    // cpio(5): old binary archives, in either order of bytes.
    (0, b"\xC7\x71", "a cpio archive"),
    (0, b"\x71\xC7", "a cpio archive"),
    // Images of raw flash. Linux, ubi-media.h, ubifs-media.h and jffs2.h: a clean marker, a name and a piece of a file.
    (0, b"UBI#", "an image for raw flash (UBI)"),
    (0, b"\x31\x18\x10\x06", "an image for raw flash (UBIFS)"),
    (0, b"\x85\x19\x03\x20", "an image for raw flash (JFFS2)"),
    (0, b"\x85\x19\x01\xE0", "an image for raw flash (JFFS2)"),
    (0, b"\x85\x19\x02\xE0", "an image for raw flash (JFFS2)"),
    // UEFI Platform Initialization specification, EFI_FIRMWARE_VOLUME_HEADER.
    (40, b"_FVH", "UEFI firmware"),
    // Linux, Documentation/arch/x86/boot.rst, arm64/booting.rst and riscv/boot-image-header.rst: kernels without a
    // program for EFI in them.
    (0x202, b"HdrS", "a Linux kernel"),
    (56, b"ARM\x64", "a Linux kernel"),
    (56, b"RSC\x05", "a Linux kernel"),
    // Programs and what boot loaders load. Devicetree specification, 5.2; U-Boot, include/image.h.
    (0, b"\x7FELF", "an ELF program"),
    (0, b"\xD0\x0D\xFE\xED", "a device tree or an image for U-Boot (FIT)"),
    (0, b"\x27\x05\x19\x56", "an image for U-Boot (uImage)"),
    // AOSP, system/tools/mkbootimg, update_engine/update_metadata.proto.
    (0, b"ANDROID!", "an Android boot image"),
    (0, b"VNDRBOOT", "an Android boot image"),
    (0, b"CrAU", "an Android update"),
    (0, b"\0asm", "a WebAssembly program"),
    (0, b"\xCA\xFE\xBA\xBE", "a Java class or a macOS program"),
    (0, b"\xCF\xFA\xED\xFE", "a macOS program"),
    // Documents and data.
    (0, b"%PDF-", "a PDF document"),
    (0, b"\x89PNG\r\n\x1A\n", "a picture (PNG)"),
    (0, b"\xFF\xD8\xFF", "a picture (JPEG)"),
    (0, b"GIF8", "a picture (GIF)"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (0, b"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1", "an OLE document"),
    (0, b"\xD4\xC3\xB2\xA1", "captured packets (pcap)"),
    (0, b"\xA1\xB2\xC3\xD4", "captured packets (pcap)"),
    (0, b"\x4D\x3C\xB2\xA1", "captured packets (pcap)"),
    (0, b"\xA1\xB2\x3C\x4D", "captured packets (pcap)"),
    (0, b"\x0A\x0D\x0D\x0A", "captured packets (pcapng)"),
    (0, b"OggS", "an Ogg file"),
    (0, b"RIFF", "a RIFF file, such as WAV or WebP"),
    (0, b"wOF2", "a font"),
    (0, b"\xFF\xFE", "UTF-16 text"),
    (0, b"\xFE\xFF", "UTF-16 text"),
];

/// Properties of LZMA in a byte: by far the most usual ones, and the largest.
const USUAL_PROPERTIES: u8 = 0x5D;
const MAX_PROPERTIES: u8 = 224;

/// Whether it is an .lzma file. There is no signature, so this checks the first bytes: properties (the usual ones if
/// the file states its size), a dictionary of 2^n or 2^n + 2^(n-1) bytes, a plausible size, and the first byte of a
/// range coder (xz, lzma-file-format.txt, 1.1; liblzma's check).
fn is_lzma(head: &[u8]) -> bool {
    let [properties @ ..=MAX_PROPERTIES, d0, d1, d2, d3, size @ .., 0] = head.get(..14).unwrap_or_default() else {
        return false;
    };
    let dictionary = u32::from_le_bytes([*d0, *d1, *d2, *d3]);
    let is_usual = dictionary >= 4096 && (dictionary.is_power_of_two() || (dictionary / 3 * 2).is_power_of_two());
    let is_known = size.iter().rev().take(3).all(|byte| *byte == 0) && size.iter().any(|byte| *byte != 0);
    let is_streamed = size.iter().all(|byte| *byte == 0xFF);
    is_usual && (is_streamed || is_known && *properties == USUAL_PROPERTIES)
}

/// Whether it is an OpenPGP message. There is no signature, so this checks the first packet, in the old or the new
/// format (RFC 9580, 4.2): a session key encrypted to a public key (version 3; 5.1) or by a password (version 4; 5.3).
/// GnuPG also writes a one-pass signature (version 3; 5.4), or compressed data (5.6), which has few fixed bytes.
fn is_openpgp(head: &[u8]) -> bool {
    let is_boot_sector = head.get(510..512) == Some(&[0x55, 0xAA]);
    match head {
        [0x90 | 0xC4, 0x0D, 3, 0 | 1, 1..=14, 1 | 17 | 19 | 22 | 27 | 28, ..] => return true,
        [0xA3, 1..=3, ..] => return !is_boot_sector,
        _ => {}
    }
    let body = match head {
        [0x84 | 0x8C | 0xC1 | 0xC3, _, body @ ..] | [0x85, _, _, body @ ..] => body,
        _ => return false,
    };
    let is_password = head.first().is_some_and(|tag| matches!(tag, 0x8C | 0xC3));
    match body {
        // The cipher, and how the key is derived from the password.
        [4, 1..=13, 0 | 1 | 3, ..] => is_password,
        // The identifier of the key, and its public-key algorithm.
        [3, _, _, _, _, _, _, _, _, 1..=3 | 16 | 18 | 25 | 26, ..] => !is_password,
        _ => false,
    }
}

/// Whether it is a tar archive from before there was a signature: its first header has the right checksum, in octal,
/// computed with spaces in place of the checksum (POSIX.1-2017, pax, "ustar Interchange Format").
fn is_old_tar(head: &[u8]) -> bool {
    const SUM: std::ops::Range<usize> = 148..156;
    let (Some(header), Some(digits)) = (head.get(..512), head.get(SUM)) else { return false };
    let digits = std::str::from_utf8(digits).unwrap_or_default().trim_matches([' ', '\0']);
    let bytes = header.iter().enumerate().map(|(at, byte)| if SUM.contains(&at) { b' ' } else { *byte });
    let sum: u32 = bytes.map(u32::from).sum();
    !digits.is_empty() && u32::from_str_radix(digits, 8) == Ok(sum)
}

/// Whether it is a program in the PE format (Microsoft, PE Format, "Signature"), and not also a disk: the code in an
/// MBR may begin with anything.
fn is_pe(head: &[u8]) -> bool {
    let has_partitions = GPT_HEADERS.iter().any(|at| head.get(*at..).is_some_and(|gpt| gpt.starts_with(b"EFI PART")));
    Headers::read(head).is_some() && !has_partitions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(head: &[u8], expect: Option<&str>) {
        let mut block = vec![0xFA; 8192];
        block.splice(..head.len(), head.iter().copied());
        assert_eq!(foreign(&block), expect, "{head:?}");
        assert_eq!(crate::image::check_raw(&block).err().is_some(), expect.is_some(), "{head:?}");
    }

    /// The header of a file in the format of before 1988, with this checksum.
    fn old_tar(sum: &str) -> Vec<u8> {
        let mut header = vec![0; 512];
        for (at, text) in [(0, "name"), (100, "000644"), (124, "00000000003"), (148, sum)] {
            header.splice(at..at + text.len(), text.bytes());
        }
        header
    }

    #[test]
    fn every_signature_is_found_and_only_where_it_belongs() {
        for (at, magic, name) in MAGIC {
            check(&[&vec![0xFA; at], magic].concat(), Some(name));
            check(&[&vec![0xFA; at + 1], magic].concat(), None);
        }
        check(b"hsqs", None);
        check(b"LUKS\xBA\xBE", None);
        assert_eq!(foreign(&[]), None);
    }

    #[test]
    fn formats_without_a_signature_are_told_by_their_header() {
        let lzma = Some("an LZMA stream");
        check(b"\x5D\0\0\x80\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0", lzma);
        check(b"\x5D\0\0\x0C\0\0\0\x10\0\0\0\0\0\0", lzma);
        check(b"\x12\0\0\x30\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0", lzma);
        check(b"\x12\0\0\x30\0\0\0\x10\0\0\0\0\0\0", None);
        check(b"\xE1\0\0\x30\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0", None);
        check(b"\x5D\0\0\x80\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", None);
        check(b"\x5D\x01\0\x80\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0", None);
        check(b"\x5D\0\0\x80\0\xFF\xFF\0\0\0\0\0\x01\0", None);
        let openpgp = Some("an OpenPGP message");
        check(b"\x8C\x0D\x04\x09\x03\x08", openpgp);
        check(b"\xC3\x0D\x04\x09\x03\x0A", openpgp);
        check(b"\x85\x01\x0C\x0312345678\x01", openpgp);
        check(b"\x84\x5E\x0312345678\x12", openpgp);
        check(b"\xC1\x5E\x0312345678\x12", openpgp);
        check(b"\x85\x01\x0C\x0312345678\x07", None);
        check(b"\x8C\x0D\x05\x09\x03", None);
        check(b"\x90\x0D\x03\0\x08\x16", openpgp);
        check(b"\x90\x0D\x04\0\x08\x16", None);
        check(b"\xA3\x01\xEC\xD8", openpgp);
        let mut code = vec![0xFA; 512];
        code.splice(..2, *b"\xA3\x01");
        code.splice(510.., *b"\x55\xAA");
        check(&code, None);
        check(&old_tar("0002742"), Some("a tar archive"));
        check(&old_tar("0002743"), None);
        check(&old_tar(""), None);
        let mut program = vec![0; 1024];
        program.splice(..2, *b"MZ");
        program.splice(0x3C..0x40, 0x80_u32.to_le_bytes());
        check(&program, None);
        program.splice(0x80..0x84, *b"PE\0\0");
        check(&program, Some("an EFI or Windows program"));
        program.splice(512..520, *b"EFI PART");
        check(&program, None);
    }
}
