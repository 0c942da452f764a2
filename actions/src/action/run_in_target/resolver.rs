//! The machine's name servers in the installed system, while a command runs there.
//!
//! Nothing is mounted on /etc/resolv.conf, because the packages that manage the file replace it, and a mount point
//! cannot be replaced. If it leads into /run, which is in memory, the file is made there. Otherwise the file is
//! renamed, a link with its old name points to it, and the machine's file is mounted on the renamed one. So a power cut
//! at any moment leaves a system that reads the file it had.

use std::fs::File;
use std::io::{self, Read};

use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

use crate::error::Error;
use crate::target::root::{TargetRoot, target_file};
use crate::text;

const RESOLV_CONF: &str = "etc/resolv.conf";
/// Path of the installed system's own file while the link is in the place of that file.
const ASIDE: &str = "etc/.slipway-resolv.conf";
/// Text of the link. Absolute, because a script may move the link.
const LINK: &str = "/etc/.slipway-resolv.conf";
/// Target of the link if the file did not exist.
const ABSENT: &str = "/run/slipway-no-resolv.conf";
/// Path of the machine's file, in the /run of the installed system, which disappears with the command.
const MACHINES: &str = "run/slipway-resolv.conf";
/// Where programs that manage resolv.conf keep their own files. After a script links resolv.conf to one of these files,
/// it still has name servers.
const MANAGED: &[&str] = &[
    "run/systemd/resolve/stub-resolv.conf",
    "run/systemd/resolve/resolv.conf",
    "run/NetworkManager/resolv.conf",
    "run/resolvconf/resolv.conf",
    "run/connman/resolv.conf",
];

/// Puts the link in place where it is needed. Returns a warning if that is not possible, for example because the file
/// is immutable; then the machine's file is mounted on the file itself.
pub(super) fn set_aside(root: &TargetRoot) -> Result<Option<String>, Error> {
    // An earlier command may have been cut off.
    put_back(root)?;
    if !root.exists("etc") || is_in_memory(&root.resolved(RESOLV_CONF)?) {
        return Ok(None);
    }
    if root.open_directory(RESOLV_CONF.as_bytes()).is_ok() {
        let reason = io::Error::other("it is a directory; remove it, or put a file in its place");
        return Err(target_file("replacing", RESOLV_CONF, reason));
    }
    let replaced = match root.has(RESOLV_CONF) {
        true => root.link(ASIDE, LINK).and_then(|()| root.exchange(RESOLV_CONF, ASIDE)),
        false => root.link(ASIDE, ABSENT).and_then(|()| root.link(RESOLV_CONF, LINK)),
    };
    let Err(error) = replaced else { return Ok(None) };
    // Errors are ignored: undoing fails for the same reason.
    _ = put_back(root);
    Ok(Some(format!(
        "the command cannot replace /{RESOLV_CONF}, and what it writes to this file is lost: {}",
        text::chain(&error)
    )))
}

/// Puts the file back, wherever in its file system the link is now. If the command removed the link, the file goes too.
pub(super) fn put_back(root: &TargetRoot) -> Result<(), Error> {
    if !root.has(ASIDE) {
        return Ok(());
    }
    // A power cut may have left a link to itself.
    let is_absent = root.link_at(ASIDE).is_ok_and(|target| matches!(target.as_deref(), Some(ABSENT | LINK)));
    let mut places = root.links_to("etc", LINK)?;
    // The link was moved out of /etc, or removed.
    if places.is_empty() {
        places = root.links_to("", LINK)?;
    }
    for place in places.iter().filter(|place| *place != ASIDE) {
        match is_absent {
            true => root.remove(place)?,
            false => root.name_again(ASIDE, place)?,
        }
    }
    root.remove(ASIDE)
}

fn is_in_memory(path: &str) -> bool {
    path.starts_with("run/")
}

/// The machine's name servers in the installed system. Belongs to the process whose root is the system's root.
pub(super) struct Given<'a> {
    text: &'a str,
    root: TargetRoot,
    /// The machine's file, held open because a command may remove its name.
    machines: File,
}

/// Gives the installed system the machine's name servers.
pub(super) fn give(text: &str) -> Result<Given<'_>, Error> {
    let root = open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let root = TargetRoot::new(root.map_err(|errno| target_file("opening", "", errno.into()))?);
    let resolved = root.resolved(RESOLV_CONF)?;
    let in_memory = Some(resolved.as_str()).filter(|path| is_in_memory(path) && !root.has(ASIDE));
    for path in MANAGED.iter().copied().chain([MACHINES]).chain(in_memory) {
        root.write(path, text.as_bytes(), 0o644)?;
    }
    let machines = root.open_file(MACHINES)?;
    // Looks at the name itself, which may be a dangling link.
    let place = [ASIDE, RESOLV_CONF].into_iter().find(|path| root.has(path)).filter(|_| in_memory.is_none());
    if let Some(place) = place {
        mount(place).map_err(|source| target_file("mounting on", place, source))?;
    }
    Ok(Given { text, root, machines })
}

fn mount(place: &str) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, format!("/{MACHINES}"), flags)?;
    Ok(move_mount(&tree, "", CWD, format!("/{place}"), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

impl Given<'_> {
    /// Copies what the command wrote to /etc/resolv.conf, and so into the machine's file, to the installed system's own
    /// file.
    pub(super) fn keep(&self) -> Result<(), Error> {
        if !self.root.has(ASIDE) {
            return Ok(());
        }
        let failed = |source| target_file("keeping", RESOLV_CONF, source);
        let mut now = Vec::new();
        (&self.machines).read_to_end(&mut now).map_err(failed)?;
        if now == self.text.as_bytes() {
            return Ok(());
        }
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        unmount(LINK, flags).map_err(|errno| failed(errno.into()))?;
        let target = self.root.link_at(ASIDE).map_err(failed)?;
        if target.as_deref() == Some(ABSENT) {
            return self.root.write(ASIDE, &now, 0o644);
        }
        let path = self.root.resolved(ASIDE)?;
        match self.root.has(&path) {
            true => self.root.rewrite(&path, &now),
            false => self.root.write(&path, &now, 0o644),
        }
    }
}
