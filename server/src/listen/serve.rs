//! The server: binds its sockets, serves, and stops.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use slipway_protocol::Proof;
use time::OffsetDateTime;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};

use crate::api::body::Bodies;
use crate::api::health::Health;
use crate::api::history::STREAMS;
use crate::api::meters::PortLabels;
use crate::api::metrics::Metrics;
use crate::api::{self, App};
use crate::base::data::{DataDir, Place, ServeLock, check_apart};
use crate::base::error::{Error, chain};
use crate::base::limits::{Limits, raise_open_files};
use crate::base::objects::Objects;
use crate::base::rate::{Buckets, Rate};
use crate::base::readiness::Need;
use crate::base::set_clock::Clocks;
use crate::boot_files::fetches::BootFetches;
use crate::boot_files::pxe::{self, NetworkBoot};
use crate::boot_files::served::BootFiles;
use crate::boot_files::{follow, outdated};
use crate::keys::in_use::InUse;
use crate::listen::listener::{self, Listener};
use crate::listen::live_keys::LiveKeys;
use crate::listen::settings::{
    check_boot_folder, check_bucket, check_names, make_boot_folder, note_objects, read_images_ca,
};
use crate::listen::url::ServerUrl;
use crate::node::admission::Policy;
use crate::node::capture::Captures;
use crate::node::contacts::Contacts;
use crate::node::enrol::tpm;
use crate::node::noticing;
use crate::node::reports::{refused, secrets};
use crate::node::watcher::Watcher;
use crate::operate::{self, site_keys};
use crate::page;
use crate::power;
use crate::power::provider::Means;
use crate::power::qemu::Machines;
use crate::site::presence::Presence;
use crate::site::retention;
use crate::store;
use crate::store::{Store, settings};
use tokio_rustls::TlsAcceptor;

/// What the history says of keys that a server makes.
const KEYS_MADE: &str = "keys of the site were made or replaced";

/// Reports per minute about one run: as many as NICo's metadata service accepts, and as cloud-init sends for one
/// failing report.
const REPORTS_A_MINUTE: usize = 10;
/// Reports per minute with one token, enough for a step that reports its progress twice a second.
const TOKEN_REPORTS_A_MINUTE: usize = 120;
/// Heartbeats per minute of one agent, which sends one every few seconds while it does a task.
const AGENT_BEATS_A_MINUTE: usize = 120;
/// Metadata requests per minute from one node. cloud-init's data sources request each key separately, about twenty
/// times in a boot.
const METADATA_A_MINUTE: usize = 120;

/// Interval at which the server's certificates are checked, much shorter than their lifetime.
const LOOK_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// Pause after keys could not be taken over.
const AGAIN: Duration = Duration::from_secs(1);
/// What clients are told of a server that could not take changed keys over.
const OLD_KEYS: &str = "the keys of the site could not be taken over; the ones before are in use";
/// What clients are told of a server whose certificate authority is not valid by its clock.
const NOT_VALID: &str = "the certificates of the site are not valid at the time of this host's clock";
/// Interval at which the clock of this host is compared with one that nobody sets.
const LOOK_AT_CLOCK_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the database's write-ahead log is emptied, if it has any content.
const ERASE_EVERY: Duration = Duration::from_secs(60);

/// Settings that a server is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data folder, and the database if it is elsewhere.
    pub data: Place,
    /// URL at which machines reach the server.
    pub url: ServerUrl,
    /// Address and port for HTTPS.
    pub listen: SocketAddr,
    /// Address and port for boot files without TLS, if any.
    pub boot_listen: Option<SocketAddr>,
    /// Address and port for metrics and health checks without TLS and without authentication, if any.
    pub metrics_listen: Option<SocketAddr>,
    /// The folder of boot files.
    pub boot: Option<PathBuf>,
    /// Folder of prebuilt parts, from which boot files are made.
    pub parts: PathBuf,
    /// Whether operators get a page.
    pub page: bool,
    /// Addresses of proxies that are trusted to name the machine that fetches a boot file.
    pub trusted_proxies: Vec<IpAddr>,
    /// Interfaces where network boot is offered beside somebody else's DHCP server.
    pub pxe: pxe::Settings,
    /// Folders of hooks, which switch the power of machines. The first that has a hook counts.
    pub power_hooks: Vec<PathBuf>,
    /// Whether operators may have virtual machines on this host.
    pub virtual_machines: bool,
    /// Host names and addresses for the certificate, in addition to those that follow from `url` and `listen`.
    pub names: Vec<String>,
    /// Largest captured image that is accepted, in bytes.
    pub max_capture: u64,
    /// File with the CA certificates that machines verify the object store with, in PEM, if they are redirected there
    /// for images.
    pub redirect: Option<PathBuf>,
    /// What every machine must prove to enrol.
    pub policy: Policy,
    /// File with the certificates of TPM manufacturers that the site trusts, in PEM.
    pub ek_ca: Option<PathBuf>,
    /// Limits on the connections, requests and memory of clients.
    pub limits: Limits,
}

/// Interval at which a running server updates the modification time of its lock file.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// A server whose sockets are bound, but that does not answer yet.
pub struct Server {
    https: TcpListener,
    boot: Option<TcpListener>,
    metrics: Option<TcpListener>,
    pxe: Option<NetworkBoot>,
    power_hooks: Vec<PathBuf>,
    virtual_machines: bool,
    url: ServerUrl,
    page: bool,
    tls: watch::Sender<TlsAcceptor>,
    names: BTreeSet<String>,
    app: Arc<App>,
    stop: watch::Sender<bool>,
    /// Keeps other servers off the data folder.
    lock: ServeLock,
    /// Tells the other servers of the site that this one runs.
    presence: Presence,
}

impl Server {
    /// Opens the data folder (unless another server runs on it), binds the sockets, and creates what the folder lacks.
    /// The certificate and the URL are changed last, when nothing likely to fail is left.
    pub async fn bind(config: Config) -> Result<Self, Error> {
        Self::bind_with_clock(config, Instant::now).await
    }

    /// Like [`Self::bind`], with another clock for the rate limits. With a clock that stands still, tests on slow
    /// machines refuse the same requests as on fast ones.
    pub async fn bind_with_clock(config: Config, clock: fn() -> Instant) -> Result<Self, Error> {
        let limits = Arc::new(config.limits.clone().within(raise_open_files()));
        let names = names(&config);
        check_names(&names)?;
        if let Some(folder) = &config.boot {
            check_apart(&config.data.root, folder)?;
            // An existing folder is checked before anything is created. A missing one is made after binding sockets.
            if folder.try_exists().unwrap_or(true) {
                check_boot_folder(folder)?;
            }
        }
        let images_ca = config.redirect.as_deref().map(|file| read_images_ca(file, config.data.bucket.as_ref()));
        let images_ca = images_ca.transpose()?;
        let manufacturers = tpm::read_manufacturers(config.ek_ca.as_deref())?;
        let data = DataDir::make(&config.data)?;
        let lock = data.lock_for_serving(&config.url.to_string())?;
        let https = listen(config.listen).await?;
        let boot = match config.boot_listen {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let metrics = match config.metrics_listen {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        if let Some(folder) = &config.boot {
            make_boot_folder(folder)?;
        }
        let boot_fetches = Arc::new(BootFetches::default());
        if let Objects::Bucket(bucket, _) = data.objects() {
            check_bucket(bucket).await?;
        }
        data.check_custody()?;
        data.remove_leftovers();
        let store = Store::of(&data).await?;
        // Before keys are made, which another server may have already.
        let presence = Presence::begin(&store, &data, &lock, &config.url.to_string()).await?;
        let site = (&store, presence.id());
        let pxe = NetworkBoot::bind(&config.pxe, config.boot.as_deref(), &data, &boot_fetches, site).await?;
        site_keys::change(&store, &data, KEYS_MADE, |data| InUse::open_or_make(data, &names)).await?;
        // Read before the keys are opened, so that the watcher finds each later change.
        let revision = site_keys::take_over(&store, &data).await?.revision;
        let keys = InUse::open_or_make(&data, &names)?;
        let tpms = tpm::Verifier::new(manufacturers, &keys.signer);
        operate::adopt_first(&store, &data).await?;
        let tls = watch::Sender::new(acceptor(&keys)?);
        let mut transaction = store.write().await?;
        settings::write(&mut transaction, settings::SERVER_URL, &config.url.to_string()).await?;
        note_objects(&mut transaction, data.objects()).await?;
        match &images_ca {
            Some(pem) => settings::write(&mut transaction, settings::IMAGES_CA, pem).await?,
            None => settings::remove(&mut transaction, settings::IMAGES_CA).await?,
        }
        let any_boot = settings::read(&mut transaction, settings::ATTESTED_BOOT).await?.is_some();
        store::commit(transaction).await?;
        if any_boot && config.policy.require == Proof::Attested {
            tracing::warn!(
                "machines are admitted no matter what they booted; make boot files again with `slipway-server media \
                 build`, then run `slipway-server media require built`"
            );
        }
        let (stop, stopping) = watch::channel(false);
        let captures = Captures::new(store.clone(), data.clone(), config.max_capture, stopping.clone());
        captures.sweep_at_start().await?;
        secrets::forget_of_all(&store).await?;
        let watcher = Arc::new(Watcher::new(store.clone(), revision));
        let measured = Metrics::new(&store);
        let waiting = &measured.http.bodies_waiting;
        let boot_files = BootFiles::new(&store, config.parts, config.boot.clone());
        let (bodies, stranger_bodies) = (Bodies::of_known(&limits, waiting), Bodies::of_strangers(&limits, waiting));
        let app = App {
            store,
            data,
            keys: RwLock::new(Arc::new(keys)),
            policy: config.policy,
            tpms,
            boot_files,
            signing: Arc::default(),
            boot: config.boot,
            trusted_proxies: config.trusted_proxies,
            boot_fetches,
            reports: Rate::new("reports about one run", REPORTS_A_MINUTE, clock),
            token_reports: Rate::new("reports with one token", TOKEN_REPORTS_A_MINUTE, clock),
            agent_beats: Rate::new("heartbeats of one agent", AGENT_BEATS_A_MINUTE, clock),
            refused: Rate::new("refused reports of one node", refused::A_MINUTE, clock),
            metadata: Rate::new("requests for metadata from one node", METADATA_A_MINUTE, clock),
            requests: Buckets::new("requests of unknown clients", limits.requests, clock),
            bodies,
            stranger_bodies,
            strangers: Semaphore::new(limits.strangers_at_once),
            limits,
            site: config.url.host().to_owned(),
            contacts: Arc::new(Contacts::listening()),
            watcher,
            captures,
            metrics: measured,
            health: Arc::default(),
            redirects: images_ca.is_some(),
            streams: Arc::new(Semaphore::new(STREAMS)),
            stopping,
        };
        let (url, page, power_hooks, app) = (config.url, config.page, config.power_hooks, Arc::new(app));
        let virtual_machines = config.virtual_machines;
        Ok(Self {
            https,
            boot,
            metrics,
            pxe,
            power_hooks,
            virtual_machines,
            url,
            page,
            tls,
            names,
            app,
            stop,
            lock,
            presence,
        })
    }

    /// Returns the address and port of the HTTPS listener.
    pub fn https_address(&self) -> Result<SocketAddr, Error> {
        address(&self.https)
    }

    /// Returns the address and port of the listener for boot files without TLS. `None` if there is no such listener.
    pub fn boot_address(&self) -> Result<Option<SocketAddr>, Error> {
        self.boot.as_ref().map(address).transpose()
    }

    /// Returns the address and port of the listener for metrics. `None` if there is no such listener.
    pub fn metrics_address(&self) -> Result<Option<SocketAddr>, Error> {
        self.metrics.as_ref().map(address).transpose()
    }

    /// Returns the contacts of nodes, so that tests need not wait until they are stored.
    pub fn contacts(&self) -> Arc<Contacts> {
        Arc::clone(&self.app.contacts)
    }

    /// Returns whether the server can do its work, so that clients can be told before it stops.
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.app.health)
    }

    /// Answers requests until `shutdown` completes. Then polls are answered immediately, and other requests get ten
    /// seconds to finish.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) {
        // Read before the listener is moved away.
        let boot_address = self.boot.as_ref().and_then(|boot| boot.local_addr().ok());
        let (app, limits) = (&self.app, &self.app.limits);
        let keys = Arc::new(LiveKeys::new(app.store.clone(), Arc::clone(&app.watcher)));
        let (lock, clock_was_set) = (&self.lock, Notify::new());
        let signs_of_life = async move {
            let mut interval = tokio::time::interval(SIGN_OF_LIFE);
            loop {
                interval.tick().await;
                // If this fails, only `status` of a stopped server is less exact.
                let _ = lock.file.set_modified(SystemTime::now());
            }
        };
        let run = |listener, router| {
            listener::run(listener, router, Arc::clone(limits), Arc::clone(&keys), app.stopping.clone())
        };
        let open = |port| app.metrics.http.connections.get_or_create_owned(&PortLabels { port });
        let page = if self.page { page::routes() } else { Router::new() };
        let (tls, connections) = (Some(self.tls.subscribe()), limits.https);
        let https = Listener { socket: self.https, name: "https", tls, connections, open: open("https") };
        let https = run(https, api::router(Arc::clone(app), page));
        let pxe = async {
            match self.pxe {
                Some(pxe) => pxe.run(&app.store, &self.url.to_string(), boot_address).await,
                None => std::future::pending().await,
            }
        };
        let boot = async {
            if let Some(socket) = self.boot {
                let boot = Listener { socket, name: "boot", tls: None, connections: limits.boot, open: open("boot") };
                run(boot, api::boot_router(Arc::clone(app))).await;
            }
        };
        let metrics = async {
            if let Some(socket) = self.metrics {
                let (tls, connections) = (None, limits.metrics);
                let metrics = Listener { socket, name: "metrics", tls, connections, open: open("metrics") };
                run(metrics, api::metrics_router(Arc::clone(app))).await;
            }
        };
        let machines = Machines::new(&app.data, boot_address, self.virtual_machines);
        let means = Means { store: &app.store, folders: &self.power_hooks, machines: &machines };
        let stop = async {
            shutdown.await;
            tracing::info!("stopping");
            app.health.drain();
            self.stop.send_replace(true);
        };
        tokio::select! {
            _ = async { tokio::join!(https, boot, metrics, stop) } => {}
            () = keep_keys(app, &self.names, &self.tls, &clock_was_set) => {}
            () = keep_clock_watched(&clock_was_set) => {}
            () = self.app.captures.keep_swept() => {}
            () = keep_erased(&self.app) => {}
            () = app.health.keep_known(&app.store) => {}
            () = app.health.keep_objects_known(app.store.objects()) => {}
            () = app.watcher.follow() => {}
            () = retention::keep(&app.store) => {}
            () = noticing::keep(&app.store, self.presence.id()) => {}
            () = power::keep::keep(means, self.presence.id()) => {}
            () = outdated::keep(&app.store, &app.data, app.boot.as_deref(), self.presence.id()) => {}
            () = follow::keep(&app.store, app.boot.as_deref(), &app.health.readiness) => {}
            () = app.contacts.keep_stored(&app.store) => {}
            () = app.boot_fetches.keep_written(&app.store) => {}
            () = pxe => {}
            () = signs_of_life => {}
            () = self.presence.keep(&self.app.store, &self.app.health.readiness) => {}
        }
        if let Err(error) = self.app.boot_fetches.write(&self.app.store).await {
            tracing::warn!(error = chain(&error), "could not store which boot files were fetched");
        }
        if let Err(error) = self.app.contacts.store(&self.app.store).await {
            tracing::warn!(error = chain(&error), "could not store when nodes were heard from");
        }
        if let Err(error) = self.presence.end(&self.app.store).await {
            tracing::warn!(error = chain(&error), "could not store that this server stops");
        }
        self.app.store.close().await;
    }
}

/// Takes changed keys over, and renews the server's certificates before they expire, or when they are not valid because
/// the clock was set.
async fn keep_keys(app: &App, names: &BTreeSet<String>, tls: &watch::Sender<TlsAcceptor>, clock_was_set: &Notify) {
    let mut changes = app.watcher.keys();
    note_validity(app);
    loop {
        let is_changed = tokio::select! {
            // The watcher exists as long as the server runs.
            _ = changes.changed() => true,
            () = clock_was_set.notified() => false,
            () = tokio::time::sleep(LOOK_EVERY) => false,
        };
        let taken = async {
            let open = |data: &DataDir| InUse::open_or_make(data, names);
            let keys = site_keys::change(&app.store, &app.data, KEYS_MADE, open).await?;
            tls.send_replace(acceptor(&keys)?);
            *app.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
            Ok::<(), Error>(())
        };
        match taken.await {
            Ok(()) => {
                note_validity(app);
                if is_changed {
                    tracing::info!("the keys of the site changed; the new ones are in use");
                }
            }
            Err(error) => {
                app.health.readiness.lack(Need::Keys, OLD_KEYS, &chain(&error));
                tokio::time::sleep(AGAIN).await;
                changes.mark_changed();
            }
        }
    }
}

/// Notes whether the certificate authority is valid at the time of this host's clock. If not, machines refuse what it
/// signed.
fn note_validity(app: &App) {
    match app.keys().authority.invalid_at(OffsetDateTime::now_utc()) {
        Some(why) => app.health.readiness.lack(Need::Keys, NOT_VALID, &why),
        None => app.health.readiness.have(Need::Keys),
    }
}

/// Says when the clock of this host was set, and has the certificates looked at then.
async fn keep_clock_watched(clock_was_set: &Notify) {
    let mut clocks = Clocks::read();
    loop {
        tokio::time::sleep(LOOK_AT_CLOCK_EVERY).await;
        if let Some(by) = clocks.look() {
            let (way, or) =
                if by > 0 { ("forward", ", or the host was suspended for that time") } else { ("back", "") };
            tracing::warn!(
                "the clock of this host was set {way} by {} s{or}: machines count as silent only from now on, and \
                 certificates are looked at again; if the clock is wrong now, set it by NTP",
                by.unsigned_abs() / 1000
            );
            clock_was_set.notify_one();
        }
    }
}

/// Empties the database's write-ahead log regularly, because it may still contain removed secrets.
async fn keep_erased(app: &App) {
    let log = app.data.path("slipway.db-wal");
    loop {
        tokio::time::sleep(ERASE_EVERY).await;
        if std::fs::metadata(&log).is_ok_and(|log| log.len() > 0)
            && let Err(error) = app.store.empty_log().await
        {
            tracing::warn!(error = chain(&error), "could not empty the write-ahead log of the database");
        }
    }
}

/// Returns the names that the server's certificate is for.
fn names(config: &Config) -> BTreeSet<String> {
    let mut names = BTreeSet::from(["localhost".to_owned(), config.url.host().to_owned()]);
    names.extend(config.names.iter().cloned());
    // The servers of a site have the same names, behind one address.
    let (ip, is_alone) = (config.listen.ip(), config.data.site_key.is_none());
    if ip.is_loopback() || is_alone && !ip.is_unspecified() {
        names.insert(ip.to_string());
    }
    // In the spelling that certificates use, so that names can be compared.
    let written = |name: &String| name.parse::<IpAddr>().map_or_else(|_| name.to_lowercase(), |ip| ip.to_string());
    names.iter().map(written).collect()
}

fn acceptor(keys: &InUse) -> Result<TlsAcceptor, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for root in keys.authority.roots() {
        roots.add(root).map_err(failed("trusting ca.pem"))?;
    }
    // Clients without a certificate may enrol, or authenticate with a JWT. A certificate must be from our authority.
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .map_err(failed("checking client certificates"))?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed("choosing TLS versions"))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::clone(&keys.certificate) as Arc<_>);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn failed<E: std::error::Error + Send + Sync + 'static>(doing: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Tls { doing, source: Box::new(source) }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

fn address(listener: &TcpListener) -> Result<SocketAddr, Error> {
    listener.local_addr().map_err(|source| Error::Address { source })
}
