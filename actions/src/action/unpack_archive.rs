//! `unpack-archive`: unpacks a tar archive into a directory of the installed system. Everything is unpacked into a
//! staging directory first, and moved into place once the stream has ended and its digest is right.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, fstatvfs, renameat, statat};
use slipway_protocol::UnpackArchive;

use crate::action::Done;
use crate::disk::choose;
use crate::disk::open::Access;
use crate::error::{Error, TargetError};
use crate::fetch::source::Source;
use crate::machine::Machine;
use crate::report::Tell;
use crate::stream::read::{self, Room};
use crate::target::layout::{Folder, Held, Hidden, Layout};
use crate::target::root::{TargetRoot, target_file};
use crate::target::{self, Target};
use crate::text;
use staging::{Refusal, Staging};
use tar::{Archive, ENDS_EARLY, Fault};

pub(crate) mod staging;
mod tar;

/// Name of the staging directory. It is in the target directory, so that entries only need to be renamed.
const STAGING: &str = ".slipway-unpack";

/// Maximum size of an archive, as a multiple of the size of the file system. It is more than 1 because later entries
/// may replace earlier ones, and because entries take up more space in an archive. A larger archive may be endless.
const ROOMS: u64 = 2;

/// Totals of an unpacked archive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unpacked {
    pub(crate) entries: u64,
    bytes: u64,
    /// Number of entries whose access control lists were left out.
    acls: u64,
    /// Number of entries whose file flags were left out.
    flags: u64,
}

pub(crate) fn run(inputs: &UnpackArchive, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let mut source = Source::prepare(&inputs.origin(), machine, report)?;
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    let target = target::find(&disk, inputs.partition.as_ref(), report)?;
    let layout = match inputs.partition {
        Some(_) => None,
        None => Some(Layout::of(&disk, &target)?),
    };
    let place = inputs.directory.trim_matches('/');
    let folder = folder(place, layout.as_ref(), &target)?;
    let staging = folder.at(STAGING);
    let done = unpack(inputs, &mut source, &target, &folder, machine, report).and_then(|(unpacked, warning)| {
        machine.cancel().check()?;
        folder.root.sync()?;
        if let Some(layout) = &layout {
            check_hidden(&folder.root, &staging, place, &|path| layout.hidden(path, place))?;
        }
        merge(&folder.root, &staging, &folder.path)?;
        Ok((unpacked, warning))
    });
    // Whatever happened, the rest of the staging directory is useless.
    let removed = folder.root.remove(&staging);
    let (unpacked, warning) = done?;
    removed?;
    folder.root.sync()?;
    let mut warnings = target.warnings.clone();
    if !inputs.origin().is_verified() {
        warnings.push("the archive was unpacked without a digest to check it against".to_owned());
    }
    warnings.extend(warning);
    if unpacked.acls > 0 {
        warnings.push(format!("{} entries have access control lists, which were left out", unpacked.acls));
    }
    if unpacked.flags > 0 {
        warnings.push(format!("{} entries have file flags (as by chattr), which were left out", unpacked.flags));
    }
    if !folder.keeps_owners() {
        warnings.push(format!("{} does not store owners or modes", folder.kind));
    }
    let Unpacked { entries, bytes, .. } = unpacked;
    let Folder { path, name, .. } = &folder;
    let summary = format!("unpacked {entries} entries with {} in /{path} of {name}", text::size(bytes));
    Ok(Done::go_on(summary, warnings))
}

/// Finds the directory to unpack into, in the file system that holds it.
fn folder(place: &str, layout: Option<&Layout>, target: &Target) -> Result<Folder, Error> {
    let held = layout.map_or_else(|| Ok(Held::Root(place.to_owned())), |layout| layout.held(place))?;
    held.folder(target)?.map_err(|reason| {
        let reason = format!("{reason}, which would hide the files; give partition to unpack them nevertheless");
        target_file("unpacking in", place, io::Error::other(reason))
    })
}

/// Unpacks the archive in the staging directory.
fn unpack(
    inputs: &UnpackArchive,
    source: &mut Source<'_>,
    target: &Target,
    folder: &Folder,
    machine: &dyn Machine,
    report: Tell,
) -> Result<(Unpacked, Option<String>), Error> {
    let partition = target.partition.bytes.end.saturating_sub(target.partition.bytes.start);
    let size = if folder.name == target.name { partition } else { size(&folder.root)? };
    let bytes = size.saturating_mul(ROOMS);
    let words = format!("twice the size of {}", folder.name);
    let staging = folder.at(STAGING);
    read::run(source, Some(Room { bytes, words: &words }), machine, report, &|input| {
        // Left from an earlier try, or from a power cut.
        folder.root.remove(&staging)?;
        let root = folder.root.make_directory(&staging)?;
        let mut staging = Staging::new(root, folder.keeps_owners(), inputs.devices);
        read_entries(input, &mut staging)
    })
}

/// Returns the size of a file system in bytes.
fn size(root: &TargetRoot) -> Result<u64, Error> {
    let stat = root.directory().and_then(fstatvfs);
    let stat = stat.map_err(|errno| target_file("looking at", "", errno.into()))?;
    Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
}

/// Unpacks the entries of an archive in a directory.
pub(crate) fn read_entries(input: &mut dyn Read, staging: &mut Staging) -> Result<Unpacked, Error> {
    let mut archive = Archive::new(input);
    let mut unpacked = Unpacked::default();
    loop {
        let number = format!("entry {}", unpacked.entries + 1);
        let entry = match archive.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(Fault::Damaged { entry, reason }) => return Err(refused(place(entry, number), reason, true)),
            Err(Fault::Unread { entry, reason }) => return Err(refused(place(entry, number), reason, false)),
            Err(Fault::Read(source)) => {
                return Err(TargetError::UnpackEntry { entry: "the next entry".to_owned(), source }.into());
            }
        };
        staging.add(&entry, &mut archive).map_err(|refusal| failed(shown(&entry.path), refusal))?;
        unpacked.entries += 1;
        unpacked.bytes += entry.size;
        unpacked.acls += u64::from(entry.has_acl);
        unpacked.flags += u64::from(entry.has_flags);
    }
    staging.finish().map_err(|refusal| failed("a directory".to_owned(), refusal))?;
    Ok(unpacked)
}

fn place(entry: Option<Vec<u8>>, number: String) -> String {
    entry.map_or(number, |path| shown(&path))
}

fn refused(place: String, reason: impl Into<String>, is_damaged: bool) -> Error {
    TargetError::Archive { place, reason: reason.into(), is_damaged }.into()
}

fn failed(entry: String, refusal: Refusal) -> Error {
    match refusal {
        Refusal::Wanted(reason) => refused(entry, reason, false),
        Refusal::Failed(source) if source.kind() == io::ErrorKind::UnexpectedEof => refused(entry, ENDS_EARLY, true),
        Refusal::Failed(source) => TargetError::UnpackEntry { entry, source }.into(),
    }
}

fn shown(path: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(path))
}

/// Refuses entries of a directory that the running system would not see, because it mounts something over their path.
/// An empty directory at a mount point is accepted, because it exists in any case.
fn check_hidden(
    root: &TargetRoot,
    staging: &str,
    directory: &str,
    hidden: &dyn Fn(&str) -> Option<Hidden>,
) -> Result<(), Error> {
    let failed = |path: &str, source: io::Error| target_file("unpacking", path, source);
    let source = root.open_directory(staging.as_bytes()).map_err(|errno| failed(directory, errno.into()))?;
    for name in names(&source).map_err(|error| failed(directory, error))? {
        // A name that is not text is not a mount point, and its parent was already checked.
        let Ok(name) = String::from_utf8(name) else { continue };
        let path = if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
        let staged = format!("{staging}/{name}");
        let stat = statat(&source, &*name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| failed(&path, errno.into()))?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let is_empty = || {
            let directory = root.open_directory(staged.as_bytes()).map_err(io::Error::from).and_then(|dir| names(&dir));
            directory.is_ok_and(|names| names.is_empty())
        };
        match hidden(&path) {
            Some(_) if is_directory && is_empty() => {}
            Some(Hidden { reason, is_on_disk }) => {
                let advice = match is_on_disk {
                    true => "unpack what belongs there with a step of its own that names this directory",
                    false => "leave it out of the archive, or give partition to unpack it nevertheless",
                };
                return Err(failed(&path, io::Error::other(format!("{reason}, which would hide it; {advice}"))));
            }
            None if is_directory => check_hidden(root, &staged, &path, hidden)?,
            None => {}
        }
    }
    Ok(())
}

/// Moves the contents of one directory of a file system into another. Detects all conflicts before anything is moved.
fn merge(root: &TargetRoot, from: &str, to: &str) -> Result<(), Error> {
    for is_trial in [true, false] {
        merge_directory(root, from.as_bytes(), to.as_bytes(), is_trial)?;
    }
    Ok(())
}

fn merge_directory(root: &TargetRoot, from: &[u8], to: &[u8], is_trial: bool) -> Result<(), Error> {
    let failed = |source: std::io::Error| target_file("unpacking in", &String::from_utf8_lossy(to), source);
    let open = |path: &[u8]| root.open_directory(path).map_err(|errno| failed(errno.into()));
    let (source, target) = (open(from)?, open(to)?);
    for name in names(&source).map_err(failed)? {
        let is_directory = |dir: &OwnedFd| {
            let stat = statat(dir, OsStr::from_bytes(&name), AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
        };
        let (inner_from, inner_to) = (joined(from, &name), joined(to, &name));
        match (is_directory(&source), is_directory(&target)) {
            // A link to a directory counts as a directory: /lib -> usr/lib.
            (Some(true), Some(_)) if root.open_directory(&inner_to).is_ok() => {
                merge_directory(root, &inner_from, &inner_to, is_trial)?;
            }
            (Some(true), Some(false)) | (Some(false), Some(true)) => {
                let reason = "the archive has a directory where the target has a file, or the other way round";
                let source = std::io::Error::new(std::io::ErrorKind::AlreadyExists, reason);
                return Err(target_file("unpacking", &String::from_utf8_lossy(&inner_to), source));
            }
            _ if is_trial => {}
            _ => renameat(&source, &*name, &target, &*name)
                .map_err(|errno| target_file("unpacking", &String::from_utf8_lossy(&inner_to), errno.into()))?,
        }
    }
    Ok(())
}

fn names(dir: &OwnedFd) -> std::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if !matches!(&*name, b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, name].join(&b'/') }
}
