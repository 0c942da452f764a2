//! Makes boot files from the prebuilt parts and one configuration, for both the command line and the API.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::path::Path;

use serde::Deserialize;
use slipway_media::{BuildError, Config, Inputs, Kind, Manifest};
use slipway_parts::{ABOUT, Arch, Parts};
use slipway_protocol::{
    BootSettings, ErrorCode, MachineSettings, MetadataSource, Network, Proof, Secret, SettingError,
};
use slipway_secure_boot::SigningKey;
use tokio::task::spawn_blocking;

use super::{MediaError, builds, folder};
use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::keys::ca;
use crate::keys::secure_boot::SecureBoot;
use crate::site::signing;
use crate::store::{Store, settings};

/// The kernel that has the drivers of real machines.
pub const KERNEL: &str = "generic";

/// Boot files to make. Omitted fields have the same defaults as for `slipway-server media build`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewMedia {
    /// HTTPS URL of the server, as machines reach it. Default: this server's URL, or none if there is `metadata`.
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
    /// Name of machines while they run from these files, such as `rack3-u12`.
    pub hostname: Option<String>,
    /// What machines must have before they send anything to the server.
    pub require: Proof,
    /// Where virtual machines may be told their server, and a bootstrap token. Default: nowhere. Machines trust what
    /// they are told for nothing else.
    pub metadata: BTreeSet<MetadataSource>,
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

/// What a build may sign and record. The command line and the API intentionally differ in this.
pub struct Policy {
    /// Whose keys sign, and whose database records the build. The API always has a site. The command line may have
    /// none, as on a computer other than the server: then URL and CA must be given, and nothing is signed or recorded.
    pub site: Result<Site, Error>,
    /// Whether boot files that name another server or CA, or have further arguments of the kernel, are signed and
    /// recorded too. On the command line they are, because anyone who may read the data folder has its keys anyway.
    /// Over the API they are not: with boot files for another server, an operator could still control machines after
    /// the token has ended.
    pub vouches_for_all: bool,
}

/// A server's data folder, and the database in it.
pub struct Site {
    /// The data folder.
    pub data: DataDir,
    /// The database in the data folder.
    pub store: Store,
}

impl NewMedia {
    /// Whether machines with these boot files trust this site alone: no other server or CA is named, and no argument
    /// of the kernel says what to start.
    fn is_of_site(&self) -> bool {
        self.url.is_none() && self.ca.is_none() && self.arguments.is_empty()
    }
}

/// Makes boot files from the parts in one folder. Afterwards the usual names below `out` lead to these files. The same
/// request gives the same files.
pub async fn make(new: NewMedia, parts: &Path, out: &Path, policy: Policy) -> Result<Manifest, MediaError> {
    let is_vouched_for = policy.vouches_for_all || new.is_of_site();
    let is_signed = is_vouched_for && !new.unsigned;
    let token = new.token.clone();
    let (plan, site) = fill_in(new, policy.site).await?;
    let keys = match &site {
        Some(site) if is_signed => SecureBoot::open(&site.data)?,
        _ => None,
    };
    let (parts, out) = (parts.to_owned(), out.to_owned());
    let is_in_token = keys.as_ref().is_some_and(|keys| !keys.in_tokens().is_empty());
    let building = async {
        let building = spawn_blocking(move || build(&plan, &parts, keys.as_ref().map(SecureBoot::signer), &out));
        building.await.unwrap_or_else(|failed| resume_unwind(failed.into_panic()))
    };
    let manifest = match &site {
        Some(site) if is_in_token => signing::with_tokens(&site.store, &site.data, building).await??,
        _ => building.await?,
    };
    match &site {
        Some(site) if is_vouched_for => builds::record(&site.store, &manifest, token.as_ref()).await?,
        Some(site) => builds::tell(&site.store, &manifest).await?,
        None => {}
    }
    let recorded_by = site.filter(|_| is_vouched_for);
    let Manifest { id, server, ca_sha256, .. } = &manifest;
    let server = server.as_deref().unwrap_or(builds::SAID_BY_METADATA);
    tracing::info!(build = id, server, ca_sha256, is_recorded = recorded_by.is_some(), "made boot files");
    Ok(manifest)
}

/// A request with the defaults for the fields that it omitted.
struct Plan {
    config: Config,
    kernel: String,
    /// Architectures. If empty, all for which there are parts.
    archs: BTreeSet<Arch>,
    kinds: Vec<Kind>,
}

/// Fills in the defaults of omitted fields. Fails if a default comes from the site and there is no site.
async fn fill_in(new: NewMedia, site: Result<Site, Error>) -> Result<(Plan, Option<Site>), MediaError> {
    let is_told = !new.metadata.is_empty();
    let (server, ca, site) = match (new.url, new.ca, site) {
        (url, Some(ca), site) if url.is_some() || is_told => (url, ca, site.ok()),
        (url, ca, site) => {
            let site = site?;
            let server = match url {
                None if !is_told => Some(server_url(&site.store).await?),
                url => url,
            };
            (server, ca.map_or_else(|| ca::anchors(&site.data), Ok)?, Some(site))
        }
    };
    let NewMedia { token, network, proxy, no_proxy, hostname, .. } = new;
    let machine = MachineSettings { token, network, proxy, no_proxy, hostname };
    let settings = BootSettings { server, ca, require: new.require, metadata: new.metadata, machine };
    let config = Config { settings, consoles: new.consoles, arguments: new.arguments };
    let kinds = if new.kinds.is_empty() { Kind::ALL.to_vec() } else { new.kinds.into_iter().collect() };
    Ok((Plan { config, kernel: new.kernel.unwrap_or_else(|| KERNEL.to_owned()), archs: new.archs, kinds }, site))
}

/// Returns the URL of the server that runs, or last ran, on the database.
async fn server_url(store: &Store) -> Result<String, Error> {
    let url = settings::read(&mut *store.read().await?, settings::SERVER_URL).await?;
    url.ok_or_else(|| {
        let message = "looking for the server's URL: no server has run on this data folder yet; give it with --url";
        Error::refused(ErrorCode::Conflict, message)
    })
}

/// Checks everything before anything is written. Signs for Secure Boot if there is a key.
fn build(plan: &Plan, parts: &Path, signer: Option<&SigningKey>, out: &Path) -> Result<Manifest, MediaError> {
    let Plan { config, kernel, archs, kinds } = plan;
    check_kernel(kernel).map_err(BuildError::from)?;
    config.check(kinds).map_err(BuildError::from)?;
    let parts = open_parts(parts, kernel, archs)?;
    let inputs = Inputs { config, parts: &parts, kinds, signer };
    let id = slipway_media::id(&inputs);
    folder::add(out, &id, config.settings.machine.token.is_some(), |write| slipway_media::build(&inputs, write))
}

/// Refuses names other than plain ones, because the name of a kernel becomes part of a path.
fn check_kernel(name: &str) -> Result<(), SettingError> {
    let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if (1..=64).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    let wrong = "must be a name such as generic or cloud: lower-case letters, digits and hyphens";
    Err(SettingError::new("kernel", name, wrong))
}

/// Opens the parts for a kernel, one set for each architecture. Fails if a set is missing.
fn open_parts(parts: &Path, kernel: &str, archs: &BTreeSet<Arch>) -> Result<Vec<Parts>, MediaError> {
    let folder = |arch: Arch| parts.join(format!("{}-{kernel}", arch.name()));
    let archs: Vec<Arch> = match archs.is_empty() {
        true => Arch::ALL.into_iter().filter(|arch| folder(*arch).join(ABOUT).exists()).collect(),
        false => archs.iter().copied().collect(),
    };
    let missing = archs.iter().find(|arch| !folder(**arch).join(ABOUT).exists());
    if missing.is_some() || archs.is_empty() {
        let arch = missing.map_or("any architecture", |arch| arch.name());
        return Err(MediaError::NoParts { wanted: format!("{arch} with kernel {kernel}"), folder: parts.to_owned() });
    }
    archs.into_iter().map(|arch| Ok(Parts::open(&folder(arch))?)).collect()
}
