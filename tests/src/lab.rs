//! A server and a machine on one host: real TLS on loopback, and a file as the disk.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use slipway_actions::{Host, HostOptions};
use slipway_installer::config::Config;
use slipway_installer::discover::tpm::{self, MachineTpm};
use slipway_installer::enrol::Facts;
use slipway_installer::report::log_book::LogBook;
use slipway_installer::screen::Screen;
use slipway_installer::server::client::ClientError;
use slipway_installer::server::tls;
use slipway_installer::{End, Options};
use slipway_protocol::{Digest, DiskHints, Identity, Inventory, NodeStatus, Step};
use slipway_server::base::data::{DataDir, Place};
use slipway_server::base::limits::Limits;
use slipway_server::base::objects::Bucket;
use slipway_server::keys::ca::Authority;
use slipway_server::listen::serve;
use slipway_server::operate::{self, NewNode, NewRun, Task, WorkflowFile};
use slipway_server::store;
use slipway_server::store::Store;
use slipway_server::store::images::{self, Image};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The machine's UUID.
pub const UUID: &str = "4c4c4544-0042-3010-8058-b7c04f503432";
/// Size of the machine's disk in bytes.
pub const DISK: u64 = 16 << 20;

/// A server, and a folder for the server and the machine.
pub struct Lab {
    /// Temporary folder.
    pub folder: TempDir,
    /// How long an image server may fail. `None` for the default.
    pub patience: Option<Duration>,
    /// The bucket with the images, if they are not in the data folder.
    pub bucket: Option<Bucket>,
    /// File with the CA certificates of the object store, if machines are redirected there.
    pub redirect: Option<PathBuf>,
    /// The limits of the server.
    pub limits: Limits,
    address: SocketAddr,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Lab {
    /// Starts a server with an empty store.
    pub async fn start() -> Self {
        tls::install_provider();
        let folder = tempfile::tempdir().unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let limits = Limits::default();
        let mut lab = Self { folder, patience: None, bucket: None, redirect: None, limits, address, running: None };
        std::fs::create_dir(lab.boot_folder()).unwrap();
        lab.start_server().await;
        std::fs::File::create(lab.disk()).unwrap().set_len(DISK).unwrap();
        lab
    }

    /// Starts the server again at its old address.
    pub async fn start_server(&mut self) {
        let config = serve::Config {
            data: self.place(),
            url: "https://127.0.0.1:8443".parse().unwrap(),
            listen: self.address,
            boot_listen: None,
            metrics_listen: None,
            boot: Some(self.boot_folder()),
            parts: "/nowhere".into(),
            page: false,
            trusted_proxies: Vec::new(),
            pxe: Default::default(),
            power_hooks: Vec::new(),
            virtual_machines: false,
            names: Vec::new(),
            policy: Default::default(),
            ek_ca: None,
            limits: self.limits.clone(),
            max_capture: 1 << 30,
            redirect: self.redirect.clone(),
        };
        let server = serve::Server::bind(config).await.unwrap();
        self.address = server.https_address().unwrap();
        let (stop, stopped) = oneshot::channel();
        self.running = Some((stop, tokio::spawn(server.serve(async { drop(stopped.await) }))));
    }

    /// Stops the server. Returns once its socket is closed.
    pub async fn stop_server(&mut self) {
        let (stop, done) = self.running.take().unwrap();
        stop.send(()).unwrap();
        done.await.unwrap();
    }

    /// Base URL of the server.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The folder of boot files.
    pub fn boot_folder(&self) -> PathBuf {
        self.folder.path().join("boot")
    }

    /// The file that is the machine's disk.
    pub fn disk(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    /// Hints that name the machine's disk.
    pub fn disk_hints(&self) -> DiskHints {
        DiskHints { device: Some(self.disk().to_str().unwrap().to_owned()), ..DiskHints::default() }
    }

    /// Opens the store from outside the server, as operators' commands do.
    pub async fn store(&self) -> Store {
        Store::of(&self.data()).await.unwrap()
    }

    fn place(&self) -> Place {
        Place { root: self.folder.path().join("server"), bucket: self.bucket.clone(), ..Place::default() }
    }

    /// The server's data folder.
    pub fn data(&self) -> DataDir {
        DataDir::open(self.place()).unwrap()
    }

    /// The server's CA in PEM.
    pub fn ca(&self) -> String {
        Authority::open(&self.data()).unwrap().pem().to_owned()
    }

    /// Registers the machine.
    pub async fn register(&self, release: bool) {
        let identity = Identity { uuid: Some(UUID.to_owned()), ..Identity::default() };
        let new = NewNode { name: Some("m1".to_owned()), identity, release, ..NewNode::default() };
        operate::add_node(&self.store().await, new).await.unwrap();
    }

    /// Starts a run with these steps on the machine.
    pub async fn start_run(&self, steps: Vec<Step>) {
        self.begin(steps, false).await;
    }

    /// Replaces the current run with a run of these steps.
    pub async fn replace_run(&self, steps: Vec<Step>) {
        self.begin(steps, true).await;
    }

    async fn begin(&self, steps: Vec<Step>, replace: bool) {
        let task = Task::Workflow(WorkflowFile { steps, ..WorkflowFile::default() });
        let new = NewRun { replace, ..NewRun::new(task) };
        operate::start_run(&self.store().await, &self.ca(), "m1", new).await.unwrap();
    }

    /// Puts an image on the server and returns its URL and digest. The image may be damaged, which `image add` would
    /// refuse.
    pub async fn add_image(&self, content: &[u8]) -> (String, Digest) {
        let digest: Digest = format!("sha256:{:x}", Sha256::digest(content)).parse().unwrap();
        std::fs::write(self.data().image(&digest), content).unwrap();
        // Stored directly, because `image add` refuses a damaged image.
        let image = Image {
            digest: digest.clone(),
            file_name: "disk.img".to_owned(),
            size: content.len() as u64,
            raw_size: None,
            raw_digest: None,
            added_at: 0,
            captured: false,
        };
        let mut transaction = self.store().await.write().await.unwrap();
        images::save(&mut transaction, &image).await.unwrap();
        store::commit(transaction).await.unwrap();
        (format!("{}/images/{digest}", self.url()), digest)
    }

    /// The machine's status.
    pub async fn status(&self) -> NodeStatus {
        operate::show_node(&self.store().await, "m1").await.unwrap()
    }

    /// Waits until the machine's status is as wanted, with a time limit.
    pub async fn wait_for(&self, what: &str, wanted: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
        let store = self.store().await;
        for _ in 0..600 {
            let nodes = slipway_server::node::status::all(&store).await.unwrap();
            if let Some(node) = nodes.into_iter().find(&wanted) {
                return node;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("waited 30 s for a machine that is {what}");
    }

    /// The machine's configuration.
    pub fn config(&self) -> Config {
        Config::new(self.url().parse().unwrap(), self.ca())
    }

    /// Runs the installer on the machine until its first run ends.
    pub async fn install(&self) -> Result<End, ClientError> {
        slipway_installer::run(self.config(), self.options(None)).await
    }

    /// The installer's options for this machine.
    pub fn options(&self, previous_exit: Option<&str>) -> Options {
        let nowhere = self.folder.path().join("no-tpm");
        let facts = Facts {
            tpm: MachineTpm::at(tpm::Place { device: nowhere, event_log: None }),
            identity: Identity { uuid: Some(UUID.to_owned()), ..Identity::default() },
            look: Inventory::default,
            boot_id: "0b0b0b0b".to_owned(),
            kernel_to_init: Some(1000),
            leased_at: Some(1400),
        };
        let (ca, patience) = (self.ca(), self.patience);
        Options {
            facts,
            set_clock: false,
            state: self.folder.path().join("run"),
            previous_exit: previous_exit.map(str::to_owned),
            log: LogBook::default(),
            machine: Arc::new(move |cancel| {
                Box::new(Host::new(HostOptions {
                    trust: vec![ca.clone()],
                    cancel: cancel.clone(),
                    patience,
                    ..HostOptions::default()
                }))
            }),
            disks_settled: tokio::sync::watch::channel(true).1,
            screen: Screen::default(),
            once: true,
        }
    }
}
