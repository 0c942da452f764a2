//! The data folder: everything that a server keeps.
//!
//! ```text
//! slipway.db            SQLite database
//! slipway.lock          locked while the database is opened and brought up to date
//! serve.lock            locked while a server runs; has its process id, URL, and an id
//! ca.pem  ca.key        root certificate that machines trust; its key may be kept elsewhere
//! intermediate.pem .key signs the certificates of the server and the nodes
//! next-*                next root and intermediate, during a rotation
//! server.pem server.key the server's own certificate and key
//! firmware-*            second root and server certificate for firmware that supports only RSA, if needed
//! jwt.key               signs the nodes' JWTs and the tokens for metadata
//! operator-token        token of the first operator of the HTTPS API
//! secure-boot.json      keys for UEFI Secure Boot, if the site has any
//! images/sha256/HEX     images, by the digest of the delivered file, unless they are in a bucket
//! machines/NODE         virtual machines of the server: disk, console, variables of their firmware
//! images/captures/RUN   disk images that a run is uploading
//! ```
//!
//! Only one server at a time uses the folder, together with any number of operators' commands. Files that are made on
//! first use are published atomically, and the first one published wins.

mod aside;
mod custody;
mod database;
mod site_key;

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use slipway_protocol::{Digest, ErrorCode};

pub use self::aside::Aside;
pub use self::custody::{check_apart, check_never_served, check_tables_never_served};
pub use self::database::DatabaseUrl;
pub use self::site_key::SiteKey;
use crate::base::error::Error;
use crate::base::objects::{Bucket, Objects, image_in};
use crate::base::random;
use crate::base::time::{Millis, now, utc};

const DATABASE: &str = "slipway.db";
/// Name of the file that the server of a data folder holds locked.
pub const SERVE_LOCK: &str = "serve.lock";
/// How long a command may hold the server's lock to check whether a server runs. A starting server waits as long.
const LOOKED_AT: Duration = Duration::from_secs(1);
/// Stands before the id of a server in its lock file.
const SERVER: &str = ", server ";
const OPERATOR_TOKEN: &str = "operator-token";
/// Prefix of the names of images that are being copied.
const INCOMING: &str = "incoming-";
/// Prefix of the names of folders with boot files that are being published.
const INCOMING_BOOT_FILES: &str = "incoming-boot-files-";
/// Prefix of the names of images that are being fetched.
const FETCHED: &str = "fetched-";
/// Files that identify a data folder. One of them is enough, because a first start may have failed, or a CA may have
/// been restored or copied from elsewhere.
const OURS: [&str; 4] = [DATABASE, "slipway.lock", SERVE_LOCK, "ca.key"];

/// Keeps other servers off a data folder. Its file's modification time tells when this server last ran.
#[derive(Debug)]
pub struct ServeLock {
    /// The locked file.
    pub file: File,
    /// The id that servers on this folder have in common. One of them runs at a time.
    pub id: String,
}

/// An existing data folder.
#[derive(Clone, Debug)]
pub struct DataDir {
    root: PathBuf,
    postgres: Option<DatabaseUrl>,
    site_key: Option<SiteKey>,
    objects: Objects,
}

/// Where a server keeps everything.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Path of the data folder.
    pub root: PathBuf,
    /// The database, if it is on a PostgreSQL server and not in the data folder.
    pub postgres: Option<DatabaseUrl>,
    /// Decrypts the keys of the site in the database, if they are there.
    pub site_key: Option<SiteKey>,
    /// The bucket with the images, if they are not in the data folder.
    pub bucket: Option<Bucket>,
}

impl From<&Place> for Place {
    fn from(place: &Place) -> Self {
        place.clone()
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for Place {
    fn from(root: &P) -> Self {
        Self { root: root.as_ref().to_owned(), ..Self::default() }
    }
}

/// Returns the process that serves a data folder, as long as it runs.
pub fn served_by(root: &Path) -> Result<Option<u32>, Error> {
    let path = root.join(SERVE_LOCK);
    let failed = |doing| {
        let path = path.clone();
        move |source| Error::File { doing, path, source }
    };
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("opening")(error)),
    };
    match file.try_lock_shared() {
        Ok(()) => return Ok(None),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(source)) => return Err(failed("locking")(source)),
    }
    let holder = fs::read_to_string(&path).map_err(failed("reading"))?;
    let number = holder.strip_prefix("process ").and_then(|rest| rest.split_once(','));
    let starting = || Error::refused(ErrorCode::Conflict, format!("a server is just starting on {root:?}: try again"));
    number.and_then(|(number, _)| number.parse().ok()).map(Some).ok_or_else(starting)
}

impl DataDir {
    /// Opens the folder of a server that was started before. Refuses any other folder without changing it.
    pub fn open(place: impl Into<Place>) -> Result<Self, Error> {
        let place = place.into();
        let root = &place.root;
        // With a site key, a command may run where no server did.
        if place.postgres.is_some() && place.site_key.is_some() {
            return Self::make(place);
        }
        let there = root.join(if place.postgres.is_some() { SERVE_LOCK } else { DATABASE }).try_exists();
        if !there.map_err(|source| Error::File { doing: "opening the data folder", path: root.to_owned(), source })? {
            check_never_served(&root.join(DATABASE), "missing")?;
            let message = format!(
                "there is no slipway data in {root:?}: `slipway-server serve` creates it; \
                 to use another folder, give --data or SLIPWAY_DATA"
            );
            return Err(Error::refused(ErrorCode::NotFound, message));
        }
        Self::make(place)
    }

    /// Opens the folder. Creates it, with mode 700, if it is missing. Refuses a folder with other files but no server's
    /// data.
    pub fn make(place: impl Into<Place>) -> Result<Self, Error> {
        let Place { root, postgres, site_key, bucket } = place.into();
        check_ours(&root)?;
        let make = |path: PathBuf| {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made.map_err(|source| Error::File { doing: "creating the folder", path, source })
        };
        make(root.clone())?;
        Self::close_if_new(&root)?;
        let objects = match bucket {
            Some(bucket) => Objects::Bucket(bucket, root.clone()),
            None => Objects::Folder(root.clone()),
        };
        let data = Self { root, postgres, site_key, objects };
        for folder in ["images", "images/sha256"].map(|folder| data.root.join(folder)) {
            if !folder.exists() {
                check_not_dangling(&folder)?;
                make(folder.clone())?;
                data.give_to_owner(&folder)?;
            }
        }
        Ok(data)
    }

    /// Path of the data folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Path of a file in the folder. The file need not exist.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Locks the folder for a change of several related files. Waits for other holders of the lock. The lock ends when
    /// the returned file is dropped.
    pub fn lock(&self) -> Result<File, Error> {
        let locked = File::open(&self.root).and_then(|folder| folder.lock().map(|()| folder));
        locked.map_err(|source| Error::File { doing: "locking", path: self.root.clone(), source })
    }

    /// Makes the folder's owner the owner of a file that root created in it. The server runs as that user and could not
    /// read the file otherwise.
    pub fn give_to_owner(&self, path: &Path) -> Result<(), Error> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let give = || {
            let (folder, file) = (fs::metadata(&self.root)?, fs::metadata(path)?);
            // In a container, root may lack the right to change owners, but then the owner is already right.
            if (folder.uid(), folder.gid()) == (file.uid(), file.gid()) {
                return Ok(());
            }
            chown(path, Some(folder.uid()), Some(folder.gid()))
        };
        give().map_err(|source| Error::File {
            doing: "setting the owner of the data folder as the owner of",
            path: path.to_owned(),
            source,
        })
    }

    /// Locks the folder for a server that runs under `url`. The lock ends when the returned value is dropped, also when
    /// the process is killed.
    pub fn lock_for_serving(&self, url: &str) -> Result<ServeLock, Error> {
        let id = self.server_id()?.unwrap_or_else(random::id);
        let path = self.root.join(SERVE_LOCK);
        let failed = |doing| {
            let path = path.clone();
            move |source| Error::File { doing, path, source }
        };
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(failed("opening"))?;
        let until = Instant::now() + LOOKED_AT;
        let mut locked = file.try_lock();
        while matches!(locked, Err(TryLockError::WouldBlock)) && Instant::now() < until {
            thread::sleep(LOOKED_AT / 50);
            locked = file.try_lock();
        }
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = fs::read_to_string(&path).map_err(failed("reading"))?;
                let holder = holder.rsplit_once(SERVER).map_or(holder.as_str(), |(holder, _)| holder);
                let message = format!(
                    "another server already runs on {:?} ({holder}): stop it first, or use another folder \
                     with --data",
                    self.root
                );
                return Err(Error::refused(ErrorCode::Conflict, message));
            }
            Err(TryLockError::Error(source)) => return Err(failed("locking")(source)),
        }
        file.set_len(0).map_err(failed("writing"))?;
        let holder = format!("process {}, since {}, {url}{SERVER}{id}", std::process::id(), utc(now()));
        file.write_all(holder.as_bytes()).map_err(failed("writing"))?;
        Ok(ServeLock { file, id })
    }

    /// The id that servers on this folder have in common. `None` if none ran here yet.
    pub fn server_id(&self) -> Result<Option<String>, Error> {
        let text = self.read(SERVE_LOCK)?;
        Ok(text.and_then(|text| text.rsplit_once(SERVER).map(|(_, id)| id.to_owned())))
    }

    /// Keeps servers off the folder, like [`Self::lock_for_serving`], while its tables are copied. The time at which
    /// the last server stopped stays known.
    pub fn lock_for_copying(&self) -> Result<ServeLock, Error> {
        let path = self.root.join(SERVE_LOCK);
        let stopped = fs::metadata(&path).and_then(|found| found.modified());
        let lock = self.lock_for_serving("`slipway-server database copy`")?;
        if let Ok(stopped) = stopped {
            lock.file.set_modified(stopped).map_err(|source| Error::File { doing: "writing", path, source })?;
        }
        Ok(lock)
    }

    /// When the last server on this folder stopped, in milliseconds since 1970. `None` if one runs now or none ever
    /// ran.
    pub fn stopped_at(&self) -> Option<Millis> {
        let file = File::open(self.root.join(SERVE_LOCK)).ok()?;
        // A starting server waits until this lock is dropped.
        file.try_lock_shared().ok()?;
        let modified = file.metadata().and_then(|metadata| metadata.modified()).ok()?;
        let since = modified.duration_since(UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    }

    /// The database, if it is on a PostgreSQL server.
    pub fn postgres(&self) -> Option<&DatabaseUrl> {
        self.postgres.as_ref()
    }

    /// Decrypts the keys of the site in the database, if they are there.
    pub fn site_key(&self) -> Option<&SiteKey> {
        self.site_key.as_ref()
    }

    /// Where the images are.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// The name of the database for people: its URL without the password, or the path of its file and the name of this
    /// host.
    pub fn database_name(&self) -> String {
        match &self.postgres {
            Some(url) => url.name().to_owned(),
            None => {
                let file = std::path::absolute(self.database()).unwrap_or_else(|_| self.database());
                format!("{} on {}", file.display(), rustix::system::uname().nodename().to_string_lossy())
            }
        }
    }

    /// Path of the file of the SQLite database.
    pub fn database(&self) -> PathBuf {
        self.root.join(DATABASE)
    }

    /// Path of the image with this digest, if the images are in the folder. The file need not exist.
    pub fn image(&self, digest: &Digest) -> PathBuf {
        image_in(&self.root, digest)
    }

    /// A new path for an image that is being copied, on the same file system as its final path.
    pub fn incoming_image(&self) -> PathBuf {
        self.root.join("images").join(format!("{INCOMING}{}", random::id()))
    }

    /// The path of an image that is being fetched from another server.
    pub fn fetched_image(&self, digest: &Digest) -> PathBuf {
        self.root.join("images").join(format!("{FETCHED}{}", digest.hex()))
    }

    /// Removes unfinished images and temporary files of commands and servers that were killed, which nobody has locked.
    /// Ignores errors, because nothing depends on the removal.
    pub fn remove_leftovers(&self) {
        let files = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
        let is_copy = |file: &fs::DirEntry| aside::is_temporary(&file.file_name().to_string_lossy());
        let is_image = |file: &fs::DirEntry| file.file_name().to_string_lossy().starts_with(INCOMING);
        let copies = files(self.root.clone()).filter(is_copy);
        for file in copies.chain(files(self.root.join("images")).filter(is_image)) {
            aside::remove_unless_locked(&file.path());
        }
        let is_boot = |file: &fs::DirEntry| file.file_name().to_string_lossy().starts_with(INCOMING_BOOT_FILES);
        for folder in files(self.root.clone()).filter(is_boot) {
            if File::open(folder.path()).is_ok_and(|opened| opened.try_lock().is_ok()) {
                let _ = fs::remove_dir_all(folder.path());
            }
        }
    }

    /// A new path for a folder with boot files that are being published.
    pub fn incoming_boot_files(&self) -> PathBuf {
        self.root.join(format!("{INCOMING_BOOT_FILES}{}", random::id()))
    }

    /// Removes what was fetched of images and then left for this long, in milliseconds. With `dry_run`, only looks for
    /// it. Returns names and sizes in bytes.
    pub fn clean_fetched(&self, age: Millis, dry_run: bool) -> Result<Vec<(String, u64)>, Error> {
        let folder = self.root.join("images");
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| Error::File { doing, path, source }
        };
        let mut cleaned = Vec::new();
        for entry in fs::read_dir(&folder).map_err(failed("reading the folder", &folder))? {
            let path = entry.map_err(failed("reading the folder", &folder))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !name.starts_with(FETCHED) {
                continue;
            }
            let file = File::open(&path).map_err(failed("opening", &path))?;
            let found = file.metadata().map_err(failed("examining", &path))?;
            let left = found.modified().ok().and_then(|changed| changed.elapsed().ok()).unwrap_or_default();
            if file.try_lock().is_err() || left.as_millis() < u128::from(age) {
                continue;
            }
            if !dry_run {
                fs::remove_file(&path).map_err(failed("removing", &path))?;
            }
            cleaned.push((name, found.len()));
        }
        Ok(cleaned)
    }

    /// Folder of images being captured, with a subfolder for each run, on the same file system as the other images.
    /// Created with the first capture.
    pub fn captures(&self) -> PathBuf {
        self.root.join("images/captures")
    }

    /// Path of the file with the part of a run's capture that was received so far.
    pub fn capture(&self, run: &str, name: &str) -> PathBuf {
        self.captures().join(run).join(name)
    }

    /// The first operator's token. An empty file counts as no token, so that an empty token never gives access.
    pub fn operator_token(&self) -> Result<Option<String>, Error> {
        let token = self.read(OPERATOR_TOKEN)?.map(|token| token.trim().to_owned());
        Ok(token.filter(|token| !token.is_empty()))
    }

    /// Sets or replaces the first operator's token.
    pub fn set_operator_token(&self, token: &str) -> Result<(), Error> {
        self.replace(OPERATOR_TOKEN, token)
    }

    /// Removes the first operator's token, if it exists.
    pub fn remove_operator_token(&self) -> Result<(), Error> {
        self.remove(OPERATOR_TOKEN)
    }

    /// Reads the content of a file in the folder. `None` if the file does not exist.
    pub fn read(&self, name: &str) -> Result<Option<String>, Error> {
        let path = self.root.join(name);
        match fs::read_to_string(&path) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::File { doing: "reading", path, source }),
        }
    }

    /// Reads the content of a file in the folder. If the file does not exist, creates it with the content from `make`.
    /// The new file is published atomically; if several processes create it at once, all get the content of the first.
    pub fn read_or_create(&self, name: &str, make: impl FnOnce() -> Result<String, Error>) -> Result<String, Error> {
        if let Some(content) = self.read(name)? {
            return Ok(content);
        }
        let made = make()?;
        let path = self.root.join(name);
        match self.write_aside(name, &made)?.publish_new(&path)? {
            true => Ok(made),
            false => Ok(self.read(name)?.unwrap_or(made)),
        }
    }

    /// Replaces a file in the folder atomically.
    pub fn replace(&self, name: &str, content: &str) -> Result<(), Error> {
        self.write_aside(name, content)?.publish_over(&self.root.join(name))
    }

    /// Removes a file in the folder, if it exists.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.root.join(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => Err(Error::File { doing: "removing", path, source }),
            _ => Ok(()),
        }
    }

    /// Writes the whole content to a file that is not published yet and that only its owner can read.
    fn write_aside(&self, name: &str, content: &str) -> Result<Aside, Error> {
        let mut aside = Aside::create(&self.root, &format!(".{name}-"))?;
        aside.write(content.as_bytes())?;
        aside.give_to_owner_of(&self.root)?;
        Ok(aside)
    }
}

/// Refuses a symbolic link to a missing folder.
fn check_not_dangling(link: &Path) -> Result<(), Error> {
    let Ok(to) = fs::read_link(link) else { return Ok(()) };
    let message = format!(
        "{link:?} is a link to {to:?}, which is missing: mount the file system that has it, or correct the link"
    );
    Err(Error::refused(ErrorCode::Conflict, message))
}

/// Refuses a folder with other files but no server's data.
fn check_ours(root: &Path) -> Result<(), Error> {
    let failed = |source| Error::File { doing: "reading the folder", path: root.to_owned(), source };
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let names = entries.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let ours = names.iter().any(|name| OURS.iter().any(|ours| name == ours));
    // The root of a file system has a lost+found, and one with images may be mounted before the first start.
    let other = names.iter().find(|name| *name != "lost+found" && *name != "images");
    match other.filter(|_| !ours) {
        None => Ok(()),
        Some(other) => {
            let message = format!(
                "{root:?} is not a slipway data folder: it has other files, such as {other:?}; \
                 give a new or empty folder with --data or SLIPWAY_DATA"
            );
            Err(Error::refused(ErrorCode::Conflict, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_is_its_owners_alone() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let data = DataDir::make(&folder.path().join("new"))?;
        let first = data.read_or_create("jwt.key", || Ok(random::token()))?;
        assert_eq!(data.read_or_create("jwt.key", || Ok(random::token()))?, first);
        data.set_operator_token("one")?;
        data.set_operator_token("two")?;
        assert_eq!(data.operator_token()?.as_deref(), Some("two"));
        for name in ["jwt.key", "operator-token"] {
            let mode = fs::metadata(folder.path().join("new").join(name))?.permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let files = fs::read_dir(folder.path().join("new"))?.count();
        assert_eq!(files, 3, "the two and images/, no leftovers");
        Ok(())
    }

    #[test]
    fn who_looks_whether_a_server_runs_keeps_none_from_starting() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let data = DataDir::make(&folder.path().join("new"))?;
        drop(data.lock_for_serving("https://server.test")?);
        let looking = File::open(folder.path().join("new").join(SERVE_LOCK))?;
        looking.lock_shared()?;
        let looked = thread::spawn(move || {
            thread::sleep(LOOKED_AT / 5);
            drop(looking);
        });
        let lock = data.lock_for_serving("https://server.test");
        looked.join().expect("no panic");
        let _lock = lock?;
        assert!(data.lock_for_serving("https://server.test").is_err());
        Ok(())
    }
}
