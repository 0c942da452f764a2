//! Boot files in the folder that the server hands out. Each build has a folder of its own, named by the digest of its inputs.
//! Links beside them name the files of the newest.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};
use slipway_media::{BuildError, Config, ConfigError, Inputs, Kind, MANIFEST, MachineSettings, Manifest};
use slipway_parts::{ABOUT, Arch, Parts, PartsError};
use slipway_secure_boot::SigningKey;

/// The folder of all builds, in the folder of boot files.
const BUILDS: &str = "media";

/// First bytes of a medium, among which are the settings of a machine.
const BEFORE_SETTINGS: u64 = 8 << 20;

/// What to build, and of what.
#[derive(Clone, Debug)]
pub struct Request {
    /// What machines are told.
    pub config: Config,
    /// The folder of prebuilt parts.
    pub parts: PathBuf,
    /// Name of the kernel.
    pub kernel: String,
    /// Architectures; all for which there are parts if it is empty.
    pub archs: BTreeSet<Arch>,
    /// Kinds of files.
    pub kinds: BTreeSet<Kind>,
}

/// Why there are no boot files.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    /// There are no parts for this.
    #[error(
        "looking for the parts of the boot image: there are none for {wanted} in {}; \
         install the package slipway-parts, or name their folder with --parts", folder.display()
    )]
    NoParts {
        /// Architecture and kernel.
        wanted: String,
        /// Where they were looked for.
        folder: PathBuf,
    },
    /// Parts cannot be used.
    #[error(transparent)]
    Parts(#[from] PartsError),
    /// The files cannot be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The folder of boot files has something else where a link belongs.
    #[error(
        "naming the new boot files: {} is there, and no link that an earlier build made; move it away, then try again",
        path.display()
    )]
    InTheWay {
        /// What is in the way.
        path: PathBuf,
    },
    /// The file has no place for the settings of a machine.
    #[error(
        "writing the settings of a machine to {}: it is not a medium that `slipway-server media build` made, or it is \
         cut off",
        path.display()
    )]
    NoPlace {
        /// The medium.
        path: PathBuf,
    },
    /// The settings are wrong.
    #[error(transparent)]
    Settings(#[from] ConfigError),
    /// A file or folder cannot be read or written.
    #[error("{doing} {}", path.display())]
    File {
        /// What was done.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Makes the files below `out`, signed for Secure Boot if there is a key, and names them. The same request gives the same files.
pub fn make(request: &Request, signer: Option<&SigningKey>, out: &Path) -> Result<Manifest, MediaError> {
    check_kernel(&request.kernel).map_err(BuildError::from)?;
    let kinds: Vec<Kind> = request.kinds.iter().copied().collect();
    request.config.check(&kinds).map_err(BuildError::from)?;
    let parts = parts(request)?;
    let inputs = Inputs { config: &request.config, parts: &parts, kinds: &kinds, signer };
    let id = slipway_media::id(&inputs);
    let builds = out.join(BUILDS);
    // Others wait until these files have their names.
    let is_new = !out.exists();
    let _lock = lock(&builds)?;
    if is_new {
        hand_over(out, out, false)?;
    }
    hand_over(out, &builds, false)?;
    let (folder, unfinished) = (builds.join(&id), builds.join(format!("{id}.unfinished")));
    remove(&unfinished)?;
    let mut write = |path: &str, pieces: &[&[u8]]| {
        let path = unfinished.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let mut file = File::create(path)?;
        pieces.iter().try_for_each(|piece| file.write_all(piece))?;
        file.sync_all()
    };
    let manifest = slipway_media::build(&inputs, &mut write)?;
    let names = names(&manifest);
    if let Some(path) = names.iter().map(|name| out.join(name)).find(|path| is_in_the_way(path)) {
        remove(&unfinished)?;
        return Err(MediaError::InTheWay { path });
    }
    hand_over_all(out, &unfinished, request.config.token.is_some())?;
    match folder.exists() {
        // The same files, unless somebody changed them. A machine may be loading them, so they are there at all times.
        true => exchange(&unfinished, &folder)?,
        false => rename(&unfinished, &folder)?,
    }
    let before = fs::read_link(out.join(MANIFEST)).ok().and_then(|link| build_of(&link));
    for name in &names {
        name_file(out, name, &id)?;
    }
    forget(&builds, &[Some(id), before])?;
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

/// The name becomes part of a path.
fn check_kernel(name: &str) -> Result<(), ConfigError> {
    let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if (1..=64).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    let wrong = "must be a name such as generic or cloud: lower-case letters, digits and hyphens".to_owned();
    Err(ConfigError { key: "kernel", value: name.chars().take(60).collect(), wrong })
}

/// Writes the settings of one machine to their place on a medium, which nothing else of it changes.
pub fn write_settings(path: &Path, settings: &MachineSettings) -> Result<(), MediaError> {
    let bytes = settings.to_bytes()?;
    let failed = |doing| move |source| MediaError::File { doing, path: path.to_owned(), source };
    let file = File::options().read(true).write(true).open(path).map_err(failed("opening"))?;
    let mut head = Vec::new();
    (&file).take(BEFORE_SETTINGS).read_to_end(&mut head).map_err(failed("reading"))?;
    let place = MachineSettings::find(&head).ok_or_else(|| MediaError::NoPlace { path: path.to_owned() })?;
    file.write_all_at(&bytes, place as u64).and_then(|()| file.sync_all()).map_err(failed("writing"))
}

/// The parts that the request is about, one for each architecture.
fn parts(request: &Request) -> Result<Vec<Parts>, MediaError> {
    let folder = |arch: Arch| request.parts.join(format!("{}-{}", arch.name(), request.kernel));
    let archs: Vec<Arch> = match request.archs.is_empty() {
        true => Arch::ALL.into_iter().filter(|arch| folder(*arch).join(ABOUT).exists()).collect(),
        false => request.archs.iter().copied().collect(),
    };
    let missing = archs.iter().find(|arch| !folder(**arch).join(ABOUT).exists());
    if missing.is_some() || archs.is_empty() {
        let arch = missing.map_or("any architecture", |arch| arch.name());
        let wanted = format!("{arch} with kernel {}", request.kernel);
        return Err(MediaError::NoParts { wanted, folder: request.parts.clone() });
    }
    archs.into_iter().map(|arch| Ok(Parts::open(&folder(arch))?)).collect()
}

/// The first names of the paths of all files.
fn names(manifest: &Manifest) -> BTreeSet<String> {
    let first = |path: &str| path.split('/').next().unwrap_or_default().to_owned();
    manifest.assets.iter().map(|asset| first(&asset.path)).chain([MANIFEST.to_owned()]).collect()
}

fn is_in_the_way(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_symlink())
}

/// Makes the link in the place of the one that is there, so that there is one at all times.
fn name_file(out: &Path, name: &str, id: &str) -> Result<(), MediaError> {
    let new = out.join(format!(".{name}.new"));
    remove(&new)?;
    let target = Path::new(BUILDS).join(id).join(name);
    symlink(&target, &new).map_err(|source| MediaError::File { doing: "linking", path: new.clone(), source })?;
    rename(&new, &out.join(name))
}

/// The id of the build that a link leads to.
fn build_of(link: &Path) -> Option<String> {
    Some(link.strip_prefix(BUILDS).ok()?.iter().next()?.to_str()?.to_owned())
}

/// Removes all builds but these. A machine may still be loading the files of the build before.
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

/// Lets the server hand out a file or folder that was made: what root made is given to the owner of the folder of boot files, and
/// what has no secret may be read by all, because the server may run as another user; what has one, by its owner alone.
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

/// Removes links to files of builds that are gone, such as that of a stick if only files for the network are made now.
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

/// Creates the folder and waits until nobody else builds there. The lock ends when the returned file is dropped.
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
