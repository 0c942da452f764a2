//! The boot files that the server hands out, as operators use them over HTTPS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use slipway_media::{BuildError, Manifest};
use slipway_protocol::{ErrorCode, SettingError};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::make::{NewMedia, Policy, Site};
use super::{MediaError, make, newest, published};
use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::store::Store;

/// The server's folders of parts and of boot files. One build at a time: each holds the parts in memory.
pub struct BootFiles {
    store: Store,
    parts: PathBuf,
    boot: Option<PathBuf>,
    turn: Arc<Mutex<()>>,
}

impl BootFiles {
    /// Takes the folder of prebuilt parts, and the folder of boot files if the server has one.
    pub fn new(store: &Store, parts: PathBuf, boot: Option<PathBuf>) -> Self {
        Self { store: store.clone(), parts, boot, turn: Arc::default() }
    }

    /// Makes boot files in the server's folder, or for all servers of the site if it has a bucket.
    pub async fn make(&self, store: &Store, data: &DataDir, new: NewMedia) -> Result<Manifest, Error> {
        let boot = match published::bucket(store) {
            Some(_) => None,
            None => Some(self.folder()?.to_owned()),
        };
        let (parts, store, data) = (self.parts.clone(), store.clone(), data.clone());
        let Ok(turn) = Arc::clone(&self.turn).try_lock_owned() else {
            let message = "other boot files are being made; try again when that is done";
            return Err(Error::refused(ErrorCode::Conflict, message));
        };
        let policy = Policy { site: Ok(Site { data: data.clone(), store: store.clone() }), vouches_for_all: false };
        // The build goes on, and keeps its turn, if the caller stops waiting for it.
        let making = tokio::spawn(async move {
            let _turn = turn;
            match boot {
                Some(boot) => make(new, &parts, &boot, policy).await,
                None => published::make_and_publish(new, &parts, &store, &data, policy).await,
            }
        });
        making.await.map_err(failed)?.map_err(refusal)
    }

    /// The manifest of the newest boot files: those that are published, if the site has a bucket and any are.
    pub async fn newest(&self) -> Result<Manifest, Error> {
        if let Some(published) = published::newest(&self.store, self.boot.as_deref()).await? {
            return Ok(published);
        }
        let boot = self.folder()?.to_owned();
        let newest = spawn_blocking(move || newest(&boot)).await.map_err(failed)?.map_err(refusal)?;
        newest.ok_or_else(|| Error::refused(ErrorCode::NotFound, "no boot files were made yet"))
    }

    fn folder(&self) -> Result<&Path, Error> {
        self.boot.as_deref().ok_or_else(|| {
            let message = "this server has no folder of boot files; start it with `serve --boot FOLDER`";
            Error::refused(ErrorCode::Conflict, message)
        })
    }
}

/// Makes an answer that says what the operator can correct. It repeats no values, because answers are logged.
fn refusal(error: MediaError) -> Error {
    match error {
        MediaError::Site(error) => error,
        MediaError::Build(BuildError::Config(SettingError { key, wrong, .. })) => {
            let key = match key {
                "server" => "url",
                "console" => "consoles",
                "argument" => "arguments",
                key => key,
            };
            Error::refused(ErrorCode::InvalidRequest, format!("{key} {wrong}"))
        }
        error @ MediaError::NoParts { .. } => Error::refused(ErrorCode::NotFound, error.to_string()),
        error @ MediaError::InTheWay { .. } => Error::refused(ErrorCode::Conflict, error.to_string()),
        error => failed(error),
    }
}

fn failed(source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Media { source: Box::new(source) }
}
