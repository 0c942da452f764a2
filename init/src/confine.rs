//! Drops rights of `slipway network`. The process parses data from anybody on the network, so it keeps only the rights
//! it needs.
//!
//! The process runs as nobody, without supplementary groups, with three capabilities (capabilities(7)). It owns the
//! files it writes. It cannot regain rights (`no_new_privs`), and system calls that it does not need fail as if the
//! kernel lacked them (seccomp(2)). So a fault in the DHCP parser cannot open a disk or another process.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, fchown};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Compare, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use slipway_installer::server::link;

/// Number of the user and of the group that by convention own no files.
const NOBODY: u32 = 65534;
/// Capabilities for addresses and routes, for packet sockets and sockets bound to an interface, and for DHCP's port 68.
const KEPT: CapabilitySet =
    CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW).union(CapabilitySet::NET_BIND_SERVICE);
/// Where the C library looks for name servers.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// System calls that the network does not need: they start programs, affect other processes, mounts, kernels and
/// modules or clocks, or have had many vulnerabilities.
const DENIED: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_mknodat,
    libc::SYS_quotactl,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_settimeofday,
    libc::SYS_syslog,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // seccomp cannot check the flags of clone3, because they are in memory. C libraries then use clone.
    libc::SYS_clone3,
];

/// Drops every right that the network does not need. Call it before other threads exist.
pub fn confine() -> Result<()> {
    own_files()?;
    let filter = filter().context("setting up the filter of system calls")?;
    drop_rights().context("dropping root's rights")?;
    rustix::thread::set_no_new_privs(true).context("setting no_new_privs")?;
    seccompiler::apply_filter(&filter).context("filtering system calls")
}

/// Creates the files that are written later, owned by nobody.
fn own_files() -> Result<()> {
    let nobody = Some(NOBODY);
    let resolv_conf = Path::new(RESOLV_CONF);
    let folder = Path::new(link::PATH).parent().context("the network's file has no folder")?;
    let made = resolv_conf.parent().map_or(Ok(()), std::fs::create_dir_all);
    let file = made.and_then(|()| File::options().create(true).append(true).open(resolv_conf));
    file.and_then(|file| fchown(file, nobody, nobody)).with_context(|| format!("making {RESOLV_CONF}"))?;
    let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
    let owned = made.and_then(|()| std::os::unix::fs::chown(folder, nobody, nobody));
    owned.with_context(|| format!("making {}", folder.display()))
}

fn drop_rights() -> rustix::io::Result<()> {
    // The kernel returns an error after the last capability it knows.
    for bit in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if !KEPT.contains(capability) && rustix::thread::capability_is_in_bounding_set(capability).unwrap_or(false) {
            rustix::thread::remove_capability_from_bounding_set(capability)?;
        }
    }
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_keep_capabilities(true)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    let sets = CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)
}

/// Makes the filter of system calls. Denied calls fail with ENOSYS, as in a kernel that lacks them.
fn filter() -> Result<BpfProgram> {
    let condition = |argument, compare, value| SeccompCondition::new(argument, Width::Dword, compare, value);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|call| (*call, Vec::new())).collect();
    // A new user namespace would grant all capabilities in it, and so open rarely used parts of the kernel.
    let user = u64::try_from(libc::CLONE_NEWUSER)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![condition(0, Compare::MaskedEq(user), user)?])?]);
    // Of netlink, only addresses and routes are needed, not packet filters.
    let netlink = condition(0, Compare::Eq, u64::try_from(libc::AF_NETLINK)?)?;
    let other = condition(2, Compare::Ne, u64::try_from(libc::NETLINK_ROUTE)?)?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(vec![netlink, other])?]);
    let lacks = SeccompAction::Errno(u32::try_from(libc::ENOSYS)?);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, lacks, std::env::consts::ARCH.try_into()?)?;
    Ok(filter.try_into()?)
}
