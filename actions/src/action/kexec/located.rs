//! Locates files by their paths in the installed system. Files below its mount points are on other volumes.

use std::cmp::Reverse;
use std::fmt;

use slipway_formats::fstab;

use crate::error::Error;
use crate::target::mount::Unmounted;
use crate::target::root::MAX_LINKS;
use crate::target::volume::Volume;
use crate::target::{os_release, roles};

const FSTAB: &str = "etc/fstab";
/// Maximum bytes read of the fstab.
const MAX_FSTAB: u64 = 1 << 20;
/// Mount points of boot file systems, the inner ones first.
const BOOT_PLACES: &[&str] = &["boot/efi", "boot", "efi"];

/// A file, which may not exist.
#[derive(Clone, Debug)]
pub(super) struct Located<'a> {
    pub(super) volume: &'a Volume,
    /// Path on `volume`.
    pub(super) path: String,
}

impl Located<'_> {
    pub(super) fn exists(&self) -> bool {
        self.volume.root.exists(&self.path)
    }

    pub(super) fn is_beside(&self, other: &Located) -> bool {
        std::ptr::eq(self.volume, other.volume)
    }
}

impl fmt::Display for Located<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{} of {}", self.path, self.volume.name)
    }
}

/// The volumes of a disk, as its installed system uses them.
pub(super) struct System<'a> {
    /// The volume with the root file system, recognised by its os-release.
    root: Option<&'a Volume>,
    others: Vec<&'a Volume>,
    unmounted: &'a [Unmounted],
    /// What the system mounts for booting, the inner mount points first.
    mounted: Vec<fstab::Entry>,
}

impl<'a> System<'a> {
    pub(super) fn new(volumes: &'a [Volume], unmounted: &'a [Unmounted]) -> Result<Self, Error> {
        let is_root = |volume: &&Volume| os_release::PATHS.iter().any(|path| volume.root.exists(path));
        let root = volumes.iter().find(is_root);
        let others = volumes.iter().filter(|volume| !root.is_some_and(|root| std::ptr::eq(*volume, root))).collect();
        let fstab = root.map(|root| root.root.head(FSTAB, MAX_FSTAB)).transpose()?.flatten().unwrap_or_default();
        let mut mounted = fstab::boot_entries(&String::from_utf8_lossy(&fstab));
        mounted.sort_by_key(|entry| Reverse(entry.place.len()));
        Ok(Self { root, others, unmounted, mounted })
    }

    /// Returns the places where a file may be. This is the volume that the system's fstab mounts above the file, if
    /// that volume is on this disk. Otherwise these are the root file system, and, for paths in the mount points of
    /// boot file systems, the other volumes. The error says why the volume above the file could not be mounted.
    pub(super) fn places(&self, path: &str) -> Result<Vec<Located<'a>>, String> {
        let path = path.trim_start_matches('/');
        let resolved = self.resolved(path)?;
        if let Some(found) = self.mounted_at(&resolved)? {
            return Ok(vec![found]);
        }
        let on = |volume, path: &str| Located { volume, path: path.to_owned() };
        let mut places: Vec<Located> = self.root.map(|root| on(root, path)).into_iter().collect();
        for path in BOOT_PLACES.iter().filter_map(|place| below(&resolved, place)) {
            places.extend(self.others.iter().map(|volume| on(volume, path)));
        }
        if self.root.is_none() {
            places.extend(self.others.iter().map(|volume| on(volume, path)));
        }
        Ok(places)
    }

    /// Resolves the links of a path, as far as they are in the root file system and not hidden by a mount.
    fn resolved(&self, path: &str) -> Result<String, String> {
        let names = |path: &str| path.rsplit('/').map(str::to_owned).collect::<Vec<String>>();
        let (mut done, mut left, mut links) = (Vec::new(), names(path), 0);
        while let Some(name) = left.pop() {
            match &*name {
                "" | "." => continue,
                ".." => _ = done.pop(),
                _ => done.push(name),
            }
            let path = done.join("/");
            let target = match self.mounted_at(&path)? {
                Some(_) => None,
                None => self.root.and_then(|root| root.root.link_at(&path).ok()?),
            };
            if let Some(target) = target.filter(|_| links < MAX_LINKS) {
                links += 1;
                done.clear();
                left.extend(names(&target));
            }
        }
        Ok(done.join("/"))
    }

    /// Finds the file on the volume that the system's fstab mounts above it, if that volume is on this disk.
    fn mounted_at(&self, path: &str) -> Result<Option<Located<'a>>, String> {
        for (entry, path) in self.mounted.iter().filter_map(|entry| Some((entry, below(path, &entry.place)?))) {
            let is_meant = |volume: &&&Volume| entry.means(&volume.tags());
            if let Some(volume) = self.others.iter().find(is_meant) {
                return Ok(Some(Located { volume, path: path.to_owned() }));
            }
            let is_meant = |place: &&Unmounted| entry.means(&roles::tags(&place.partition, place.file_system.as_ref()));
            if let Some(Unmounted { reason, .. }) = self.unmounted.iter().find(is_meant) {
                return Err(format!("its /{} is on a partition that is not mounted: {reason}", entry.place));
            }
        }
        Ok(None)
    }
}

/// Returns a path relative to a folder; `None` if the path is not in that folder.
fn below<'p>(path: &'p str, folder: &str) -> Option<&'p str> {
    Some(path.strip_prefix(folder)?.strip_prefix('/')?.trim_start_matches('/'))
}
