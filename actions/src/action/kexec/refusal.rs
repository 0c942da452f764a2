//! Why the running kernel refuses to load another kernel, and what to do (kexec_file_load(2), kernel_lockdown(7)).

use std::os::fd::AsFd;
use std::{fs, io};

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::target::root::TargetRoot;

/// The restrictions of the running kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    /// The lockdown modes, with the active one in brackets; `None` if the kernel has no lockdown.
    lockdown: Option<String>,
    /// Whether kernel.kexec_load_disabled is set.
    is_disabled: bool,
}

impl Policy {
    /// Reads the policy, as far as possible. If slipway is the operating system, the file system with the lockdown mode
    /// is not mounted.
    pub(super) fn of_running_kernel(is_operating_system: bool) -> Self {
        let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").ok();
        let disabled = fs::read_to_string("/proc/sys/kernel/kexec_load_disabled").unwrap_or_default();
        let lockdown = lockdown.or_else(|| if is_operating_system { read_lockdown() } else { None });
        Self { lockdown, is_disabled: disabled.trim() == "1" }
    }
}

fn read_lockdown() -> Option<String> {
    let context = fsopen("securityfs", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    fsconfig_create(context.as_fd()).ok()?;
    let root = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY).ok()?;
    TargetRoot::new(root).read("lockdown").ok()?
}

/// Returns why the kernel refused, and what to do.
pub(super) fn reason(source: &io::Error, policy: &Policy) -> String {
    let mode = policy.lockdown.as_deref().and_then(|modes| modes.split_once('[')?.1.split_once(']'));
    let mode = mode.map(|(mode, _)| mode).filter(|mode| *mode != "none");
    let why = match (Errno::from_io_error(source), mode) {
        (Some(Errno::PERM), _) if policy.is_disabled => {
            "kernel.kexec_load_disabled forbids it until the next restart".to_owned()
        }
        (Some(Errno::PERM), Some(mode)) => {
            format!("the running kernel is locked down ({mode}), and starts only kernels whose signature it can verify")
        }
        (Some(Errno::PERM), None) => "only root may do this, and only if no security policy forbids it".to_owned(),
        (Some(Errno::KEYREJECTED | Errno::NOKEY | Errno::BADMSG | Errno::NODATA | Errno::LIBBAD), _) => {
            "the running kernel does not trust its signature".to_owned()
        }
        (Some(Errno::NOSYS | Errno::OPNOTSUPP), _) => "the running kernel has no kexec_file_load".to_owned(),
        (Some(Errno::NOEXEC), _) => {
            "it is for another architecture, or in a format that the running kernel cannot start".to_owned()
        }
        (Some(Errno::NOMEM | Errno::ADDRNOTAVAIL), _) => "there is not enough memory for it".to_owned(),
        (Some(Errno::INVAL), _) => "the running kernel does not accept it, or its command line is too long".to_owned(),
        _ => "the running kernel refuses it".to_owned(),
    };
    format!("{why}; use reboot instead")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(errno: Errno, lockdown: Option<&str>, is_disabled: bool, expect: &str) {
        let policy = Policy { lockdown: lockdown.map(str::to_owned), is_disabled };
        let reason = reason(&errno.into(), &policy);
        assert!(reason.starts_with(expect) && reason.ends_with("; use reboot instead"), "{reason}");
    }

    #[test]
    fn a_refusal_says_who_forbids_it() {
        let integrity = Some("none [integrity] confidentiality\n");
        check(Errno::PERM, integrity, false, "the running kernel is locked down (integrity), ");
        check(Errno::PERM, Some("[none] integrity confidentiality\n"), false, "only root may");
        check(Errno::PERM, None, false, "only root may");
        check(Errno::PERM, integrity, true, "kernel.kexec_load_disabled forbids it");
        check(Errno::NOSYS, None, false, "the running kernel has no kexec_file_load");
        check(Errno::NOEXEC, integrity, false, "it is for another architecture");
        check(Errno::KEYREJECTED, integrity, false, "the running kernel does not trust its signature");
        check(Errno::TXTBSY, None, false, "the running kernel refuses it");
    }
}
