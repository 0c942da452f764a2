//! Boot files that operators have made over HTTPS.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use slipway_media::{BuildError, Config, ConfigError, Kind, Manifest};
use slipway_parts::Arch;
use slipway_protocol::{ErrorCode, Network, Proof, Proxy, Secret};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::boot_files::builds;
use crate::boot_files::make::{self, Request};
use crate::boot_files::{MediaError, newest};
use crate::keys::ca;
use crate::keys::secure_boot::SecureBoot;
use crate::store::{Connection, Store, settings};

/// The kernel that has the drivers of real machines.
const KERNEL: &str = "generic";

/// Boot files to make. What is left out is as for `slipway-server media build`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewMedia {
    /// HTTPS URL of the server, as machines reach it. Default: that of this server.
    #[schema(pattern = "^https://")]
    pub url: Option<String>,
    /// What machines are to trust, in PEM. Default: the certificate authority of this server.
    pub ca: Option<String>,
    /// A bootstrap token for all machines that start from these files.
    pub token: Option<Secret>,
    /// Network of machines while they run from these files. Default: DHCP and router advertisements on every interface.
    pub network: Option<Network>,
    /// HTTP proxy through which machines reach the server and images, such as `http://proxy.example:3128`.
    pub proxy: Option<String>,
    /// Hosts that machines reach without the proxy, separated by commas.
    pub no_proxy: Option<String>,
    /// What machines must have before they send anything to the server.
    pub require: Proof,
    /// Consoles of the kernel, such as `ttyS1,115200`. slipway's own output goes to the last.
    pub consoles: Vec<String>,
    /// Other arguments of the kernel.
    pub arguments: Vec<String>,
    /// What to make. Default: everything.
    pub kinds: BTreeSet<Kind>,
    /// Architectures. Default: all for which there are parts.
    pub archs: BTreeSet<Arch>,
    /// Name of the kernel. Default: `generic`.
    #[schema(pattern = "^[a-z0-9-]{1,64}$")]
    pub kernel: Option<String>,
    /// Do not sign, although there are keys for Secure Boot.
    pub unsigned: bool,
}

/// The server's folders of parts and of boot files. One build at a time: each holds the parts in memory.
pub struct BootFiles {
    parts: PathBuf,
    boot: Option<PathBuf>,
    turn: Arc<Mutex<()>>,
}

impl BootFiles {
    /// Boot files in `boot`, made of the parts in `parts`.
    pub fn new(parts: PathBuf, boot: Option<PathBuf>) -> Self {
        Self { parts, boot, turn: Arc::default() }
    }

    /// Makes boot files, which have the usual names from then on. Those that name another server or CA, or have further
    /// arguments of the kernel, are neither signed nor recorded: whoever has an operator's token would keep, after it has
    /// ended, machines that trust somebody else.
    pub async fn make(&self, store: &Store, data: &DataDir, new: NewMedia) -> Result<Manifest, Error> {
        let boot = self.folder()?.to_owned();
        let Ok(turn) = Arc::clone(&self.turn).try_lock_owned() else {
            let message = "other boot files are being made; try again when that is done";
            return Err(Error::refused(ErrorCode::Conflict, message));
        };
        let proxy = proxy(new.proxy, new.no_proxy)?;
        let is_ours = new.url.is_none() && new.ca.is_none() && new.arguments.is_empty();
        let server = match new.url {
            Some(url) => url,
            None => server_url(&mut *store.read().await?).await?,
        };
        let config = Config {
            server,
            ca: new.ca.map_or_else(|| ca::anchors(data), Ok)?,
            token: new.token,
            network: new.network,
            proxy,
            require: new.require,
            consoles: new.consoles,
            arguments: new.arguments,
        };
        let keys = if new.unsigned || !is_ours { None } else { SecureBoot::open(data)? };
        let request = Request {
            config,
            parts: self.parts.clone(),
            kernel: new.kernel.unwrap_or_else(|| KERNEL.to_owned()),
            archs: new.archs,
            kinds: if new.kinds.is_empty() { Kind::ALL.into() } else { new.kinds },
        };
        let store = store.clone();
        // It goes on, and keeps its turn, if the caller does not wait for it.
        let made = tokio::spawn(async move {
            let _turn = turn;
            let made = spawn_blocking(move || make::make(&request, keys.as_ref().map(SecureBoot::signer), &boot));
            let manifest = made.await.map_err(failed)?.map_err(refusal)?;
            if is_ours {
                builds::record(&store, &manifest).await?;
            }
            let Manifest { id, server, ca_sha256, .. } = &manifest;
            tracing::info!(build = id, server, ca_sha256, is_recorded = is_ours, "made boot files");
            Ok(manifest)
        });
        made.await.map_err(failed)?
    }

    /// The manifest of the newest boot files.
    pub async fn newest(&self) -> Result<Manifest, Error> {
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

fn proxy(url: Option<String>, except: Option<String>) -> Result<Option<Proxy>, Error> {
    match (url, except) {
        (Some(url), except) => Ok(Some(Proxy { url, except: except.unwrap_or_default() })),
        (None, Some(_)) => Err(Error::refused(ErrorCode::InvalidRequest, "no_proxy means nothing without proxy")),
        (None, None) => Ok(None),
    }
}

/// What the operator can correct is said. Values are not repeated, because the answer is logged.
fn refusal(error: MediaError) -> Error {
    match error {
        MediaError::Build(BuildError::Config(ConfigError { key, wrong, .. })) => {
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

async fn server_url(connection: &mut Connection) -> Result<String, Error> {
    let url = settings::read(connection, settings::SERVER_URL).await?;
    url.ok_or_else(|| {
        let message = "the server's URL is not known yet; start the server once with `serve --url`";
        Error::refused(ErrorCode::Conflict, message)
    })
}
