//! Boot files in the bucket, from which all servers of a site take them.
//!
//! Each file of a build is an object, `boot/sha256/HEX`, and so is its manifest. A setting in the database says which
//! build is published. So what a server hands out changes at once, and never to a part of a build.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slipway_media::{AssetInfo, MANIFEST, Manifest};
use slipway_protocol::{Algorithm, Digest, ErrorCode, SiteEventKind};
use tokio::task::spawn_blocking;

use super::make::{NewMedia, Policy};
use super::{MediaError, folder, make};
use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::base::objects::{Bucket, Objects, Stamp};
use crate::base::random;
use crate::base::time::now;
use crate::site::leases::Lease;
use crate::store::history::{self, NewEvent};
use crate::store::published::{self, Published};
use crate::store::{self, Store};

/// Name of the lease of who publishes or removes boot files. While it is held, no object of a build can vanish.
const LEASE: &str = "boot files in the bucket";
/// How long to wait for others that publish boot files.
const PATIENCE: Duration = Duration::from_secs(120);
/// Most bytes that a manifest may have. It names a few dozen files.
const MOST_MANIFEST: u64 = 4 << 20;

/// The bucket for boot files. `None` if the site has no bucket.
pub fn bucket(store: &Store) -> Option<Bucket> {
    match store.objects() {
        Objects::Bucket(bucket, _) => Some(bucket.boot_files()),
        Objects::Folder(_) => None,
    }
}

/// Makes boot files and publishes them. They are in the data folder until they are in the bucket.
pub async fn make_and_publish(
    new: NewMedia,
    parts: &Path,
    store: &Store,
    data: &DataDir,
    policy: Policy,
) -> Result<Manifest, MediaError> {
    let staging = Staging::create(data)?;
    let manifest = make(new, parts, &staging.path, policy).await?;
    publish(store, &staging.path).await?;
    Ok(manifest)
}

/// Stores the newest boot files of a folder in the bucket, and lets all servers of the site hand them out. Returns what
/// was published.
pub async fn publish(store: &Store, out: &Path) -> Result<Published, MediaError> {
    let bucket = bucket(store).ok_or_else(|| {
        let message = "boot files are published in a bucket: give --objects, or set SLIPWAY_OBJECTS, as for `serve`; \
                       without a bucket, a server hands out what is in its own folder (`serve --boot`)";
        Error::refused(ErrorCode::InvalidRequest, message)
    })?;
    let folder = out.to_owned();
    let (build, manifest, text) = blocking(move || {
        let Some(id) = folder::named(&folder) else { return Err(nothing_in(&folder).into()) };
        // Its own folder, in which all files are of one build.
        let build = folder::of_build(&folder, &id);
        let (manifest, text) = folder::check(&build)?;
        Ok::<_, MediaError>((build, manifest, text))
    })
    .await?;
    let lease = Lease::new(store, LEASE, &random::id());
    let busy = || unavailable("others are being published or removed by another command or server");
    let held = lease.wait_for(PATIENCE).await?.ok_or_else(busy)?;
    let new = Published {
        id: manifest.id.clone(),
        manifest: sha256(&slipway_parts::sha256(&text))?,
        at: now(),
        version: manifest.version.clone(),
    };
    let publishing = async {
        for asset in &manifest.assets {
            put(&bucket, &build.join(&asset.path), &sha256(&asset.sha256)?).await?;
        }
        put(&bucket, &build.join(MANIFEST), &new.manifest).await?;
        let mut transaction = store.write().await?;
        if !lease.is_held(&mut transaction).await? {
            return Err(lost());
        }
        published::add(&mut transaction, new.clone()).await?;
        let event = NewEvent::new(format!("the boot files {} of version {} were published", new.id, new.version))
            .by(&transaction);
        history::record(&mut transaction, SiteEventKind::Operator, event, new.at).await?;
        store::commit(transaction).await?;
        Ok::<_, Error>(())
    };
    held.during(publishing).await.unwrap_or_else(|| Err(lost()))?;
    tracing::info!(build = new.id, bucket = bucket.name(), "published boot files");
    Ok(new)
}

/// The manifest of the boot files that are published. The bucket is asked for it unless they are in the folder `boot`.
/// `None` if there are none, or no bucket.
pub async fn newest(store: &Store, boot: Option<&Path>) -> Result<Option<Manifest>, Error> {
    let Some(bucket) = bucket(store) else { return Ok(None) };
    let builds = published::all(&mut *store.read().await?).await?;
    let Some(build) = builds.first() else { return Ok(None) };
    let file = boot.map(|boot| folder::of_build(boot, &build.id).join(MANIFEST));
    let here = blocking(move || file.map(fs::read).transpose()).await.ok().flatten();
    match here.filter(|text| slipway_parts::sha256(text) == build.manifest.hex()) {
        Some(text) => parse(&text).map(Some),
        None => manifest_of(&bucket, build).await.map(|(manifest, _)| Some(manifest)),
    }
}

/// Reads the manifest of a build that is published. Returns it and its text.
pub async fn manifest_of(bucket: &Bucket, build: &Published) -> Result<(Manifest, Vec<u8>), Error> {
    let text = bucket.get(&build.manifest, MOST_MANIFEST).await?;
    Ok((parse(&text)?, text))
}

fn parse(manifest: &[u8]) -> Result<Manifest, Error> {
    serde_json::from_slice(manifest).map_err(|source| Error::Media { source: Box::new(source) })
}

/// Removes the objects of boot files that are not published and are older than this, as `is_old` says. With `dry_run`,
/// removes nothing. Returns digests and sizes in bytes of what was removed or would be.
pub async fn clean(store: &Store, is_old: fn(Stamp) -> bool, dry_run: bool) -> Result<Vec<(Digest, u64)>, Error> {
    let Some(bucket) = bucket(store) else { return Ok(Vec::new()) };
    let lease = Lease::new(store, LEASE, &random::id());
    // Otherwise boot files are being published, which may need some of the objects.
    let Some(held) = lease.take().await? else { return Ok(Vec::new()) };
    let cleaning = async {
        let mut needed = Vec::new();
        for build in published::all(&mut *store.read().await?).await? {
            // Without the manifest, nobody knows which objects are those of the build: then nothing is removed.
            let (manifest, _) = manifest_of(&bucket, &build).await?;
            needed.push(build.manifest);
            for asset in &manifest.assets {
                needed.push(digest_of(asset)?);
            }
        }
        let mut unneeded: Vec<(Digest, Stamp)> = bucket.list().await?.into_iter().collect();
        unneeded.retain(|(digest, seen)| is_old(*seen) && !needed.contains(digest));
        unneeded.sort_by_key(|(digest, _)| digest.to_string());
        for (digest, _) in unneeded.iter().filter(|_| !dry_run) {
            bucket.remove(digest).await?;
        }
        Ok(unneeded.into_iter().map(|(digest, seen)| (digest, seen.size)).collect())
    };
    held.during(cleaning).await.unwrap_or_else(|| Err(lost()))
}

/// SHA-256 of a file of a build.
pub fn digest_of(asset: &AssetInfo) -> Result<Digest, Error> {
    sha256(&asset.sha256)
}

fn sha256(hex: &str) -> Result<Digest, Error> {
    Digest::new(Algorithm::Sha256, hex).map_err(|source| Error::Media { source: Box::new(source) })
}

async fn put(bucket: &Bucket, path: &Path, digest: &Digest) -> Result<(), Error> {
    let failed = |source| Error::File { doing: "opening", path: path.to_owned(), source };
    bucket.put(fs::File::open(path).map_err(failed)?, digest, &mut |_| ()).await
}

fn nothing_in(folder: &Path) -> Error {
    let message = format!("there are no boot files of `media build` in {folder:?}: name the folder that has them");
    Error::refused(ErrorCode::NotFound, message)
}

fn lost() -> Error {
    unavailable("the database could not be reached for too long")
}

fn unavailable(why: &str) -> Error {
    Error::refused(ErrorCode::Unavailable, format!("the boot files are not published: {why}; try again"))
}

async fn blocking<T: Send + 'static, E: Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    spawn_blocking(work).await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}

/// A folder in the data folder, which is removed on drop. It is locked, so an unlocked one is of a killed process.
struct Staging {
    path: PathBuf,
    _lock: fs::File,
}

impl Staging {
    fn create(data: &DataDir) -> Result<Self, Error> {
        data.remove_leftovers();
        loop {
            let path = data.incoming_boot_files();
            let failed = |source| Error::File { doing: "creating the folder", path: path.clone(), source };
            fs::DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
            let lock = fs::File::open(&path).and_then(|folder| folder.lock().map(|()| folder)).map_err(failed)?;
            // Before it was locked, another process may have removed it like one of a killed process.
            if path.exists() {
                return Ok(Self { path, _lock: lock });
            }
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, folder = %self.path.display(), "could not remove boot files that are published");
        }
    }
}
