//! Mounts a partition without a mount point, a mount program or udev.
//!
//! The mount is a file descriptor (fsopen(2), fsmount(2)) that is not attached anywhere. It disappears with the
//! descriptor, even if the process is killed.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};

use crate::disk::node;
use crate::disk::open::OpenDisk;
use crate::disk::partitions::Partition;
use crate::disk::probe::{self, FileSystem};
use crate::error::{Error, TargetError, Tried, advised};
use crate::target::os_release;
use crate::target::root::TargetRoot;
use crate::{sys, text};

/// Number of tries. Another process may take the free loop device first.
const LOOP_TRIES: u32 = 10;
/// File systems that can be mounted, as the probe calls them.
const MOUNTABLE: &[&str] = &["ext2", "ext3", "ext4", "xfs", "btrfs", "vfat"];
/// btrfs subvolumes that installers create for the root file system: of Fedora, of Ubuntu and Arch Linux, of Debian, of
/// openSUSE, and others that are usual.
const ROOT_SUBVOLUMES: &[&str] = &[
    "subvol=root",
    "subvol=@",
    "subvol=@rootfs",
    "subvol=@/.snapshots/1/snapshot",
    "subvol=@root",
    "subvol=rootfs",
    "subvol=@/root",
];
/// Why a file system could not be mounted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub(crate) enum MountError {
    /// The kernel did not create a node for the partition.
    #[error("waiting for the device node of the partition at byte {offset}: it did not appear")]
    NoNode {
        /// Where the partition starts, in bytes.
        offset: u64,
    },
    /// No loop device could be bound to the part of the file that is the partition.
    #[error("binding a loop device")]
    Loop { source: io::Error },
    /// The kernel refused to mount the file system.
    #[error("mounting {kind} from {source_path}")]
    Refused { kind: &'static str, source_path: String, source: io::Error },
}

/// Places of a disk that were searched.
#[derive(Debug, Default)]
pub(crate) struct SearchLog {
    places: Vec<String>,
    /// Partitions that could not be searched, with the reason. They are worth a warning even if the search succeeded
    /// elsewhere.
    pub(crate) refusals: Vec<String>,
    /// Partitions that were not mounted, if the whole disk was searched.
    pub(crate) unmounted: Vec<Unmounted>,
    is_transient: bool,
}

/// A partition that was not mounted.
#[derive(Debug)]
pub(crate) struct Unmounted {
    pub(crate) partition: Partition,
    pub(crate) file_system: Option<FileSystem>,
    /// The reason, to be printed after its name.
    pub(crate) reason: String,
    /// Whether the kernel refused to mount it.
    pub(crate) is_refused: bool,
}

impl SearchLog {
    /// Records a place where the search failed.
    pub(crate) fn note_miss(&mut self, place: String) {
        self.places.push(place);
    }

    /// Records a partition that could not be mounted, and returns that in words.
    pub(crate) fn refused(&mut self, partition: &str, error: &MountError) -> String {
        let refusal = format!("{partition} was not searched: {}", text::chain(error));
        self.places.push(refusal.clone());
        self.refusals.push(refusal.clone());
        self.is_transient |= matches!(error, MountError::NoNode { .. });
        refusal
    }

    /// Returns the error if nothing was found.
    pub(crate) fn not_found(self, what: &'static str, disk: &OpenDisk) -> Error {
        let (disk, looked_at) = (disk.path().to_owned(), self.places.join("; "));
        Error::Target(TargetError::NotFound { what, disk, looked_at, is_transient: self.is_transient })
    }
}

/// Detects the file system of a partition, if it has one.
pub(crate) fn probe(disk: &OpenDisk, partition: &Partition) -> Result<Option<FileSystem>, Error> {
    probe::file_system(disk, partition)
}

/// Whether a file system of this kind can be mounted.
pub(crate) fn is_mountable(kind: &str) -> bool {
    MOUNTABLE.contains(&kind)
}

/// Whether a file system of this kind stores owners and modes.
pub(crate) fn keeps_owners(kind: &str) -> bool {
    kind != "vfat"
}

/// Mounts a partition of a disk.
pub(crate) fn mount(disk: &OpenDisk, partition: &Partition, kind: &'static str) -> Result<TargetRoot, MountError> {
    mount_source(&source(disk, partition)?, kind).map(|(root, _)| root)
}

/// A device from which a partition can be mounted.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// Keeps the loop device bound.
    loop_device: Option<Arc<File>>,
}

impl Source {
    /// Returns the same device once more.
    pub(crate) fn again(&self) -> Self {
        Self { path: self.path.clone(), loop_device: self.loop_device.clone() }
    }
}

/// Returns the device of a partition: its node, or else a loop device bound to it.
pub(crate) fn source(disk: &OpenDisk, partition: &Partition) -> Result<Source, MountError> {
    match node::of_partition(disk, partition) {
        Some(path) => Ok(Source { path, loop_device: None }),
        None => {
            let (path, device) = bind_loop(disk.path(), &partition.bytes)?;
            Ok(Source { path, loop_device: Some(Arc::new(device)) })
        }
    }
}

/// Mounts a device. For btrfs, mounts the subvolume with the root file system if it is below the default subvolume.
/// Also returns the mount option that chooses this subvolume.
pub(crate) fn mount_source(
    source: &Source,
    kind: &'static str,
) -> Result<(TargetRoot, Option<&'static str>), MountError> {
    let root = mount_subvolume(source, kind, None)?;
    let has_system = |folder: &str| os_release::PATHS.iter().any(|path| root.exists(&format!("{folder}{path}")));
    let folder = |option: &str| option.trim_start_matches("subvol=").to_owned() + "/";
    let is_root = |option: &&&str| kind == "btrfs" && !has_system("") && has_system(&folder(option));
    let Some(option) = ROOT_SUBVOLUMES.iter().find(is_root) else { return Ok((root, None)) };
    // A normal folder of that name is not a subvolume and cannot be mounted.
    Ok(mount_subvolume(source, kind, Some(option)).map_or((root, None), |subvolume| (subvolume, Some(*option))))
}

/// Mounts a device. For btrfs, an option may choose the subvolume: `subvol=PATH` or `subvolid=NUMBER`.
pub(crate) fn mount_subvolume(
    source: &Source,
    kind: &'static str,
    option: Option<&str>,
) -> Result<TargetRoot, MountError> {
    let option = option.filter(|_| kind == "btrfs").and_then(|option| option.split_once('='));
    attach(&source.path, kind, "rw", option).map(TargetRoot::new).map_err(|errno| refused(&source.path, kind, errno))
}

/// Mounts a device that is not to be changed.
pub(crate) fn mount_read_only(device: &Path, kind: &'static str) -> Result<TargetRoot, MountError> {
    attach(device, kind, "ro", None).map(TargetRoot::new).map_err(|errno| refused(device, kind, errno))
}

fn refused(device: &Path, kind: &'static str, errno: Errno) -> MountError {
    let source = advised(Tried::Mount(driver(kind)), errno.into());
    MountError::Refused { kind, source_path: device.display().to_string(), source }
}

/// Returns the driver for a file system. ext2 and ext3 use that of ext4, which is the one that kernels have.
pub(crate) fn driver(kind: &str) -> &str {
    if kind.starts_with("ext") { "ext4" } else { kind }
}

fn attach(node: &Path, kind: &str, access: &str, subvolume: Option<(&str, &str)>) -> Result<OwnedFd, Errno> {
    let context = fsopen(driver(kind), FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", node)?;
    fsconfig_set_flag(context.as_fd(), access)?;
    if let Some((key, value)) = subvolume {
        fsconfig_set_string(context.as_fd(), key, value)?;
    }
    fsconfig_create(context.as_fd())?;
    let flags =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// Binds a free loop device to a part of a file, until the returned file and the mount are both gone.
fn bind_loop(path: &str, bytes: &Range<u64>) -> Result<(PathBuf, File), MountError> {
    let failed = |source| MountError::Loop { source: advised(Tried::Loop, source) };
    let read_write = |path: &Path| File::options().read(true).write(true).open(path);
    let backing = read_write(Path::new(path)).map_err(failed)?;
    let control = match read_write(Path::new("/dev/loop-control")) {
        Ok(control) => control,
        // Without the loop driver, the kernel's partition node was the only way.
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.starts_with("/dev/") => {
            return Err(MountError::NoNode { offset: bytes.start });
        }
        Err(error) => return Err(failed(error)),
    };
    let mut tries = 0;
    loop {
        let number = sys::loop_device::free_number(&control).map_err(|errno| failed(errno.into()))?;
        let node = PathBuf::from(format!("/dev/loop{number}"));
        let device = read_write(&node).map_err(failed)?;
        match sys::loop_device::configure(&device, &backing, bytes.start, bytes.end - bytes.start) {
            Ok(()) => return Ok((node, device)),
            Err(Errno::BUSY) if tries < LOOP_TRIES => tries += 1,
            Err(errno) => return Err(failed(errno.into())),
        }
    }
}
