//! Mounts the file systems of the boot image.

use std::path::Path;

use rustix::mount::{MountFlags, mount};

struct Mount {
    source: &'static str,
    target: &'static str,
    kind: &'static str,
    flags: MountFlags,
    data: &'static str,
}

const NO_PROGRAMS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// The order matters: first /dev for the log, then /proc for the log's settings.
const MOUNTS: &[Mount] = &[
    Mount {
        source: "devtmpfs",
        target: "/dev",
        kind: "devtmpfs",
        flags: MountFlags::NOSUID.union(MountFlags::NOEXEC),
        data: "mode=0755",
    },
    Mount { source: "proc", target: "/proc", kind: "proc", flags: NO_PROGRAMS, data: "" },
    Mount { source: "sysfs", target: "/sys", kind: "sysfs", flags: NO_PROGRAMS, data: "" },
    Mount { source: "tmpfs", target: "/run", kind: "tmpfs", flags: NO_PROGRAMS, data: "mode=0755,size=16m" },
    Mount { source: "tmpfs", target: "/tmp", kind: "tmpfs", flags: NO_PROGRAMS, data: "mode=1777,size=16m" },
];

/// The file system with the firmware's measurements, on a machine with a TPM.
const SECURITYFS: Mount =
    Mount { source: "securityfs", target: "/sys/kernel/security", kind: "securityfs", flags: NO_PROGRAMS, data: "" };

/// Mount point of the EFI variables. These exist only with UEFI firmware, and are mounted late because efivarfs may be
/// a module.
const EFIVARS: &str = "/sys/firmware/efi/efivars";

/// Mounts the file systems. Returns a sentence for each that failed.
pub fn mount_all() -> Vec<String> {
    let mut errors: Vec<String> = MOUNTS.iter().filter_map(|m| mount_one(m).err()).collect();
    // A kernel without securityfs has no such folder.
    if Path::new(SECURITYFS.target).is_dir() {
        errors.extend(mount_one(&SECURITYFS).err());
    }
    errors
}

/// Mounts the EFI variables if there are any. Call it once modules can be loaded.
pub fn mount_efivars() -> Result<(), String> {
    if !Path::new(EFIVARS).is_dir() {
        return Ok(());
    }
    mount_one(&Mount { source: "efivarfs", target: EFIVARS, kind: "efivarfs", flags: NO_PROGRAMS, data: "" })
}

fn mount_one(m: &Mount) -> Result<(), String> {
    // sysfs has its own mount points. The image should contain all others.
    let _ = std::fs::create_dir_all(m.target);
    let data = std::ffi::CString::new(m.data).unwrap_or_default();
    match mount(m.source, m.target, m.kind, m.flags, Some(data.as_c_str())) {
        // EBUSY: a kernel with CONFIG_DEVTMPFS_MOUNT has already mounted it.
        Ok(()) | Err(rustix::io::Errno::BUSY) => Ok(()),
        Err(error) => Err(format!("mounting {} on {}: {error}", m.kind, m.target)),
    }
}
