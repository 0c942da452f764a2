//! Looks into ext2, ext3 and ext4. The crate `ext4-view` trusts the sizes in the superblock, so they are checked first.
//! The crate also resolves `..` after a folder that does not exist, so paths and links are followed here.

use std::rc::Rc;

use ext4_view::{Ext4, Ext4Error, Ext4Read, Metadata};

use super::source::Source;
use super::{Known, MAX_NAMES, Name, Unknown};

/// Offset of the superblock in bytes (Linux, Documentation/filesystems/ext4/super.rst).
const SUPERBLOCK: u64 = 1024;
const MAGIC: [u8; 2] = [0x53, 0xEF];
/// Bit in `s_feature_incompat`: the journal has changes that must be replayed, which would need to write.
const RECOVER: u64 = 0x4;
/// Bit in `s_feature_ro_compat`: the file system is read-only.
const READ_ONLY: u64 = 0x1000;
/// Maximum number of block groups: as many as 8 TiB have with blocks of 4 KiB.
const MAX_GROUPS: u64 = 1 << 16;
/// Maximum number of bytes of a folder, and of the target of a link.
const MAX_FOLDER: u64 = 4 << 20;
const MAX_TARGET: u64 = 4096;
/// Maximum number of links on the way to a file (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// The bytes of one partition.
struct Part {
    source: Rc<Source>,
    start: u64,
}

impl Ext4Read for Part {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let at = self.start.checked_add(offset).ok_or("too far")?;
        self.source.fill(at, buffer).ok_or_else(|| "not known".into())
    }
}

/// Whether an ext2, ext3 or ext4 file system begins at this byte of the image.
pub(super) fn is_at(source: &Source, start: u64) -> Result<bool, Unknown> {
    Ok(source.bytes(start + SUPERBLOCK + 56, 2).ok_or(Unknown)? == MAGIC)
}

/// Opens the file system in this range of bytes of the image.
pub(super) fn open(source: &Rc<Source>, start: u64, len: u64) -> Result<Ext4, Unknown> {
    let head = source.bytes(start + SUPERBLOCK, 1024).ok_or(Unknown)?;
    let field = |at: usize| Some(u64::from(u32::from_le_bytes(*head.get(at..)?.first_chunk()?)));
    let is_sound = || {
        let (low, high, log, per_group) = (field(4)?, field(0x150)?, field(24)?, field(32)?);
        let has_high = field(96)? & 0x80 != 0;
        let blocks = low | if has_high { high << 32 } else { 0 };
        let size = blocks.checked_mul(1024 << Some(log).filter(|log| *log <= 6)?)?;
        let groups = blocks.checked_div(per_group)?;
        let is_as_written = field(96)? & RECOVER == 0 && field(100)? & READ_ONLY == 0;
        Some(size <= len && groups < MAX_GROUPS && is_as_written)
    };
    if is_sound() != Some(true) {
        return Err(Unknown);
    }
    Ext4::load(Box::new(Part { source: source.clone(), start })).map_err(|_| Unknown)
}

/// Finds a file or folder. Returns its path with links resolved, which begins with a slash (empty for the root), and
/// its metadata.
pub(super) fn locate(system: &Ext4, path: &str) -> Known<(String, Metadata)> {
    let names = |path: &str| path.rsplit('/').map(str::to_owned).collect::<Vec<String>>();
    let metadata = |path: &str| match system.symlink_metadata(if path.is_empty() { "/" } else { path }) {
        Ok(found) => Ok(Some(found)),
        Err(Ext4Error::NotFound) => Ok(None),
        Err(_) => Err(Unknown),
    };
    let (mut left, mut here, mut links) = (names(path), String::new(), 0);
    let Some(mut found) = metadata("")? else { return Err(Unknown) };
    while let Some(name) = left.pop() {
        let next = match &*name {
            "" | "." => continue,
            ".." => here.rsplit_once('/').map_or(String::new(), |(parent, _)| parent.to_owned()),
            _ if !found.is_dir() => return Ok(None),
            _ if found.len() > MAX_FOLDER => return Err(Unknown),
            name => format!("{here}/{name}"),
        };
        let Some(there) = metadata(&next)? else { return Ok(None) };
        if !there.is_symlink() {
            (here, found) = (next, there);
            continue;
        }
        links += 1;
        if links > MAX_LINKS || there.len() > MAX_TARGET {
            return Err(Unknown);
        }
        let target = system.read_link(&*next).map_err(|_| Unknown)?;
        let target = target.to_str().map_err(|_| Unknown)?;
        if target.starts_with('/') {
            here.clear();
            found = metadata("")?.ok_or(Unknown)?;
        }
        left.extend(names(target));
    }
    Ok(Some((here, found)))
}

/// Lists the names in a folder. `None` if the folder does not exist.
pub(super) fn list(system: &Ext4, path: &str) -> Known<Vec<Name>> {
    let Some((path, found)) = locate(system, path)?.filter(|(_, found)| found.is_dir()) else { return Ok(None) };
    if found.len() > MAX_FOLDER {
        return Err(Unknown);
    }
    let mut names = Vec::new();
    for entry in system.read_dir(if path.is_empty() { "/" } else { &*path }).map_err(|_| Unknown)? {
        let entry = entry.map_err(|_| Unknown)?;
        let name = entry.file_name().as_str().map_err(|_| Unknown)?.to_owned();
        let is_folder = entry.file_type().map_err(|_| Unknown)?.is_dir();
        names.push(Name { name, is_folder });
        if names.len() > MAX_NAMES {
            return Err(Unknown);
        }
    }
    Ok(Some(names))
}

/// Returns the size of a regular file in bytes, and up to `len` of its bytes from an offset.
pub(super) fn read(system: &Ext4, path: &str, offset: u64, len: u64) -> Known<(u64, Vec<u8>)> {
    let Some((path, found)) = locate(system, path)? else { return Ok(None) };
    if !found.file_type().is_regular_file() {
        return Err(Unknown);
    }
    let mut bytes = vec![0; len.min(found.len().saturating_sub(offset)) as usize];
    let mut filled = 0;
    let mut file = system.open(&*path).map_err(|_| Unknown)?;
    file.seek_to(offset).map_err(|_| Unknown)?;
    while let Some(left) = bytes.get_mut(filled..).filter(|left| !left.is_empty()) {
        match file.read_bytes(left).map_err(|_| Unknown)? {
            0 => return Err(Unknown),
            read => filled += read,
        }
    }
    Ok(Some((found.len(), bytes)))
}
