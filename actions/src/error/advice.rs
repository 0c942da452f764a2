//! What the kernel's answer means for a person, where its own text does not say it: a missing driver, a missing
//! capability, a feature that it does not know.

use std::io;

use rustix::io::Errno;

/// What was tried.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tried<'a> {
    /// Mounting a file system with this driver.
    Mount(&'a str),
    /// Growing a mounted file system of this kind.
    Grow(&'a str),
    /// Opening a disk, exclusively or not.
    OpenDisk,
    /// Using loop devices.
    Loop,
    /// Starting a mapping.
    Map,
    /// Starting an array.
    Assemble,
    /// Making namespaces.
    Namespace,
}

const ROOT: &str = "only root may do this: run slipway as root";
const CONTAINER: &str =
    "this needs root with CAP_SYS_ADMIN, which containers lack: run slipway as root, outside of them";

/// Adds to an error what to do, if that is known. The error keeps its kind.
pub(crate) fn advised(tried: Tried, source: io::Error) -> io::Error {
    match Errno::from_io_error(&source).and_then(|errno| advice(tried, errno)) {
        Some(advice) => io::Error::new(source.kind(), format!("{source}: {advice}")),
        None => source,
    }
}

fn advice(tried: Tried, errno: Errno) -> Option<String> {
    use Tried::{Assemble, Grow, Loop, Map, Mount, Namespace, OpenDisk};
    let no_driver = |module: &str| format!("the kernel has no driver for it: load the module with modprobe {module}");
    Some(match (tried, errno) {
        (Mount(driver), Errno::NODEV) => no_driver(driver),
        (Loop, Errno::NOENT | Errno::NODEV | Errno::NXIO) => no_driver("loop"),
        (Map, Errno::NOENT | Errno::NODEV | Errno::NXIO) => no_driver("dm_mod"),
        (Assemble, Errno::NOENT | Errno::NODEV | Errno::NXIO) => no_driver("md_mod"),
        (Grow("ext4" | "ext3" | "ext2"), Errno::PERM) => "this needs CAP_SYS_RESOURCE, which containers lack: run \
             slipway as root outside of them, or grow it in the installed system with resize2fs"
            .to_owned(),
        (Grow(_) | Mount(_) | Namespace | Map | Assemble | Loop, Errno::PERM | Errno::ACCESS) => CONTAINER.to_owned(),
        (OpenDisk, Errno::PERM | Errno::ACCESS) => ROOT.to_owned(),
        (Grow(kind), Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS) => {
            format!("this kernel cannot grow it while it is mounted: grow {kind} in the installed system")
        }
        (Mount(driver), Errno::INVAL | Errno::OPNOTSUPP) => format!(
            "it is damaged, or has features that the {driver} driver of this kernel does not know: check it, or use a \
             newer kernel"
        ),
        (Mount(_), Errno::UCLEAN) => "it is damaged: check it, or write the image again".to_owned(),
        (Mount(_) | OpenDisk, Errno::ROFS) => "the disk is write-protected".to_owned(),
        (Mount(_) | OpenDisk, Errno::BUSY) => "it is held by something that is not visible here, such as another \
             mount namespace, ZFS or a program: end that first"
            .to_owned(),
        (OpenDisk, Errno::NXIO | Errno::NODEV) => "no driver or device is behind this name".to_owned(),
        (OpenDisk, Errno::NOMEDIUM) => "there is no medium in it".to_owned(),
        (Namespace | Loop, Errno::NOSPC) => "a limit of the system is reached, of namespaces or devices".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_to_do_and_keeps_its_kind() {
        let check = |tried: Tried, errno: Errno, expect: &str| {
            let advised = advised(tried, errno.into());
            assert_eq!(advised.kind(), io::Error::from(errno).kind());
            let (text, plain) = (advised.to_string(), io::Error::from(errno).to_string());
            assert!(text.starts_with(&plain) && text.contains(expect), "{text}");
        };
        check(Tried::Mount("vfat"), Errno::NODEV, "modprobe vfat");
        check(Tried::Mount("xfs"), Errno::INVAL, "features that the xfs driver of this kernel does not know");
        check(Tried::Mount("ext4"), Errno::PERM, "CAP_SYS_ADMIN");
        check(Tried::Mount("ext4"), Errno::BUSY, "another mount namespace");
        check(Tried::Grow("ext4"), Errno::PERM, "CAP_SYS_RESOURCE");
        check(Tried::Grow("btrfs"), Errno::PERM, "CAP_SYS_ADMIN");
        check(Tried::Grow("xfs"), Errno::NOTTY, "grow xfs in the installed system");
        check(Tried::OpenDisk, Errno::ACCESS, "as root");
        check(Tried::OpenDisk, Errno::BUSY, "ZFS");
        check(Tried::Loop, Errno::NOENT, "modprobe loop");
        check(Tried::Map, Errno::NODEV, "modprobe dm_mod");
        check(Tried::Assemble, Errno::NOENT, "modprobe md_mod");
        check(Tried::Namespace, Errno::PERM, "containers");
        let plain = advised(Tried::Grow("ext4"), Errno::IO.into());
        assert_eq!(plain.raw_os_error(), Some(Errno::IO.raw_os_error()));
    }
}
