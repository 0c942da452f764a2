//! Where files of the installed system are, by the paths it knows them by: what it mounts is on other volumes.

use std::cmp::Reverse;
use std::fmt;

use crate::error::Error;
use crate::os_release;
use crate::run_in_target::fstab;
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

/// Which volume has the root file system, by what an operating system says of itself.
fn home(volumes: &[Volume]) -> usize {
    let is_root = |volume: &Volume| os_release::PATHS.iter().any(|path| volume.root.exists(path));
    volumes.iter().position(is_root).unwrap_or_default()
}

/// Where a file is to be looked for that the installed system has at a path: on what its fstab mounts there. Where that names
/// nothing of this disk, in the root, and what is in the folders of boot file systems on the others.
pub(super) fn places<'a>(volumes: &'a [Volume], path: &str) -> Result<Vec<Located<'a>>, Error> {
    let Some(home) = volumes.get(home(volumes)) else { return Ok(Vec::new()) };
    // A link in the root leads into what is mounted there.
    let path = match home.root.followed(path) {
        Ok(target) if !home.root.exists(path) => target,
        _ => path.to_owned(),
    };
    let path = path.trim_start_matches('/');
    let at = |volume, path: &str| Located { volume, path: path.to_owned() };
    let others = volumes.iter().filter(|volume| !std::ptr::eq(*volume, home));

    let mut mounted = fstab::boot_entries(&home.root.read_up_to(FSTAB, MAX_ENTRY)?.unwrap_or_default());
    mounted.sort_by_key(|entry| Reverse(entry.place.len()));
    let by_fstab = mounted.iter().find_map(|entry| {
        let volume = others.clone().find(|volume| entry.means(&volume.partition, &volume.file_system))?;
        Some(at(volume, below(path, &entry.place)?))
    });
    if let Some(found) = by_fstab {
        return Ok(vec![found]);
    }
    let mut places = vec![at(home, path)];
    for path in BOOT_PLACES.iter().filter_map(|place| below(path, place)) {
        places.extend(others.clone().map(|volume| at(volume, path)));
    }
    Ok(places)
}

/// What a path is below a folder.
fn below<'p>(path: &'p str, folder: &str) -> Option<&'p str> {
    Some(path.strip_prefix(folder)?.strip_prefix('/')?.trim_start_matches('/'))
}
