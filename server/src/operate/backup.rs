//! Copies of everything that a server keeps, made while it runs, and restoring a server from a copy.
//!
//! A backup is a tar archive, encrypted or not, of the database, the keys and certificates, and the images if asked
//! for. The last file is a list of SHA-256 digests. An archive without the list is truncated.

mod restore;

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::Path;

use age::x25519::Recipient;
use base16ct::lower::encode_string as hex;
use sha2::{Digest as _, Sha256};
use slipway_protocol::{ErrorCode, SiteEventKind};

pub use self::restore::restore;
use crate::base::data::{Aside, DataDir};
use crate::base::error::Error;
use crate::base::random;
use crate::base::time::now;
use crate::keys::seal;
use crate::operate::{did, site_keys};
use crate::store::history::NewEvent;
use crate::store::{self, Store};

const DATABASE: &str = "slipway.db";
/// The list of digests, in the format of sha256sum(1).
const SUMS: &str = "SHA256SUMS";
/// Folder of the images in the data folder, and in the archive.
const IMAGES: &str = "images/sha256";
/// Files that belong to one server: its certificates, and the token of the first operator.
const OWN: [&str; 5] = ["server.pem", "server.key", "firmware-server.pem", "firmware-server.key", "operator-token"];

/// The files of keys, certificates and tokens. A data folder need not have all of them.
fn keys() -> impl Iterator<Item = &'static str> {
    site_keys::SHARED.into_iter().chain(OWN)
}

/// Writes a backup to a new file that only its owner may read. The file appears complete or not at all. It is encrypted
/// if there are recipients.
pub async fn back_up(
    store: &Store,
    data: &DataDir,
    to: &Path,
    with_images: bool,
    recipients: &[Recipient],
) -> Result<(), Error> {
    if to.exists() {
        return Err(Error::refused(ErrorCode::Conflict, format!("{to:?} is already there; give another name")));
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut archive = Aside::create(folder, ".slipway-backup-")?;
    let database = Copy::of(store, data).await?;
    match recipients {
        [] => write(archive.file(), data, &database, with_images)?,
        recipients => {
            let mut sealed = seal::stream(recipients, archive.file())?;
            write(&mut sealed, data, &database, with_images)?;
            sealed.finish().map_err(|source| Error::Seal { doing: "encrypting the backup", source })?;
        }
    }
    let synced = archive.file().sync_all();
    synced.map_err(|source| Error::File { doing: "writing", path: to.to_owned(), source })?;
    if !archive.publish_new(to)? {
        return Err(Error::refused(ErrorCode::Conflict, format!("{to:?} is already there; give another name")));
    }
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| Error::File { doing: "writing", path: folder.to_owned(), source })
}

/// Records in the history that a backup was made.
pub async fn tell(store: &Store, is_encrypted: bool) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    let how = if is_encrypted { "an encrypted backup" } else { "a backup that is not encrypted" };
    did(&mut transaction, SiteEventKind::Operator, NewEvent::new(format!("{how} was made"))).await?;
    store::commit(transaction).await
}

/// A copy of the database, as it was at one moment. The file is removed on drop.
struct Copy {
    path: std::path::PathBuf,
    file: File,
}

impl Copy {
    async fn of(store: &Store, data: &DataDir) -> Result<Self, Error> {
        let path = data.path(&format!(".{DATABASE}-{}", random::id()));
        let failed = |source| Error::File { doing: "creating", path: path.clone(), source };
        // SQLite writes the copy into an empty file. While the file is locked, nobody removes it as a leftover.
        let mut options = fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.read(true).write(true).create_new(true).open(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        let copy = Self { path, file };
        store.copy_to(&copy.path).await?;
        copy.file.sync_all().map_err(|source| Error::File { doing: "writing", path: copy.path.clone(), source })?;
        Ok(copy)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn write(output: impl Write, data: &DataDir, database: &Copy, with_images: bool) -> Result<(), Error> {
    let mut archive = Archive { tar: tar::Builder::new(output), sums: String::new() };
    {
        // The lock keeps these files from changing in between, because several of them belong together.
        let _lock = data.lock()?;
        for name in keys() {
            if data.path(name).exists() {
                archive.add(name, &data.path(name))?;
            }
        }
    }
    archive.add(DATABASE, &database.path)?;
    if with_images {
        let folder = data.path(IMAGES);
        let failed = |source| Error::File { doing: "reading the folder", path: folder.clone(), source };
        for image in fs::read_dir(&folder).map_err(failed)? {
            let image = image.map_err(failed)?;
            archive.add(&format!("{IMAGES}/{}", image.file_name().to_string_lossy()), &image.path())?;
        }
    }
    archive.finish()
}

struct Archive<W: Write> {
    tar: tar::Builder<W>,
    sums: String,
}

impl<W: Write> Archive<W> {
    fn add(&mut self, name: &str, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::File { doing: "backing up", path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        file.rewind().map_err(failed)?;
        let mut hashed = Hashed { inner: file.take(size), hash: Sha256::new() };
        self.tar.append_data(&mut header(size), name, &mut hashed).map_err(failed)?;
        self.sums.push_str(&format!("{}  {name}\n", hex(&hashed.hash.finalize())));
        Ok(())
    }

    fn finish(mut self) -> Result<(), Error> {
        let failed = |source| Error::File { doing: "writing", path: SUMS.into(), source };
        let sums = std::mem::take(&mut self.sums);
        self.tar.append_data(&mut header(sums.len() as u64), SUMS, sums.as_bytes()).map_err(failed)?;
        self.tar.into_inner().and_then(|mut output| output.flush()).map_err(failed)
    }
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o600);
    header.set_mtime(now() / 1000);
    header
}

/// Computes the digest of the bytes that are read through it.
struct Hashed<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(buffer.get(..read).unwrap_or_default());
        Ok(read)
    }
}
