//! The folder of boot files that the server hands out. Each build has a folder of its own below `media`, named by the
//! digest of the build's inputs. Links next to `media` lead to the files of the newest build.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use slipway_media::{BuildError, MANIFEST, Manifest, Sink};

use super::MediaError;

/// The folder of all builds, in the folder of boot files.
const BUILDS: &str = "media";

/// Writes the files of the build with this id to its own folder below `out`, and gives them their usual names. If they
/// have a secret, only the owner of `out` may read them.
pub fn add(
    out: &Path,
    id: &str,
    is_secret: bool,
    build: impl FnOnce(&mut Sink) -> Result<Manifest, BuildError>,
) -> Result<Manifest, MediaError> {
    let builds = out.join(BUILDS);
    // Other builds wait until the files of this build have their names.
    let is_new = !out.exists();
    let _lock = lock(&builds)?;
    if is_new {
        hand_over(out, out, false)?;
    }
    hand_over(out, &builds, false)?;
    let (folder, unfinished) = (builds.join(id), builds.join(format!("{id}.unfinished")));
    remove(&unfinished)?;
    let mut write = |path: &str, pieces: &[&[u8]]| {
        let path = unfinished.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let mut file = File::create(path)?;
        pieces.iter().try_for_each(|piece| file.write_all(piece))?;
        file.sync_all()
    };
    let manifest = build(&mut write)?;
    let names = names(&manifest);
    if let Some(path) = names.iter().map(|name| out.join(name)).find(|path| is_in_the_way(path)) {
        remove(&unfinished)?;
        return Err(MediaError::InTheWay { path });
    }
    hand_over_all(out, &unfinished, is_secret)?;
    match folder.exists() {
        // The folder has the same files, unless somebody changed them. They are there at all times, because a machine
        // may be loading them.
        true => exchange(&unfinished, &folder)?,
        false => rename(&unfinished, &folder)?,
    }
    let before = fs::read_link(out.join(MANIFEST)).ok().and_then(|link| build_of(&link));
    for name in &names {
        name_file(out, name, id)?;
    }
    forget(&builds, &[Some(id.to_owned()), before])?;
    remove_dangling(out)?;
    Ok(manifest)
}

/// The manifest of the newest build in a folder of boot files, if there is one.
pub fn newest(out: &Path) -> Result<Option<Manifest>, MediaError> {
    let path = out.join(MANIFEST);
    let failed = |source| MediaError::File { doing: "reading", path: path.clone(), source };
    match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => serde_json::from_slice(&read.map_err(failed)?).map(Some).map_err(|error| failed(error.into())),
    }
}

/// Returns the first component of each file's path, such as the folder of an architecture. Each becomes a link.
fn names(manifest: &Manifest) -> BTreeSet<String> {
    let first = |path: &str| path.split('/').next().unwrap_or_default().to_owned();
    manifest.assets.iter().map(|asset| first(&asset.path)).chain([MANIFEST.to_owned()]).collect()
}

fn is_in_the_way(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_symlink())
}

/// Replaces the link atomically, so that it exists at all times.
fn name_file(out: &Path, name: &str, id: &str) -> Result<(), MediaError> {
    let new = out.join(format!(".{name}.new"));
    remove(&new)?;
    let target = Path::new(BUILDS).join(id).join(name);
    symlink(&target, &new).map_err(|source| MediaError::File { doing: "linking", path: new.clone(), source })?;
    rename(&new, &out.join(name))
}

/// Returns the id of the build that a link leads to. `None` for any other link.
fn build_of(link: &Path) -> Option<String> {
    Some(link.strip_prefix(BUILDS).ok()?.iter().next()?.to_str()?.to_owned())
}

/// Removes all builds except those with the ids in `keep`, which include the previous build: a machine may still be
/// loading its files.
fn forget(builds: &Path, keep: &[Option<String>]) -> Result<(), MediaError> {
    let failed = |source| MediaError::File { doing: "reading", path: builds.to_owned(), source };
    for entry in fs::read_dir(builds).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if !keep.iter().flatten().any(|id| name == id.as_str()) {
            remove(&builds.join(name))?;
        }
    }
    Ok(())
}

/// Lets the server hand out a new file or folder. If root made it, the owner of the folder of boot files becomes its
/// owner. All users may read it, because the server may run as another user; if it has a secret, only its owner may.
fn hand_over(out: &Path, made: &Path, is_secret: bool) -> Result<(), MediaError> {
    let failed = |doing| move |source| MediaError::File { doing, path: made.to_owned(), source };
    if rustix::process::geteuid().is_root() {
        let given = fs::metadata(out).and_then(|owner| lchown(made, Some(owner.uid()), Some(owner.gid())));
        given.map_err(failed("changing the owner of"))?;
    }
    let mode = match (made.is_dir(), is_secret) {
        (true, false) => 0o755,
        (true, true) => 0o700,
        (false, false) => 0o644,
        (false, true) => 0o600,
    };
    fs::set_permissions(made, Permissions::from_mode(mode)).map_err(failed("changing the mode of"))
}

fn hand_over_all(out: &Path, folder: &Path, is_secret: bool) -> Result<(), MediaError> {
    hand_over(out, folder, is_secret)?;
    let failed = |source| MediaError::File { doing: "reading", path: folder.to_owned(), source };
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        match path.is_dir() {
            true => hand_over_all(out, &path, is_secret)?,
            false => hand_over(out, &path, is_secret)?,
        }
    }
    Ok(())
}

/// Removes links to files of builds that are gone, such as the link to a stick's image if only files for the network
/// are made now.
fn remove_dangling(out: &Path) -> Result<(), MediaError> {
    let failed = |source| MediaError::File { doing: "reading", path: out.to_owned(), source };
    for entry in fs::read_dir(out).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_ours = fs::read_link(&path).is_ok_and(|link| build_of(&link).is_some());
        if is_ours && !path.exists() {
            remove(&path)?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), MediaError> {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    let removed = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(MediaError::File { doing: "removing", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Creates the folder and waits until no other process builds there. The lock ends when the returned file is dropped.
fn lock(builds: &Path) -> Result<File, MediaError> {
    let failed = |doing| move |source| MediaError::File { doing, path: builds.to_owned(), source };
    fs::create_dir_all(builds).map_err(failed("creating"))?;
    let folder = File::open(builds).map_err(failed("opening"))?;
    folder.lock().map_err(failed("locking"))?;
    Ok(folder)
}

fn exchange(one: &Path, other: &Path) -> Result<(), MediaError> {
    let exchanged = rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
    exchanged.map_err(|source| MediaError::File { doing: "replacing", path: other.to_owned(), source: source.into() })
}

fn rename(from: &Path, to: &Path) -> Result<(), MediaError> {
    fs::rename(from, to).map_err(|source| MediaError::File { doing: "replacing", path: to.to_owned(), source })
}
