//! The keys that all servers of a site use: the certificate authority, the secret of tokens, and the keys for Secure
//! Boot.
//!
//! They are files in the data folder. With a site key, the database has them too, encrypted to that key, and the files
//! are only a copy that is made again from the database. So a new server needs nothing but the database and the site
//! key, and a change that one process makes reaches all servers.

use std::collections::BTreeMap;
use std::io::Write;

use slipway_protocol::{ErrorCode, SiteEventKind};

use super::did;
use crate::base::data::{DataDir, SiteKey};
use crate::base::error::Error;
use crate::keys::seal;
use crate::store::history::NewEvent;
use crate::store::site_keys::Stored;
use crate::store::{self, Store, site_keys};

/// The files that servers share. Each server has a certificate of its own.
pub const SHARED: [&str; 12] = [
    "ca.pem",
    "ca.key",
    "intermediate.pem",
    "intermediate.key",
    "next-ca.pem",
    "next-ca.key",
    "next-intermediate.pem",
    "next-intermediate.key",
    "firmware-ca.pem",
    "firmware-ca.key",
    "jwt.key",
    "secure-boot.json",
];

/// Content of files, by their names.
type Files = BTreeMap<String, String>;

/// Brings the files in the data folder to the state of the database, if the database has the keys.
pub async fn take_over(store: &Store, data: &DataDir) -> Result<Stored, Error> {
    let stored = site_keys::read(&mut *store.read().await?).await?;
    match (&stored.sealed, data.site_key()) {
        (Some(sealed), Some(key)) => write(data, &open(key, sealed)?)?,
        (Some(_), None) => {
            let message = "the database has the keys of this site, encrypted to the site key: give the file with it as \
                           --site-key or SLIPWAY_SITE_KEY";
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        (None, _) => {}
    }
    Ok(stored)
}

/// Changes the files of keys, and has all running servers take the change over. `what` tells it in the history. If
/// another process changes them at the same time, one of the two is refused, and has changed nothing.
pub async fn change<T>(
    store: &Store,
    data: &DataDir,
    what: &str,
    change: impl FnOnce(&DataDir) -> Result<T, Error>,
) -> Result<T, Error> {
    let known = take_over(store, data).await?;
    let before = read(data)?;
    let changed = change(data)?;
    let after = read(data)?;
    // The first command with a site key stores what only the folder had before.
    let is_stored = known.sealed.is_some() || data.site_key().is_none();
    if is_stored && before == after {
        return Ok(changed);
    }
    let sealed = data.site_key().map(|key| seal(key, &after)).transpose()?;
    // Not from the beginning on: making keys may take long, and others could not write meanwhile.
    let mut transaction = store.write().await?;
    let is_newest = site_keys::replace(&mut transaction, known.revision, sealed.as_deref()).await?;
    let is_changed = is_newest || data.site_key().is_none();
    // The first keys of a site change nothing for anybody.
    if is_changed && before != after && !before.is_empty() {
        did(&mut transaction, SiteEventKind::Operator, NewEvent::new(what)).await?;
    }
    store::commit(transaction).await?;
    if is_changed {
        return Ok(changed);
    }
    take_over(store, data).await?;
    let message = "another process changed the keys of the site at the same time; look at its change, and try again";
    Err(Error::refused(ErrorCode::Conflict, message))
}

fn read(data: &DataDir) -> Result<Files, Error> {
    let mut files = Files::new();
    for name in SHARED {
        files.extend(data.read(name)?.map(|content| (name.to_owned(), content)));
    }
    Ok(files)
}

fn write(data: &DataDir, files: &Files) -> Result<(), Error> {
    let _lock = data.lock()?;
    for name in SHARED {
        match (files.get(name), data.read(name)?) {
            (Some(content), found) if found.as_ref() != Some(content) => data.replace(name, content)?,
            (None, Some(_)) => data.remove(name)?,
            _ => {}
        }
    }
    Ok(())
}

fn seal(key: &SiteKey, files: &Files) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Seal { doing: "encrypting the keys of the site", source };
    let mut sealed = Vec::new();
    let mut writer = seal::stream(&[key.recipient()], &mut sealed)?;
    writer.write_all(store::to_json(files).as_bytes()).and_then(|()| writer.finish().map(drop)).map_err(failed)?;
    Ok(sealed)
}

fn open(key: &SiteKey, sealed: &[u8]) -> Result<Files, Error> {
    let Some(text) = key.open(sealed)? else {
        let message = format!(
            "the keys of this site in the database are encrypted to another site key than the given one, which has the \
             public key {}: give the site key of the other servers",
            key.recipient()
        );
        return Err(Error::refused(ErrorCode::Conflict, message));
    };
    // Without the parser's message, which may contain part of a key.
    serde_json::from_slice(&text).map_err(|_| {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "they do not have slipway's format");
        Error::Seal { doing: "reading the keys of the site", source }
    })
}
