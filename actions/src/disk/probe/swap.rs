//! Swap space, and the image of a suspended machine in it (Linux, include/linux/swap.h, union `swap_header`).

use super::FileSystem;
use super::area::Area;
use super::fields::{be32, le32, text, uuid};

/// Minimum size in bytes: ten pages of the smallest size.
const MIN_SIZE: u64 = 10 * 4096;
/// Page sizes of machines in bytes. The signature is at the end of the first page.
const PAGES: [u64; 5] = [4096, 8192, 16384, 32768, 65536];
const SIGNATURE_LEN: u64 = 10;
/// `TuxOnIce` marks an image with these bytes, and keeps the signature of the swap space.
const TUX_ON_ICE: &[u8] = b"\xED\xC3\x02\xE9\x98\x56\xE5\x0C";
const SUSPENDED: [&[u8]; 4] = [b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND", b"LINHIB0001"];
const HEADER: u64 = 1024;

/// Detects swap space.
pub(super) fn swap(area: &Area) -> Option<FileSystem> {
    if area.size() < MIN_SIZE || area.has(0, TUX_ON_ICE) {
        return None;
    }
    let signatures: [&[u8]; 2] = [b"SWAP-SPACE", b"SWAPSPACE2"];
    let signature = signature(area, &signatures)?;
    if signature == signatures[0] {
        // The old format has no header.
        return Some(FileSystem::of_kind("swap"));
    }
    let header = area.bytes(HEADER, 516)?;
    // The header is in the byte order of the machine that made it.
    let is_version_1 = le32(&header, 0)? == 1 || be32(&header, 0)? == 1;
    let has_pages = le32(&header, 4)? != 0;
    (is_version_1 && has_pages).then(|| named("swap", &header))
}

/// Detects a swap space that holds the image of a suspended machine.
pub(super) fn hibernation_image(area: &Area) -> Option<FileSystem> {
    if area.size() < MIN_SIZE || !(area.has(0, TUX_ON_ICE) || signature(area, &SUSPENDED).is_some()) {
        return None;
    }
    Some(named("swsuspend", &area.bytes(HEADER, 516)?))
}

fn signature<'a>(area: &Area, signatures: &[&'a [u8]]) -> Option<&'a [u8]> {
    let all = PAGES.iter().flat_map(|page| signatures.iter().map(move |signature| (page - SIGNATURE_LEN, *signature)));
    all.into_iter().find(|(offset, signature)| area.has(*offset, signature)).map(|(_, signature)| signature)
}

fn named(kind: &'static str, header: &[u8]) -> FileSystem {
    // Padding, which is zero unless the header is from before there were UUID and label.
    let is_current = header.get(172..180) == Some(&[0; 8]);
    match is_current {
        true => FileSystem { kind, uuid: uuid(header, 12), label: text(header, 28, 16) },
        false => FileSystem::of_kind(kind),
    }
}
