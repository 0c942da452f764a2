//! A file system of an image, and the operations needed to look into it.

use std::cell::Cell;
use std::rc::Rc;

use ext4_view::Ext4;
use slipway_formats::boot_config::places::BootFiles;
use slipway_formats::efi::device_path::guid_text;
use slipway_formats::fat;
use slipway_formats::partition_table::Partition;

use super::source::Source;
use super::{Known, Name, Unknown, ext4};

/// A partition with a file system.
pub(super) struct Volume {
    /// The partition in words, for messages.
    pub(super) name: String,
    /// Type of the partition. `None` in an MBR.
    pub(super) kind: Option<String>,
    /// Name of the partition in the GPT.
    pub(super) partition_name: String,
    pub(super) label: Option<String>,
    content: Content,
    /// Whether something in it could not be read.
    pub(super) is_unknown: Cell<bool>,
}

enum Content {
    Ext4(Ext4),
    /// FAT, from this byte of the image.
    Fat(Rc<Source>, u64),
}

impl Volume {
    /// Opens the file system of a partition. `None` if it is of another kind.
    pub(super) fn open(partition: &Partition, source: &Rc<Source>) -> Known<Self> {
        let (start, len) = (partition.bytes.start, partition.bytes.end.saturating_sub(partition.bytes.start));
        let is_fat = || fat::read::Files::open(&mut |at, len| source.bytes(start.checked_add(at)?, len)).is_some();
        let (content, label) = if ext4::is_at(source, start)? {
            let system = ext4::open(source, start, len)?;
            let label = system.label().to_str().map_err(|_| Unknown)?.to_owned();
            (Content::Ext4(system), Some(label).filter(|label| !label.is_empty()))
        } else if is_fat() {
            (Content::Fat(source.clone(), start), None)
        } else {
            return Ok(None);
        };
        let kind = partition.guids.as_ref().map(|(kind, _)| guid_text(kind));
        let (name, partition_name) = (partition.describe(), partition.name.clone());
        Ok(Some(Self { name, kind, partition_name, label, content, is_unknown: Cell::new(false) }))
    }

    /// Whether the file system stores the owners of files, so that it can be a root file system.
    pub(super) fn keeps_owners(&self) -> bool {
        matches!(self.content, Content::Ext4(_))
    }

    /// Returns the path with links resolved. `None` if no such file or folder exists.
    pub(super) fn followed(&self, path: &str) -> Known<String> {
        match &self.content {
            Content::Ext4(system) => Ok(ext4::locate(system, path)?.map(|(path, _)| path)),
            Content::Fat(..) => Err(Unknown),
        }
    }

    /// Records in `is_unknown` if something could not be found out, for callers that ignore it. Returns `found`.
    fn told<T>(&self, found: Result<T, Unknown>) -> Result<T, Unknown> {
        self.is_unknown.set(self.is_unknown.get() | found.is_err());
        found
    }

    fn list(&self, folder: &str, is_folder: bool) -> Result<Vec<String>, Unknown> {
        let found = match &self.content {
            Content::Ext4(system) => ext4::list(system, folder),
            Content::Fat(source, start) => list_fat(source, *start, folder),
        };
        let wanted = |found: &Name| found.is_folder == is_folder && !found.name.starts_with('.');
        let found = self.told(found)?.unwrap_or_default();
        let mut names: Vec<String> = found.into_iter().filter(wanted).map(|found| found.name).collect();
        names.sort();
        Ok(names)
    }

    fn read(&self, path: &str, offset: u64, len: u64) -> Known<(u64, Vec<u8>)> {
        self.told(match &self.content {
            Content::Ext4(system) => ext4::read(system, path, offset, len),
            Content::Fat(source, start) => read_fat(source, *start, path, offset, len),
        })
    }
}

impl BootFiles for Volume {
    type Error = Unknown;

    fn names(&self, folder: &str) -> Result<Vec<String>, Unknown> {
        self.list(folder, false)
    }

    fn folders(&self, folder: &str) -> Result<Vec<String>, Unknown> {
        self.list(folder, true)
    }

    fn is_file(&self, path: &str) -> Result<bool, Unknown> {
        let is_file = match &self.content {
            Content::Ext4(system) => ext4::locate(system, path)
                .map(|found| found.is_some_and(|(_, found)| found.file_type().is_regular_file())),
            Content::Fat(source, start) => read_fat(source, *start, path, 0, 0).map(|found| found.is_some()),
        };
        self.told(is_file)
    }

    fn text(&self, path: &str, max: u64) -> Result<Option<String>, Unknown> {
        let Some((len, bytes)) = self.read(path, 0, max)? else { return Ok(None) };
        let text = if len > max { Err(Unknown) } else { String::from_utf8(bytes).map_err(|_| Unknown) };
        self.told(text).map(Some)
    }

    fn bytes(&self, folder: &str, name: &str, offset: u64, len: u64) -> Result<Vec<u8>, Unknown> {
        Ok(self.read(&format!("{folder}/{name}"), offset, len)?.map(|(_, bytes)| bytes).unwrap_or_default())
    }

    fn is_boot_of_itself(&self) -> bool {
        // Not checked: boot texts that are read twice give the same result.
        false
    }

    fn refused(&self, _folder: &str, _reason: String) -> Unknown {
        self.is_unknown.set(true);
        Unknown
    }
}

fn list_fat(source: &Source, start: u64, folder: &str) -> Known<Vec<Name>> {
    let mut read = |at: u64, len: usize| source.bytes(start.checked_add(at)?, len);
    let mut files = fat::read::Files::open(&mut read).ok_or(Unknown)?;
    let Some(found) = found_fat(&mut files, folder)? else { return Ok(None) };
    Ok(Some(found.into_iter().map(|found| Name { name: found.name, is_folder: found.is_folder }).collect()))
}

fn read_fat(source: &Source, start: u64, path: &str, offset: u64, len: u64) -> Known<(u64, Vec<u8>)> {
    let mut read = |at: u64, len: usize| source.bytes(start.checked_add(at)?, len);
    let mut files = fat::read::Files::open(&mut read).ok_or(Unknown)?;
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let found = found_fat(&mut files, folder)?.unwrap_or_default();
    let is_meant = |found: &fat::read::Found| !found.is_folder && found.name.eq_ignore_ascii_case(name);
    let Some(file) = found.into_iter().find(is_meant) else { return Ok(None) };
    let bytes = files.read(&file, offset, len as usize).ok_or(Unknown)?;
    Ok(Some((file.len, bytes)))
}

/// Lists a folder of a FAT file system. `None` if the folder does not exist.
fn found_fat(files: &mut fat::read::Files<'_, '_>, folder: &str) -> Known<Vec<fat::read::Found>> {
    let mut found = files.list("").ok_or(Unknown)?;
    for name in folder.split('/').filter(|name| !matches!(*name, "" | ".")) {
        let next = found.into_iter().find(|found| found.is_folder && found.name.eq_ignore_ascii_case(name));
        let Some(next) = next else { return Ok(None) };
        found = files.within(&next).ok_or(Unknown)?;
    }
    Ok(Some(found))
}
