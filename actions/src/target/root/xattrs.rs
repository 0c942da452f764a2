//! Extended attributes of replaced files, and SELinux labels of new ones (xattr(7)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr, lgetxattr, lsetxattr};
use rustix::io::Errno;

use crate::text;

/// The label by which SELinux decides who may use a file.
const LABEL: &str = "security.selinux";
/// Attributes that depend on the content or place of the old file and would be wrong for the new one (kernel
/// documentation, ABI/testing/evm).
const STALE: &[&[u8]] = &[b"security.ima", b"security.evm"];
/// Maximum size in bytes of all names, and of one value: the limits of the kernel (linux/limits.h).
const MAX_NAMES: usize = 64 << 10;
const MAX_VALUE: usize = 64 << 10;
/// Maximum size of all values in bytes. File systems that store them in one block have room for some KiB only.
const MAX_TOTAL: usize = 256 << 10;

/// Extended attributes: names and values.
#[derive(Debug)]
pub(super) struct Xattrs(Vec<(Vec<u8>, Vec<u8>)>);

impl Xattrs {
    /// Reads the attributes of a file that its new version should have.
    pub(super) fn of(file: impl AsFd) -> io::Result<Self> {
        let mut names = Vec::with_capacity(MAX_NAMES);
        match flistxattr(&file, spare_capacity(&mut names)) {
            Ok(_) | Err(Errno::NOTSUP) => {}
            Err(errno) => return Err(errno.into()),
        }
        let (mut found, mut total) = (Vec::new(), 0);
        let mut value = Vec::with_capacity(MAX_VALUE);
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && !STALE.contains(name)) {
            value.clear();
            total += fgetxattr(&file, name, spare_capacity(&mut value))?;
            if total > MAX_TOTAL {
                let limit = text::size(MAX_TOTAL as u64);
                return Err(io::Error::other(format!(
                    "its extended attributes are larger than {limit}, so it is not edited"
                )));
            }
            found.push((name.to_vec(), value.clone()));
        }
        Ok(Self(found))
    }

    pub(super) fn give(&self, file: impl AsFd) -> io::Result<()> {
        let give = |(name, value): &(Vec<u8>, Vec<u8>)| {
            match fsetxattr(&file, name.as_slice(), value, XattrFlags::empty()) {
                // The attribute may come from the kernel, on a file system that stores none.
                Ok(()) | Err(Errno::NOTSUP) => Ok(()),
                Err(errno) => {
                    let name = String::from_utf8_lossy(name);
                    Err(io::Error::other(format!("its extended attribute {name} cannot be kept: {errno}")))
                }
            }
        };
        self.0.iter().try_for_each(give)
    }
}

/// Gives a new entry in a directory the SELinux label of the entry it replaces, else that of the directory, as the
/// kernel does if the policy has no other rule (The SELinux Notebook, "Computing Security Contexts"). Without a policy
/// the kernel sets no label, and files without one may be unreadable once a policy is enforced.
pub(super) fn inherit_label(parent: BorrowedFd<'_>, replaced: &str, new: &str) -> io::Result<()> {
    let found = match label(parent, replaced)? {
        None if label(parent, new)?.is_none() => label(parent, ".")?,
        found => found,
    };
    match found.map_or(Ok(()), |label| lsetxattr(path(parent, new), LABEL, &label, XattrFlags::empty())) {
        // The kernel reports labels even for file systems that store none.
        Ok(()) | Err(Errno::NOTSUP) => Ok(()),
        Err(errno) => Err(label_error(new, errno)),
    }
}

/// Labels the entry with this name in a directory.
pub(super) fn set_label(parent: BorrowedFd<'_>, name: &str, label: &[u8]) -> io::Result<()> {
    lsetxattr(path(parent, name), LABEL, label, XattrFlags::empty()).map_err(|errno| label_error(name, errno))
}

fn label_error(name: &str, errno: Errno) -> io::Error {
    io::Error::other(format!("the SELinux label of {name} cannot be set: {errno}"))
}

fn label(parent: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; MAX_VALUE];
    match lgetxattr(path(parent, name), LABEL, value.as_mut_slice()) {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::NOTSUP | Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns a path that names the directory by its descriptor, because setxattrat(2) needs Linux 6.13.
fn path(parent: BorrowedFd<'_>, name: &str) -> String {
    format!("/proc/self/fd/{}/{name}", parent.as_raw_fd())
}
