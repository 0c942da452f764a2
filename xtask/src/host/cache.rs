//! Keeps build results in the user's cache folder, under the digest of their inputs, so that all clones of the
//! repository share them.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};

use crate::host::command::{command, run_quietly};
use crate::host::{files, workspace};

/// The root of all caches: `$XDG_CACHE_HOME/slipway`, or `~/.cache/slipway`.
pub fn root() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => {
            Path::new(&std::env::var_os("HOME").context("finding the cache folder: HOME is not set")?).join(".cache")
        }
    };
    let root = base.join("slipway");
    files::create_dir(&root)?;
    Ok(root)
}

/// Returns a cache folder without a key, such as a cargo target directory. Creates it if it is missing.
pub fn folder(name: &str) -> Result<PathBuf> {
    let folder = root()?.join(name);
    files::create_dir(&folder)?;
    Ok(folder)
}

/// Returns a cargo target directory that all clones of the repository share, so that dependencies are compiled once.
/// For each of `profiles` (arguments of `cargo clean`), the repository's own crates are removed if another clone
/// compiled them: cargo detects changes by file times, which are not comparable between clones.
pub fn cargo_target(name: &str, profiles: &[&[&str]]) -> Result<PathBuf> {
    let target = folder(name)?;
    let (owner, clone) = (target.join("clone"), clone_id()?);
    let _lock = lock(&owner)?;
    mark_used(&target);
    if fs::read_to_string(&owner).is_ok_and(|id| id == clone) {
        return Ok(target);
    }
    for profile in profiles {
        let mut clean = command(workspace::cargo(), ["clean", "--quiet", "--workspace", "--target-dir"]);
        run_quietly(clean.arg(&target).args(*profile).current_dir(workspace::root()))?;
    }
    files::write(&owner, &clone)?;
    Ok(target)
}

/// Identifies this clone. A new clone at the same path gets a new identity.
fn clone_id() -> Result<String> {
    let root = workspace::root();
    let path = root.join("target/slipway/clone");
    if !path.exists() {
        let nonce = format!("{:?} {}", std::time::SystemTime::now(), std::process::id());
        fs::create_dir_all(root.join("target/slipway")).with_context(|| format!("creating {}", path.display()))?;
        files::write(&path, nonce)?;
    }
    let nonce = files::read_text(&path)?;
    Ok(format!("{} {nonce}", root.display()))
}

/// Digest of a build's inputs.
pub struct Key(Sha256);

impl Key {
    /// Starts a key for one kind of build. Raise the number in the name when the recipe changes but its inputs do not.
    pub fn new(kind: &str) -> Self {
        Self(Sha256::new()).with("kind", kind)
    }

    /// Adds one input. Lengths are hashed too, so that different lists of inputs never hash the same bytes.
    pub fn with(mut self, label: &str, value: impl AsRef<[u8]>) -> Self {
        for part in [label.as_bytes(), value.as_ref()] {
            self.0.update((part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
        self
    }

    /// Adds a file's bytes, or every file below a folder with its relative path.
    pub fn with_path(mut self, path: &Path) -> Result<Self> {
        for file in files_below(path)? {
            let name = file.strip_prefix(path).unwrap_or(&file).to_string_lossy().into_owned();
            let bytes = files::read(&file)?;
            self = self.with(&name, bytes);
        }
        Ok(self)
    }

    /// Returns the key as 32 hexadecimal digits, which are enough for a cache.
    pub fn hex(self) -> String {
        base16ct::lower::encode_string(&self.0.finalize())[..32].to_owned()
    }
}

/// Returns all files below a path, sorted. If the path is a file, returns that alone.
pub fn files_below(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() && path.symlink_metadata().is_ok() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for child in files::children(path)? {
        found.extend(files_below(&child)?);
    }
    Ok(found)
}

/// Returns the folder `name/key` of the cache. If it is missing, `build` fills a new folder, which is renamed only on
/// success, so that an interrupted build never looks finished. A second process waits for the first.
pub fn keyed(name: &str, key: Key, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let parent = folder(name)?;
    let key = key.hex();
    let finished = parent.join(&key);
    if finished.exists() {
        mark_used(&finished);
        return Ok(finished);
    }
    let _lock = lock(&finished)?;
    if !finished.exists() {
        let unfinished = parent.join(format!("{key}.unfinished"));
        files::empty_dir(&unfinished)?;
        build(&unfinished)?;
        fs::rename(&unfinished, &finished).with_context(|| format!("creating {}", finished.display()))?;
    }
    Ok(finished)
}

/// Marks an entry as used now, for [`entries`]. Has no effect without write access to the cache.
pub fn mark_used(path: &Path) {
    _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
}

/// An entry of the cache.
#[derive(Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// Path below the cache folder: the kind, and the key if there is one.
    pub name: PathBuf,
    /// Bytes used on the disk.
    pub size: u64,
    /// When a command last used it.
    pub used: SystemTime,
}

/// Lists all entries of the cache, least recently used first.
pub fn entries() -> Result<Vec<CacheEntry>> {
    let root = root()?;
    let mut entries = Vec::new();
    for kind in children(&root)? {
        let below = if kind.is_dir() { children(&kind)? } else { Vec::new() };
        // Keyed entries are listed one by one, others as a whole.
        let is_keyed = below.iter().any(|path| path.is_dir() && is_key(path));
        for path in if is_keyed { below } else { vec![kind] } {
            let metadata = path.metadata().with_context(|| format!("reading {}", path.display()))?;
            let used = metadata.modified().with_context(|| format!("reading {}", path.display()))?;
            let name = path.strip_prefix(&root).unwrap_or(&path).to_owned();
            entries.push(CacheEntry { name, size: size_on_disk(&path)?, used });
        }
    }
    entries.sort_by_key(|entry| entry.used);
    Ok(entries)
}

/// Removes an entry, unless it is being built now. Returns whether it was removed.
pub fn remove(entry: &CacheEntry) -> Result<bool> {
    let path = root()?.join(&entry.name);
    let lock_path = path.with_extension("lock");
    if let Ok(lock) = File::open(&lock_path)
        && lock.try_lock().is_err()
    {
        return Ok(false);
    }
    let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    removed.with_context(|| format!("removing {}", path.display()))?;
    Ok(true)
}

fn is_key(path: &Path) -> bool {
    let name = path.file_stem().unwrap_or_default().as_encoded_bytes();
    name.len() == 32 && name.iter().all(u8::is_ascii_hexdigit)
}

fn children(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = files::children(folder)?;
    paths.retain(|path| path.extension().is_none_or(|end| end != "lock"));
    Ok(paths)
}

/// Returns the size in bytes that du(1) shows: a sparse file uses less than its length.
fn size_on_disk(path: &Path) -> Result<u64> {
    let metadata = path.symlink_metadata().with_context(|| format!("reading {}", path.display()))?;
    let mut size = metadata.blocks() * 512;
    if metadata.is_dir() {
        for child in files::children(path)? {
            size += size_on_disk(&child)?;
        }
    }
    Ok(size)
}

/// Locks a path against other builds. Waits for the lock, and holds it until the result is dropped.
pub fn lock(path: &Path) -> Result<File> {
    let lock_path = path.with_extension("lock");
    let file = File::create(&lock_path).with_context(|| format!("creating {}", lock_path.display()))?;
    file.lock().with_context(|| format!("locking {}", lock_path.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_inputs_apart_that_only_differ_in_their_borders() {
        let one = Key::new("test").with("a", "bc").hex();
        assert_ne!(one, Key::new("test").with("ab", "c").hex());
        assert_ne!(one, Key::new("test").with("a", "b").with("", "c").hex());
        assert_eq!(one, Key::new("test").with("a", "bc").hex());
    }

    #[test]
    fn a_folder_is_keyed_by_names_and_contents() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let key = || Ok::<_, anyhow::Error>(Key::new("test").with_path(folder.path())?.hex());
        fs::create_dir(folder.path().join("sub"))?;
        fs::write(folder.path().join("sub/a"), "1")?;
        let first = key()?;
        fs::write(folder.path().join("sub/a"), "2")?;
        let second = key()?;
        fs::rename(folder.path().join("sub/a"), folder.path().join("sub/b"))?;
        let third = key()?;
        assert!(first != second && second != third && first != third);
        Ok(())
    }
}
