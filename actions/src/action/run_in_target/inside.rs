//! The first process in the installed system: mounts the file systems, enters the system, starts the command and waits
//! for it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::{fs, thread};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
};
use rustix::process::{WaitOptions, chroot, fchdir, wait};
use rustix::thread::UnshareFlags;
use slipway_protocol::RunInTarget;

use super::{Answer, Ended, Mount, Orders, resolver};
use crate::error::{Tried, advised};
use crate::target::mount;
use crate::{sys, text};

/// Maximum bytes of the orders.
const MAX_ORDERS: u64 = 64 << 20;
/// Path of the script, in the /run of the installed system, which disappears with this process.
const SCRIPT: &str = "/run/slipway-script";
const ENVIRONMENT: &[(&str, &str)] =
    &[("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("HOME", "/root"), ("LANG", "C.UTF-8")];

const NO_PROGRAMS: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV).union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Kernel file systems that an installed system expects: type, place, flags, mode, and whether it is required.
const KERNEL_FILE_SYSTEMS: &[(&str, &str, MountAttrFlags, Option<&str>, bool)] = &[
    ("proc", "/proc", NO_PROGRAMS, None, true),
    ("sysfs", "/sys", NO_PROGRAMS, None, true),
    ("efivarfs", "/sys/firmware/efi/efivars", NO_PROGRAMS, None, false),
    ("devtmpfs", "/dev", MountAttrFlags::MOUNT_ATTR_NOSUID, None, true),
    ("devpts", "/dev/pts", MountAttrFlags::MOUNT_ATTR_NOSUID, None, false),
    // Otherwise, files in /dev/shm would stay in the machine's own /dev.
    ("tmpfs", "/dev/shm", MountAttrFlags::MOUNT_ATTR_NOSUID, Some("1777"), false),
    ("tmpfs", "/run", MountAttrFlags::MOUNT_ATTR_NOSUID, Some("0755"), true),
];

/// The command `slipway in-target`. Its standard input is a socket, on which it gets its orders and sends its answer.
/// The process ends at once when the other end of the socket is closed, and the kernel then kills everything it
/// started.
pub fn in_target() -> ExitCode {
    let Ok(control) = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else { return ExitCode::FAILURE };
    let mut orders = String::new();
    let mut reader = BufReader::new(&control);
    let read = (&mut reader).take(MAX_ORDERS).read_line(&mut orders);
    let answer = match serde_json::from_str::<Orders>(&orders)
        .map_err(io::Error::from)
        .and_then(|orders| read.map(|_| orders))
    {
        Ok(orders) => obey(&orders, &control),
        Err(error) => Err(format!("reading the command: {error}")),
    };
    let text = serde_json::to_string(&answer).unwrap_or_default();
    match (&control).write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn obey((inputs, mounts, resolver): &Orders, control: &UnixStream) -> Answer {
    let warnings = enter(mounts)?;
    mount_kernel_file_systems()?;
    let resolver = resolver.as_deref().map(|text| {
        let given = resolver::give(text);
        given.map_err(|error| {
            format!("making the machine's name servers available to the command: {}", text::chain(&error))
        })
    });
    let resolver = resolver.transpose()?;
    let mut other_end = control.try_clone().map_err(|error| error.to_string())?;
    // The thread is started only now, because it would keep the mount namespace and root from before their change.
    thread::spawn(move || {
        _ = other_end.read(&mut [0]);
        std::process::exit(1);
    });
    let ended = execute(inputs);
    let kept = resolver.map_or(Ok(()), |resolver| resolver.keep().map_err(|error| text::chain(&error)));
    match ended? {
        // How a failed command ended matters more than whether what it wrote to resolv.conf was kept.
        ended @ (Some(0), _) => kept.map(|()| (ended, warnings)),
        ended => Ok((ended, warnings)),
    }
}

/// Mounts the file systems of the disk, the root first, and changes the root to it. Returns warnings about optional
/// file systems that are not mounted.
fn enter(mounts: &[Mount]) -> Result<Vec<String>, String> {
    let failed = |what: &str, errno: Errno| format!("{what}: {}", advised(Tried::Namespace, errno.into()));
    sys::unshare(UnshareFlags::NEWNS).map_err(|errno| failed("making a mount namespace", errno))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|errno| failed("keeping mounts private to this process", errno))?;
    // All devices are opened first, because they have these names only outside of the installed system.
    let trees: Vec<_> = mounts.iter().map(of_disk).collect();
    let mut warnings = Vec::new();
    for ((source, _, option, place, may_fail), tree) in mounts.iter().zip(trees) {
        if place.is_empty() {
            let root = tree.transpose()?.ok_or("no root file system is given")?;
            attach(&root, "/").map_err(|errno| failed("mounting on /", errno))?;
            fchdir(root)
                .and_then(|()| chroot("."))
                .map_err(|errno| failed("changing the root to the installed system", errno))?;
            continue;
        }
        let place = format!("/{place}");
        let mounted = tree.unwrap_or_else(|| bound(source, option.is_some())).and_then(|tree| {
            // Like systemd, makes missing mount points.
            _ = fs::create_dir_all(&place);
            attach(&tree, &place).map_err(|errno| failed("attaching the file system", errno))
        });
        match mounted {
            Err(reason) if *may_fail => warnings.push(format!("{place} is not mounted: {reason}")),
            Err(reason) => {
                let remedy = "repair the file system, or give its line in fstab the option nofail";
                return Err(format!("mounting {place}, as the system does: {reason}; {remedy}"));
            }
            Ok(()) => {}
        }
    }
    Ok(warnings)
}

/// Opens a file system of the disk; `None` if a folder is bound.
fn of_disk((source, kind, subvolume, ..): &Mount) -> Option<Result<OwnedFd, String>> {
    let kind = kind.as_deref()?;
    Some(open_device(source, kind, subvolume.as_deref()).map_err(|errno| {
        let reason = advised(Tried::Mount(mount::driver(kind)), errno.into());
        format!("mounting {kind} from {source}: {reason}")
    }))
}

/// Opens a folder of the installed system for a bind mount. Like systemd, makes the folder if it is missing.
fn bound(folder: &str, is_recursive: bool) -> Result<OwnedFd, String> {
    let folder = format!("/{folder}");
    _ = fs::create_dir_all(&folder);
    let below = if is_recursive { OpenTreeFlags::AT_RECURSIVE } else { OpenTreeFlags::empty() };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | below;
    open_tree(CWD, &folder, flags).map_err(|errno| format!("binding {folder}: {}", io::Error::from(errno)))
}

fn open_device(source: &str, kind: &str, subvolume: Option<&str>) -> Result<OwnedFd, Errno> {
    let context = fsopen(mount::driver(kind), FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", source)?;
    fsconfig_set_flag(context.as_fd(), "rw")?;
    if let Some((key, value)) = subvolume.and_then(|option| option.split_once('=')) {
        fsconfig_set_string(context.as_fd(), key, value)?;
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn attach(tree: &OwnedFd, place: &str) -> Result<(), Errno> {
    move_mount(tree, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS)
}

fn mount_kernel_file_systems() -> Result<(), String> {
    for (kind, place, flags, mode, is_needed) in KERNEL_FILE_SYSTEMS {
        if !is_needed && fs::metadata(place).is_err() {
            continue;
        }
        match of_kernel(kind, *flags, *mode).and_then(|tree| attach(&tree, place)) {
            Err(errno) if *is_needed => return Err(format!("mounting {kind} on {place}: {}", io::Error::from(errno))),
            _ => {}
        }
    }
    Ok(())
}

fn of_kernel(kind: &str, flags: MountAttrFlags, mode: Option<&str>) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    if let Some(mode) = mode {
        fsconfig_set_string(context.as_fd(), "mode", mode)?;
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// Starts the command and waits for it. As the first process, also reaps all orphaned processes.
fn execute(inputs: &RunInTarget) -> Result<Ended, String> {
    let mut command = match (&inputs.script, inputs.command.split_first()) {
        (Some(script), _) => {
            fs::write(SCRIPT, script).map_err(|error| format!("writing {SCRIPT}: {error}"))?;
            let mut shell = Command::new("/bin/sh");
            shell.args(["-e", SCRIPT]);
            shell
        }
        (None, Some((program, arguments))) => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        (None, None) => return Err("no command is given".to_owned()),
    };
    command
        .env_clear()
        .envs(ENVIRONMENT.iter().copied())
        .envs(&inputs.environment)
        .current_dir("/")
        .stdin(Stdio::null());
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command.spawn().map_err(|error| format!("starting {program}: {error}"))?;
    let pid = i32::try_from(child.id()).unwrap_or_default();
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended.as_raw_nonzero().get() == pid => {
                return Ok((status.exit_status(), status.terminating_signal()));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(format!("waiting for {program}: {}", io::Error::from(errno))),
        }
    }
}
