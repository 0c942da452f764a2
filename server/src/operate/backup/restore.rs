//! Makes a data folder from a backup.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use age::Decryptor;
use age::x25519::Identity;
use base16ct::lower::encode_string as hex;
use sha2::{Digest as _, Sha256};
use slipway_protocol::ErrorCode;

use super::{DATABASE, Hashed, IMAGES, SUMS, keys};
use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::base::time::now;
use crate::store;
use crate::store::{Store, history, runs};

/// First bytes of a file that is encrypted with age (age-encryption.org/v1, "Header").
const SEALED: &[u8] = b"age-encryption.org/";
/// Folder for the files until all are verified. A server does not accept a data folder that contains this folder.
const UNVERIFIED: &str = "restoring";
/// Maximum size of the list of digests in bytes, enough for a hundred thousand images.
const MAX_SUMS: u64 = 16 << 20;

/// Makes a data folder, which must be missing or empty, from a backup. Nothing takes effect before everything is
/// verified. An encrypted backup needs one of `identities`, private keys of age. Unfinished runs are held until an
/// operator confirms them. Returns the number of held runs.
pub async fn restore(from: &Path, root: &Path, identities: &[Identity]) -> Result<u64, Error> {
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { doing, path, source }
    };
    check_empty(root)?;
    let unverified = root.join(UNVERIFIED);
    let mut folder = DirBuilder::new();
    folder.recursive(true).mode(0o700).create(unverified.join(IMAGES)).map_err(failed("creating", &unverified))?;
    let restored = async {
        let file = File::open(from).map_err(failed("opening", from))?;
        let mut input = BufReader::new(file);
        let is_sealed = input.fill_buf().map_err(failed("reading", from))?.starts_with(SEALED);
        match (is_sealed, identities) {
            (false, _) => unpack(&mut input, &unverified, from)?,
            (true, []) => {
                let message = format!("the backup {from:?} is encrypted: give a private key with --identity FILE");
                return Err(Error::refused(ErrorCode::InvalidRequest, message));
            }
            (true, identities) => {
                let opened = |source| Error::Seal { doing: "decrypting the backup", source };
                let decryptor = Decryptor::new_buffered(input).map_err(std::io::Error::other).map_err(opened)?;
                let identities = identities.iter().map(|identity| identity as &dyn age::Identity);
                let mut input = decryptor.decrypt(identities).map_err(std::io::Error::other).map_err(opened)?;
                unpack(&mut input, &unverified, from)?;
            }
        }
        // Refuses a schema newer than this program knows, and updates an older one.
        let store = Store::open(&unverified.join(DATABASE)).await?;
        let held = async {
            store.check().await?;
            let mut transaction = store.write().await?;
            let held = runs::hold_restored(&mut transaction).await?;
            history::leap(&mut transaction, "this database was restored from a backup", now()).await?;
            store::commit(transaction).await?;
            Ok(held)
        };
        let held = held.await;
        store.close().await;
        held
    };
    match restored.await {
        Ok(held) => publish(&unverified, root).map(|()| held),
        Err(error) => {
            let _ = fs::remove_dir_all(&unverified);
            Err(error)
        }
    }
}

fn check_empty(root: &Path) -> Result<(), Error> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(Error::File { doing: "reading the folder", path: root.to_owned(), source }),
    };
    let mut names = entries.flatten().map(|entry| entry.file_name());
    match names.find(|name| name != "lost+found") {
        None => Ok(()),
        Some(name) => {
            let message = format!(
                "{root:?} is not empty: it has {name:?}; a backup is restored into a new or empty folder (--data)"
            );
            Err(Error::refused(ErrorCode::Conflict, message))
        }
    }
}

/// Unpacks the files, and checks their digests against `SHA256SUMS`, the last file of the archive.
fn unpack(input: &mut dyn Read, to: &Path, from: &Path) -> Result<(), Error> {
    let failed = |source| Error::File { doing: "reading the backup", path: from.to_owned(), source };
    let damaged = |what: &str| {
        let message = format!("the backup {from:?} cannot be restored: {what}");
        Error::refused(ErrorCode::InvalidRequest, message)
    };
    let mut found = BTreeMap::new();
    let mut archive = tar::Archive::new(input);
    for entry in archive.entries().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        let name = entry.path().map_err(failed)?.to_string_lossy().into_owned();
        if name == SUMS {
            let mut sums = String::new();
            entry.by_ref().take(MAX_SUMS).read_to_string(&mut sums).map_err(failed)?;
            let listed = sums.lines().filter_map(|line| line.split_once("  "));
            let listed: BTreeMap<String, String> =
                listed.map(|(digest, name)| (name.to_owned(), digest.to_owned())).collect();
            return match (listed == found, found.contains_key(DATABASE)) {
                (true, true) => Ok(()),
                (true, false) => Err(damaged("it has no database")),
                (false, _) => Err(damaged("a file is not as it was backed up")),
            };
        }
        if !is_expected(&name) || !entry.header().entry_type().is_file() {
            return Err(damaged(&format!("{name:?} is not a file of a data folder")));
        }
        let path = to.join(&name);
        let written = |source| Error::File { doing: "writing", path: path.clone(), source };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(written)?;
        let mut hashed = Hashed { inner: &mut entry, hash: Sha256::new() };
        std::io::copy(&mut hashed, &mut file).map_err(written)?;
        let digest = hex(&hashed.hash.finalize());
        file.sync_all().map_err(written)?;
        if name.strip_prefix(IMAGES).is_some_and(|image| image.trim_start_matches('/') != digest) {
            return Err(damaged(&format!("the image {name:?} has another digest")));
        }
        found.insert(name, digest);
    }
    Err(damaged("it is truncated, or not a backup made by slipway"))
}

fn is_expected(name: &str) -> bool {
    let is_image = |image: &str| image.len() == 64 && image.bytes().all(|byte| byte.is_ascii_hexdigit());
    name == DATABASE
        || keys().any(|key| key == name)
        || name.strip_prefix(IMAGES).and_then(|image| image.strip_prefix('/')).is_some_and(is_image)
}

/// Moves the files to their places, the database last: without it, no command accepts the folder as a data folder.
fn publish(unverified: &Path, root: &Path) -> Result<(), Error> {
    let moved = |name: &str| {
        let path = unverified.join(name);
        match fs::rename(&path, root.join(name)) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(Error::File { doing: "publishing", path, source })
            }
            _ => Ok(()),
        }
    };
    keys().chain(["images", DATABASE]).try_for_each(moved)?;
    let removed = fs::remove_dir_all(unverified);
    removed.map_err(|source| Error::File { doing: "removing", path: unverified.to_owned(), source })?;
    let data = DataDir::open(root)?;
    let images = fs::read_dir(data.path(IMAGES)).into_iter().flatten().flatten().map(|image| image.path());
    let files = ["images", IMAGES, DATABASE].into_iter().chain(keys()).map(|name| data.path(name)).chain(images);
    for file in files.filter(|file| file.exists()) {
        data.give_to_owner(&file)?;
    }
    let synced = File::open(root).and_then(|folder| folder.sync_all());
    synced.map_err(|source| Error::File { doing: "writing", path: root.to_owned(), source })
}
