//! The folder of boot files that the server hands out. Each build has a folder of its own below `media`, named by the
//! digest of the build's inputs. Links next to `media` lead to the files of the newest build.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};
use sha2::{Digest as _, Sha256};
use slipway_media::{AssetInfo, BuildError, MANIFEST, Manifest, Sink};

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
    let unfinished = Unfinished::begin(out, id)?;
    remove(unfinished.path())?;
    let mut write = |path: &str, pieces: &[&[u8]]| {
        let path = unfinished.path().join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let mut file = File::create(path)?;
        pieces.iter().try_for_each(|piece| file.write_all(piece))?;
        file.sync_all()
    };
    let manifest = build(&mut write)?;
    if let Err(error) = check_names(out, &manifest) {
        remove(unfinished.path())?;
        return Err(error);
    }
    let before = named(out);
    unfinished.finish(is_secret)?;
    name(out, &manifest, &[Some(id.to_owned()), before])?;
    Ok(manifest)
}

/// A build whose files are being written. Other builds in the same folder of boot files wait until it ends.
pub struct Unfinished {
    out: PathBuf,
    id: String,
    path: PathBuf,
    _lock: File,
}

impl Unfinished {
    /// Waits for other builds, and begins the one with this id. There may be files of it already.
    fn begin(out: &Path, id: &str) -> Result<Self, MediaError> {
        let is_new = !out.exists();
        let folder = open_builds(out)?;
        folder.lock().map_err(|source| failed("locking", &out.join(BUILDS))(source))?;
        Self::locked(out, id, folder, is_new)
    }

    /// Begins a build in the folder without waiting. `None` while there is another build.
    pub fn try_begin(out: &Path, id: &str) -> Result<Option<Self>, MediaError> {
        let is_new = !out.exists();
        let folder = open_builds(out)?;
        match folder.try_lock() {
            Ok(()) => Self::locked(out, id, folder, is_new).map(Some),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(failed("locking", &out.join(BUILDS))(source)),
        }
    }

    fn locked(out: &Path, id: &str, lock: File, is_new: bool) -> Result<Self, MediaError> {
        if is_new {
            hand_over(out, out, false)?;
        }
        hand_over(out, &out.join(BUILDS), false)?;
        let path = out.join(BUILDS).join(format!("{id}.unfinished"));
        Ok(Self { out: out.to_owned(), id: id.to_owned(), path, _lock: lock })
    }

    /// The folder for its files. It need not exist.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the complete build its folder. The usual names do not lead there yet. If the files have a secret, only the
    /// owner of the folder of boot files may read them.
    pub fn finish(&self, is_secret: bool) -> Result<(), MediaError> {
        hand_over_all(&self.out, &self.path, is_secret)?;
        let folder = of_build(&self.out, &self.id);
        match folder.exists() {
            // The folder has the same files, unless somebody changed them. They are there at all times, because a
            // machine may be loading them.
            true => exchange(&self.path, &folder)?,
            false => rename(&self.path, &folder)?,
        }
        remove(&self.path)
    }
}

/// The folder of the build with this id, in a folder of boot files. It need not exist.
pub fn of_build(out: &Path, id: &str) -> PathBuf {
    out.join(BUILDS).join(id)
}

/// Lets the usual names lead to a build that is in the folder of boot files, and removes all builds except those in
/// `keep`.
pub fn name(out: &Path, manifest: &Manifest, keep: &[Option<String>]) -> Result<(), MediaError> {
    check_names(out, manifest)?;
    for name in &names(manifest) {
        name_file(out, name, &manifest.id)?;
    }
    forget(&out.join(BUILDS), keep)?;
    remove_dangling(out)
}

/// Refuses if anything but a link of an earlier build has a name that a build needs.
fn check_names(out: &Path, manifest: &Manifest) -> Result<(), MediaError> {
    match names(manifest).iter().map(|name| out.join(name)).find(|path| is_in_the_way(path)) {
        None => Ok(()),
        Some(path) => Err(MediaError::InTheWay { path }),
    }
}

/// The id of the build that the usual names lead to. `None` if there is none, or if somebody put files there.
pub fn named(out: &Path) -> Option<String> {
    fs::read_link(out.join(MANIFEST)).ok().and_then(|link| build_of(&link))
}

/// Where the files for an architecture are: the path below the folder of boot files, with the id of their build, so
/// that a machine that is told this path gets all of its files from one build.
pub fn place_of(out: &Path, arch: &str) -> PlaceOf {
    match fs::read_link(out.join(arch)).ok().and_then(|link| build_of(&link)) {
        Some(id) => PlaceOf::Build(id),
        None if out.join(arch).exists() => PlaceOf::Files,
        None => PlaceOf::Nowhere,
    }
}

/// Where the files for an architecture are in a folder of boot files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceOf {
    /// In the build with this id.
    Build(String),
    /// Somebody put them there.
    Files,
    /// There are none.
    Nowhere,
}

/// The path below a folder of boot files at which a file of a build always is, as long as the build is kept.
pub fn path_of(id: &str, path: &str) -> String {
    format!("{BUILDS}/{id}/{path}")
}

/// The id of the build that a path below a folder of boot files names. `None` for the usual names.
pub fn build_at(path: &str) -> Option<&str> {
    path.strip_prefix(BUILDS)?.trim_start_matches('/').split('/').next()
}

/// Reads the manifest of the build in a folder, and checks all of its files. Returns the manifest and its text. Fails
/// if a file is missing, or is not the one in the manifest.
pub fn check(folder: &Path) -> Result<(Manifest, Vec<u8>), MediaError> {
    let path = folder.join(MANIFEST);
    let text = fs::read(&path).map_err(failed("reading", &path))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| failed("reading", &path)(error.into()))?;
    for asset in &manifest.assets {
        let path = folder.join(&asset.path);
        if !is_whole(&path, asset).map_err(failed("reading", &path))? {
            return Err(MediaError::Changed { path });
        }
    }
    Ok((manifest, text))
}

/// Whether a file has the size and the digest of a manifest.
pub fn is_whole(path: &Path, asset: &AssetInfo) -> io::Result<bool> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() != asset.size {
        return Ok(false);
    }
    let (mut hash, mut piece) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(base16ct::lower::encode_string(&hash.finalize()) == asset.sha256),
            count => hash.update(piece.get(..count).unwrap_or_default()),
        }
    }
}

/// The manifest of the newest build in a folder of boot files, if there is one.
pub fn newest(out: &Path) -> Result<Option<Manifest>, MediaError> {
    let path = out.join(MANIFEST);
    let failed = failed("reading", &path);
    match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => serde_json::from_slice(&read.map_err(&failed)?).map(Some).map_err(|error| failed(error.into())),
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

/// Creates the folder of all builds, and opens it, so that it can be locked. The lock ends when the file is dropped.
fn open_builds(out: &Path) -> Result<File, MediaError> {
    let builds = out.join(BUILDS);
    fs::create_dir_all(&builds).map_err(failed("creating", &builds))?;
    File::open(&builds).map_err(failed("opening", &builds))
}

fn failed(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> MediaError {
    let path = path.to_owned();
    move |source| MediaError::File { doing, path: path.clone(), source }
}

fn exchange(one: &Path, other: &Path) -> Result<(), MediaError> {
    let exchanged = rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
    exchanged.map_err(|source| MediaError::File { doing: "replacing", path: other.to_owned(), source: source.into() })
}

fn rename(from: &Path, to: &Path) -> Result<(), MediaError> {
    fs::rename(from, to).map_err(|source| MediaError::File { doing: "replacing", path: to.to_owned(), source })
}
