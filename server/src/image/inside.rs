//! Looks into the file systems of an image for what the steps need that follow after the image is written.

mod cloud_init;
mod ext4;
mod source;
#[cfg(test)]
mod tests;
mod volume;

use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use slipway_formats::boot_config::places::{self, BootText};
use slipway_formats::efi::device_path::guid_text;
use slipway_formats::partition_table::{Kind, Partition, Table, is_extended};
use slipway_formats::roles;
use slipway_protocol::workflow::partition_types;

use self::source::Source;
use self::volume::Volume;
use crate::store::findings::Inside;

pub(super) use self::source::ReadAt;

/// Time limit for looking into an image. Usual images take some milliseconds.
const LONGEST: Duration = Duration::from_secs(20);
/// If a partition begins with this many zero bytes, it has no file system.
const BLANK: usize = 128 << 10;
/// Types of partitions that are never mounted: in a GPT, swap and GRUB's core image; in an MBR, swap.
const NEVER_MOUNTED: &[&str] = &[partition_types::SWAP, partition_types::BIOS_BOOT];
const MBR_SWAP: u8 = 0x82;
/// Attribute of a GPT partition: read-only (Discoverable Partitions Specification, bit 60).
const READ_ONLY: u64 = 1 << 60;
/// Types of root partitions that a machine looks for.
const ROOTS: &[&str] = &[partition_types::ROOT_X86_64, partition_types::ROOT_ARM64];
/// Kernel arguments of a system that is sealed by dm-verity.
const SEALED: &[&str] = &["roothash=", "usrhash="];

/// Maximum number of names in a folder that is listed.
const MAX_NAMES: usize = 4096;

/// Something could not be read: it is damaged, or of a kind that is not known, or there is too much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unknown;

/// Result of looking for something. `None` if it does not exist.
type Known<T> = Result<Option<T>, Unknown>;

/// A name in a folder.
struct Name {
    name: String,
    /// Whether it is a folder itself, and not a link to one.
    is_folder: bool,
}

/// Returns what is in the file systems of an image with this partition table and size in bytes. What cannot be read is
/// left unknown, which is not an error: the machine that writes the image judges it.
pub(super) fn look(table: &Table, len: u64, read: Box<ReadAt>) -> Inside {
    let (found, wait) = mpsc::channel();
    let until = Instant::now() + LONGEST;
    // If the block size of an MBR is not certain, every partition may be elsewhere.
    let is_certain = matches!(table.kind, Kind::Gpt(_) | Kind::Mbr) && table.block_is_certain;
    let partitions = table.partitions.clone();
    // In a separate thread, because a damaged file system could make its reader hang or panic, and that must not
    // prevent adding the image.
    std::thread::spawn(move || {
        let source = Rc::new(Source::new(read, len, until));
        // Fails if the time limit was reached and nobody waits any more.
        let _ = found.send(if is_certain { judge(&partitions, &source) } else { Err(Unknown) });
    });
    wait.recv_timeout(LONGEST).ok().and_then(Result::ok).unwrap_or_default()
}

fn judge(partitions: &[Partition], source: &Rc<Source>) -> Result<Inside, Unknown> {
    let mut volumes = Vec::new();
    for partition in partitions.iter().filter(|partition| !is_extended(partition.mbr_type)) {
        volumes.extend(open(partition, source)?);
    }
    let (mut has_entry, mut texts) = (false, Vec::new());
    for volume in &volumes {
        let found = places::texts(volume)?;
        has_entry |= places::has_entry(volume, &found)?;
        texts.push(found);
    }
    let is_sealed = |text: &BootText| SEALED.iter().any(|argument| text.text.contains(argument));
    if texts.iter().flatten().any(is_sealed) {
        return Err(Unknown);
    }
    let has_boot_loader = has_entry || places::menu_maker(&volumes)?.is_some();
    if volumes.iter().any(|volume| volume.is_unknown.get()) {
        return Err(Unknown);
    }
    let cloud_init = cloud_init::read(&volumes, &texts).ok().flatten();
    Ok(Inside { has_boot_loader: Some(has_boot_loader), cloud_init })
}

/// Opens the file system of a partition, if it has one. [`Unknown`] if the file system is of an unsupported kind, or if
/// a machine would leave the partition alone.
fn open(partition: &Partition, source: &Rc<Source>) -> Result<Option<Volume>, Unknown> {
    let kind = partition.guids.as_ref().map(|(kind, _)| guid_text(kind));
    let is_type = |types: &[&str]| kind.as_deref().is_some_and(|kind| types.contains(&kind));
    let is_sealed = is_type(roles::ROOT_VERITY) || is_type(roles::USR_VERITY) || roles::is_usr(kind.as_deref());
    if is_sealed || partition.attributes & READ_ONLY != 0 {
        return Err(Unknown);
    }
    if let Some(volume) = Volume::open(partition, source)? {
        return Ok(Some(volume));
    }
    if is_type(NEVER_MOUNTED) || partition.mbr_type == MBR_SWAP {
        return Ok(None);
    }
    let len = partition.bytes.end.saturating_sub(partition.bytes.start).min(BLANK as u64);
    let head = source.bytes(partition.bytes.start, len as usize).ok_or(Unknown)?;
    if head.iter().all(|byte| *byte == 0) { Ok(None) } else { Err(Unknown) }
}
