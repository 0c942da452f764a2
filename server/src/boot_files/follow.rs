//! Keeps a server's folder of boot files as it is published: fetches what is missing from the bucket.

use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path};
use std::time::Duration;

use slipway_media::{MANIFEST, Manifest};
use slipway_protocol::ErrorCode;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::MediaError;
use super::folder::{self, PlaceOf, Unfinished};
use super::published::{self, digest_of, manifest_of};
use crate::base::error::{Error, chain};
use crate::base::objects::Bucket;
use crate::base::readiness::{Need, Readiness};
use crate::store::Store;
use crate::store::published::{self as builds, Published};

/// Interval at which is looked for published boot files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause after boot files could not be fetched, and after many failures.
const AGAIN: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// What clients are told of a server without the boot files that are published.
const NOT_FETCHED: &str = "the published boot files could not be fetched from the bucket";

/// What a server has in its folder.
#[derive(Default)]
struct Following {
    /// The builds that are in the folder, as they are published.
    has: Vec<Published>,
    /// When to try again, and how long the pause after that is.
    again: Option<(Instant, Duration)>,
    /// The builds that could not be fetched.
    failed: Vec<Published>,
}

/// Keeps the folder `boot` as boot files are published, as long as the server runs. Never returns.
pub async fn keep(store: &Store, boot: Option<&Path>, readiness: &Readiness) {
    let (Some(bucket), Some(boot)) = (published::bucket(store), boot) else { return std::future::pending().await };
    let mut following = Following::default();
    let mut is_failing = false;
    loop {
        match wanted(store).await {
            Ok(wanted) => {
                is_failing = false;
                following.follow(&bucket, boot, wanted, readiness).await;
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(error = chain(&error), "could not look for published boot files");
                }
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn wanted(store: &Store) -> Result<Vec<Published>, Error> {
    builds::all(&mut *store.read().await?).await
}

impl Following {
    async fn follow(&mut self, bucket: &Bucket, boot: &Path, wanted: Vec<Published>, readiness: &Readiness) {
        let Some(newest) = wanted.first() else { return };
        let is_named = folder::named(boot).as_ref() == Some(&newest.id);
        if wanted == self.has && is_named {
            return;
        }
        if wanted == self.has {
            tracing::warn!(
                folder = %boot.display(),
                "the newest boot files in the folder are not those that are published, which are handed out again"
            );
        }
        let is_known = wanted == self.failed;
        if is_known && self.again.is_some_and(|(again, _)| Instant::now() < again) {
            return;
        }
        match place_all(bucket, boot, &wanted).await {
            // Somebody makes boot files in the folder.
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(build = newest.id, folder = %boot.display(), "the published boot files are in place");
                readiness.have(Need::BootFiles);
                *self = Self { has: wanted, ..Self::default() };
            }
            Err(error) => {
                readiness.lack(Need::BootFiles, NOT_FETCHED, &chain(&error));
                let pause = self.again.filter(|_| is_known).map_or(AGAIN, |(_, pause)| pause);
                self.again = Some((Instant::now() + pause, (pause * 2).min(LONGEST_PAUSE)));
                self.failed = wanted;
            }
        }
    }
}

/// Puts all published builds into the folder, and lets the usual names lead to the newest. Other builds are removed.
/// Returns whether it did: another process may be working in the folder.
async fn place_all(bucket: &Bucket, boot: &Path, wanted: &[Published]) -> Result<bool, MediaError> {
    let mut keep: Vec<Option<String>> = wanted.iter().map(|build| Some(build.id.clone())).collect();
    if wanted.len() == 1 {
        // A machine may be booting from what was here before the first publication.
        keep.push(folder::named(boot));
    }
    for (number, build) in wanted.iter().enumerate() {
        let Some(unfinished) = Unfinished::try_begin(boot, &build.id)? else { return Ok(false) };
        let placed = match in_place(boot, build).await {
            Some(manifest) => Ok(manifest),
            None => fetch(bucket, build, &unfinished).await,
        };
        match placed {
            Ok(manifest) if number == 0 => {
                let (boot, keep) = (boot.to_owned(), keep.clone());
                blocking(move || folder::name(&boot, &manifest, &keep)).await?;
            }
            Err(error) if number > 0 && !is_transient(&error) => {
                // Machines that began with it begin again with the newest.
                tracing::warn!(
                    build = build.id,
                    error = chain(&error),
                    "could not fetch the boot files that were published before the newest"
                );
            }
            placed => drop(placed?),
        }
    }
    Ok(true)
}

fn is_transient(error: &MediaError) -> bool {
    matches!(error, MediaError::Site(Error::Objects { source, .. }) if source.is_transient())
}

/// The manifest of a build that is in the folder as it was published.
async fn in_place(boot: &Path, build: &Published) -> Option<Manifest> {
    let folder = folder::of_build(boot, &build.id);
    let (manifest, text) = blocking(move || folder::check(&folder)).await.ok()?;
    (slipway_parts::sha256(&text) == build.manifest.hex()).then_some(manifest)
}

/// Fetches the files of a build, except those that an earlier attempt fetched, and gives the build its folder.
async fn fetch(bucket: &Bucket, build: &Published, unfinished: &Unfinished) -> Result<Manifest, MediaError> {
    let (manifest, text) = manifest_of(bucket, build).await?;
    let folder = unfinished.path();
    let file = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| MediaError::File { doing, path, source }
    };
    let mut maker = fs::DirBuilder::new();
    // Some files may have a secret. Who may read them is set at the end.
    maker.recursive(true).mode(0o700).create(folder).map_err(file("creating", folder))?;
    for asset in &manifest.assets {
        if !is_plain(&asset.path) {
            let message = format!("the manifest of the boot files {} has the path {:?}", build.id, asset.path);
            return Err(Error::refused(ErrorCode::InvalidRequest, message).into());
        }
        let (path, wanted) = (folder.join(&asset.path), asset.clone());
        let there = path.clone();
        if blocking(move || folder::is_whole(&there, &wanted)).await.unwrap_or(false) {
            continue;
        }
        path.parent().map_or(Ok(()), |parent| maker.create(parent)).map_err(file("creating", &path))?;
        bucket.fetch(&digest_of(asset)?, asset.size, &path).await?;
    }
    let path = folder.join(MANIFEST);
    let write = || {
        let mut file = fs::File::create(&path)?;
        file.write_all(&text)?;
        file.sync_all()
    };
    write().map_err(file("writing", &path))?;
    unfinished.finish(manifest.has_token)?;
    Ok(manifest)
}

/// Whether a path is relative and has only plain names.
fn is_plain(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Where a machine of this architecture finds its boot files: a path below `/boot/` at which all of its files are of
/// one build, on whichever server of the site it asks. If somebody put files into the folder, their path.
pub async fn place_for(store: &Store, boot: &Path, arch: &str) -> Result<String, Error> {
    let place = folder::place_of(boot, arch);
    if place == PlaceOf::Files {
        return Ok(arch.to_owned());
    }
    let published = published(store).await?;
    let id = match (place, published.first()) {
        (PlaceOf::Build(id), None) => id,
        // Other servers have it too.
        (PlaceOf::Build(id), Some(_)) if published.iter().any(|build| build.id == id) => id,
        (_, Some(newest)) => newest.id.clone(),
        (_, None) => return Ok(arch.to_owned()),
    };
    Ok(folder::path_of(&id, arch))
}

/// Says why a path below `/boot/` has no file yet, although its build is published. `None` if it will have none.
pub async fn not_yet(store: &Store, boot: &Path, path: &str) -> Result<Option<Error>, Error> {
    let published = published(store).await?;
    let named = folder::named(boot);
    let awaited = published.iter().zip([true, false]).find(|(build, is_newest)| match folder::build_at(path) {
        Some(id) => build.id == id && !folder::of_build(boot, id).exists(),
        // The usual names are those of the newest.
        None => *is_newest && named.as_ref() != Some(&build.id),
    });
    Ok(awaited.map(|(build, _)| {
        let message = format!("this server still fetches the boot files {} from the bucket; try again", build.id);
        Error::refused(ErrorCode::Unavailable, message)
    }))
}

/// The builds that servers take from the bucket, if the site has one.
async fn published(store: &Store) -> Result<Vec<Published>, Error> {
    match published::bucket(store) {
        Some(_) => wanted(store).await,
        None => Ok(Vec::new()),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}
