//! Where files of the installed system are, by the paths it knows them by: what it mounts is on other volumes.

use std::cmp::Reverse;
use std::fmt;

use crate::error::Error;
use crate::mount::LookedAt;
use crate::os_release;
use crate::run_in_target::fstab;
use crate::target_root::MAX_LINKS;
use crate::volume::{MAX_ENTRY, Volume};

const FSTAB: &str = "etc/fstab";
/// Where boot file systems are mounted, the inner ones first.
const BOOT_PLACES: &[&str] = &["boot/efi", "boot", "efi"];

/// A file, there or not.
#[derive(Clone, Debug)]
pub(super) struct Located<'a> {
    pub(super) volume: &'a Volume,
    /// On that volume.
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

/// The volumes of a disk as its system has them.
pub(super) struct System<'a> {
    /// The one with the root file system, by what an operating system says of itself.
    root: Option<&'a Volume>,
    others: Vec<&'a Volume>,
    /// Partitions that could not be mounted, each with the reason.
    unmounted: &'a LookedAt,
    /// What the system mounts for booting, the inner ones first.
    mounted: Vec<fstab::Entry>,
}

impl<'a> System<'a> {
    pub(super) fn new(volumes: &'a [Volume], unmounted: &'a LookedAt) -> Result<Self, Error> {
        let is_root = |volume: &&Volume| os_release::PATHS.iter().any(|path| volume.root.exists(path));
        let root = volumes.iter().find(is_root);
        let others = volumes.iter().filter(|volume| !root.is_some_and(|root| std::ptr::eq(*volume, root))).collect();
        let fstab = root.map(|root| root.root.head(FSTAB, MAX_ENTRY)).transpose()?.flatten().unwrap_or_default();
        let mut mounted = fstab::boot_entries(&String::from_utf8_lossy(&fstab));
        mounted.sort_by_key(|entry| Reverse(entry.place.len()));
        Ok(Self { root, others, unmounted, mounted })
    }

    /// Where a file is to be looked for that the system has at a path: on what its fstab mounts there. Where that names nothing of
    /// this disk, in the root, and what is in the folders of boot file systems on the others. An error says of what is mounted
    /// there why it could not be looked into.
    pub(super) fn places(&self, path: &str) -> Result<Vec<Located<'a>>, String> {
        let (path, mut target) = (path.trim_start_matches('/'), path.to_owned());
        // A link in the root may lead into what is mounted there, and what that covers is not seen.
        for _ in 0..MAX_LINKS {
            if let Some(found) = self.mounted_at(target.trim_start_matches('/'))? {
                return Ok(vec![found]);
            }
            match self.root.and_then(|root| root.root.link_at(&target).ok()?) {
                Some(next) => target = next,
                None => break,
            }
        }
        let target = target.trim_start_matches('/');
        let in_root = self.root.map(|volume| Located { volume, path: path.to_owned() });
        let on_others = BOOT_PLACES
            .iter()
            .filter_map(|place| below(target, place))
            .flat_map(|path| self.others.iter().map(move |volume| Located { volume, path: path.to_owned() }));
        Ok(in_root.into_iter().chain(on_others).collect())
    }

    /// A file on what the system's fstab mounts above it, if that is on this disk.
    fn mounted_at(&self, path: &str) -> Result<Option<Located<'a>>, String> {
        for (entry, path) in self.mounted.iter().filter_map(|entry| Some((entry, below(path, &entry.place)?))) {
            let is_meant = |volume: &&&Volume| entry.means(&volume.partition, &volume.file_system);
            if let Some(volume) = self.others.iter().find(is_meant) {
                return Ok(Some(Located { volume, path: path.to_owned() }));
            }
            let mut refusals = self.unmounted.refusals.iter().zip(&self.unmounted.unmounted);
            if let Some((refusal, _)) = refusals.find(|(_, (partition, found))| entry.means(partition, found)) {
                return Err(format!("it has /{} on a partition that cannot be mounted: {refusal}", entry.place));
            }
        }
        Ok(None)
    }
}

/// What a path is below a folder.
fn below<'p>(path: &'p str, folder: &str) -> Option<&'p str> {
    Some(path.strip_prefix(folder)?.strip_prefix('/')?.trim_start_matches('/'))
}
