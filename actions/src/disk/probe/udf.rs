//! UDF (ECMA-167, parts 2 and 3; OSTA, Universal Disk Format Specification 2.60).

use base16ct::lower::encode_string as hex;

use super::FileSystem;
use super::area::Area;
use super::fields::{is_at, le16, le32, utf16_be};

const RECOGNITION: u64 = 0x8000;
const MAX_STRUCTURES: u64 = 64;
/// Size in bytes of the tag and the longest content of a descriptor.
const DESCRIPTOR: u64 = 512;
const PRIMARY: u16 = 1;
const ANCHOR: u16 = 2;
const LOGICAL: u16 = 6;
const TERMINATING: u16 = 8;
/// Maximum number of descriptors to read from a volume's sequence, which has a handful.
const MAX_DESCRIPTORS: u32 = 256;

/// Detects the file system of a DVD or a Blu-ray disc.
pub(super) fn udf(area: &Area) -> Option<FileSystem> {
    let starts: [&[u8]; 7] = [b"BEA01", b"BOOT2", b"CD001", b"CDW02", b"NSR02", b"NSR03", b"TEA01"];
    if !starts.iter().any(|name| area.has(RECOGNITION + 1, name)) {
        return None;
    }
    let mut sizes = vec![area.block()];
    sizes.extend([512, 1024, 2048, 4096].into_iter().filter(|size| *size != area.block()));
    for block in sizes {
        if !is_recognised(area, block.max(2048))? {
            continue;
        }
        for number in [256, 512] {
            let anchor = area.bytes(number * block, DESCRIPTOR)?;
            if is_tagged(&anchor, ANCHOR) && u64::from(le32(&anchor, 12)?) == number {
                return described(area, &anchor, block);
            }
        }
    }
    None
}

/// Whether the volume recognition sequence says UDF; `None` if the area ends before the sequence does.
fn is_recognised(area: &Area, structure: u64) -> Option<bool> {
    for index in 0..MAX_STRUCTURES {
        let found = area.bytes(RECOGNITION + index * structure, 7)?;
        if is_at(&found, 1, b"NSR02") || is_at(&found, 1, b"NSR03") {
            return Some(true);
        }
        let others = [b"BEA01", b"BOOT2", b"CD001", b"CDW02", b"TEA01"];
        if !others.iter().any(|name| is_at(&found, 1, *name)) {
            break;
        }
    }
    Some(false)
}

/// Reads UUID and label from the volume descriptor sequence that the anchor points to.
fn described(area: &Area, anchor: &[u8], block: u64) -> Option<FileSystem> {
    let count = (u64::from(le32(anchor, 16)?) / block) as u32;
    let start = le32(anchor, 20)?;
    let mut file_system = FileSystem::of_kind("udf");
    for index in 0..count.min(MAX_DESCRIPTORS) {
        let number = start.wrapping_add(index);
        let descriptor = area.bytes(u64::from(number) * block, DESCRIPTOR)?;
        if le32(&descriptor, 12)? != number || is_tagged(&descriptor, 0) || is_tagged(&descriptor, TERMINATING) {
            break;
        }
        if is_tagged(&descriptor, PRIMARY) && file_system.uuid.is_none() && is_unicode(&descriptor, 200) {
            file_system.uuid = string(&descriptor, 72).as_deref().and_then(uuid);
        }
        if is_tagged(&descriptor, LOGICAL) && file_system.label.is_none() && is_unicode(&descriptor, 20) {
            file_system.label = string(&descriptor, 84).map(|label| label.trim_ascii_end().to_owned());
            file_system.label = file_system.label.filter(|label| !label.is_empty());
        }
    }
    Some(file_system)
}

fn is_tagged(descriptor: &[u8], tag: u16) -> bool {
    le16(descriptor, 0) == Some(tag)
}

/// Whether the character set is OSTA's.
fn is_unicode(descriptor: &[u8], offset: usize) -> bool {
    is_at(descriptor, offset, b"\0OSTA Compressed Unicode\0")
}

/// Reads a string of 128 bytes (OSTA, 2.1.3): compression, characters, length.
fn string(descriptor: &[u8], offset: usize) -> Option<String> {
    let field = descriptor.get(offset..offset + 128)?;
    let len = usize::from(*field.get(127)?).saturating_sub(1).min(126);
    let characters = field.get(1..=len)?;
    match field.first()? {
        8 => Some(characters.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()),
        16 => utf16_be(characters).or_else(|| Some(String::new())),
        _ => None,
    }
}

/// Makes 16 hexadecimal digits from the volume set identifier, as blkid does: its first 16 characters if they are
/// hexadecimal, else the codes of some of them.
fn uuid(volume_set: &str) -> Option<String> {
    let bytes = volume_set.as_bytes();
    let bytes = bytes.get(..bytes.len().min(16))?;
    let head = bytes.get(..8)?;
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let lower = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_ascii_lowercase();
    Some(match digits {
        16 => lower(bytes),
        0..8 => hex(head),
        _ => format!("{}{}", lower(head), hex(bytes.get(8..12)?)),
    })
}
