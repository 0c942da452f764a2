//! A server on a free port, and machines that talk to it.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Once};
use std::time::Instant;

use rcgen::{CertificateParams, KeyPair};
use reqwest::{Certificate, Client, ClientBuilder, Response, StatusCode};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use slipway_protocol::{
    Action, EnrolRequest, Enrolment, ErrorBody, Event, EventKind, Identity, Inventory, Outcome, Tpm, Workflow,
};
use slipway_server::base::data::{DataDir, DatabaseUrl, Place, SiteKey};
use slipway_server::base::limits::Limits;
use slipway_server::base::objects::Bucket;
use slipway_server::keys::ca::Authority;
use slipway_server::listen::serve::{Config, Server};
use slipway_server::node::admission::Policy;
use slipway_server::node::contacts::Contacts;
use slipway_server::operate::{self, NewNode};
use slipway_server::store::Store;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::postgres;

/// The smallest image of a disk: a boot sector.
pub const IMAGE: [u8; 512] = {
    let mut sector = [0; 512];
    (sector[510], sector[511]) = (0x55, 0xAA);
    sector
};
pub const UUID: &str = "4c4c4544-0042-3010-8058-b7c04f503432";
/// Size limit of the server for images of captured disks, in bytes.
pub const MAX_CAPTURE: u64 = 1000;

/// The proxy that the server trusts. A client on this host can be there.
pub const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// A server with its own data folder.
pub struct TestServer {
    pub folder: TempDir,
    place: Place,
    running: Running,
}

/// A listening server.
pub struct Running {
    pub url: String,
    pub boot_url: String,
    pub metrics_url: String,
    contacts: Arc<Contacts>,
    stop: oneshot::Sender<()>,
    done: oneshot::Receiver<()>,
}

impl TestServer {
    pub async fn start() -> Self {
        Self::start_in(folder(), Policy::default(), None, Limits::default()).await
    }

    /// Starts a server that trusts these manufacturers of TPMs.
    pub async fn start_trusting(ek_ca: Option<&Path>) -> Self {
        Self::start_in(folder(), Policy::default(), ek_ca, Limits::default()).await
    }

    /// Starts a server that asks this of every machine.
    pub async fn start_asking(policy: Policy) -> Self {
        Self::start_in(folder(), policy, None, Limits::default()).await
    }

    pub async fn start_without_boot_folder() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), Policy::default(), None, Limits::default()).await
    }

    pub async fn start_with(limits: Limits) -> Self {
        Self::start_in(folder(), Policy::default(), None, limits).await
    }

    /// Starts a server on a data folder that is prepared first.
    pub async fn start_on(prepare: impl AsyncFnOnce(PathBuf)) -> Self {
        let folder = folder();
        let data = folder.path().join("data");
        std::fs::DirBuilder::new().mode(0o700).create(&data).unwrap();
        prepare(data).await;
        Self::start_in(folder, Policy::default(), None, Limits::default()).await
    }

    /// Starts two servers of one site. What they share is on a PostgreSQL server.
    pub async fn start_two() -> [Self; 2] {
        Self::start_two_with(None).await
    }

    /// Like [`Self::start_two`], with images in a bucket.
    pub async fn start_two_with(bucket: Option<Bucket>) -> [Self; 2] {
        let folders = [folder(), folder()];
        let database = postgres::url(folders[0].path());
        let site_key = SiteKey::generate();
        let [one, other] = folders.map(|folder| {
            let postgres = Some(DatabaseUrl::new(&database).unwrap());
            let (root, site_key) = (folder.path().join("data"), Some(site_key.clone()));
            (Place { root, postgres, site_key, bucket: bucket.clone() }, folder)
        });
        [Self::start_at(one.1, one.0).await, Self::start_at(other.1, other.0).await]
    }

    /// Starts a server whose images are in a bucket.
    pub async fn start_with_bucket(bucket: Bucket) -> Self {
        let folder = folder();
        let place = Place { bucket: Some(bucket), ..postgres::place(&folder.path().join("data")) };
        Self::start_at(folder, place).await
    }

    async fn start_in(folder: TempDir, policy: Policy, ek_ca: Option<&Path>, limits: Limits) -> Self {
        let place = postgres::place(&folder.path().join("data"));
        let running = Running::start(folder.path(), &place, policy, ek_ca, limits).await;
        Self { folder, place, running }
    }

    /// Stops the server and starts another on the same folder.
    pub async fn restart(self) -> Self {
        let (folder, place) = self.stop().await;
        Self::start_at(folder, place).await
    }

    /// Starts a server on the data folder and the database of an earlier one.
    pub async fn start_at(folder: TempDir, place: Place) -> Self {
        let running = Running::start(folder.path(), &place, Policy::default(), None, Limits::default()).await;
        Self { folder, place, running }
    }

    /// Stops the server. Returns its folder, and where the data folder and the database are.
    pub async fn stop(self) -> (TempDir, Place) {
        self.running.stop().await;
        (self.folder, self.place)
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.running.url)
    }

    pub fn boot_url(&self, path: &str) -> String {
        format!("{}{path}", self.running.boot_url)
    }

    pub fn metrics_url(&self, path: &str) -> String {
        format!("{}{path}", self.running.metrics_url)
    }

    pub fn data_path(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Where the server keeps everything.
    pub fn place(&self) -> Place {
        self.place.clone()
    }

    pub fn data(&self) -> DataDir {
        DataDir::open(&self.place).unwrap()
    }

    /// The token of the operator that comes with the data folder.
    pub fn operator_token(&self) -> String {
        self.data().operator_token().unwrap().unwrap()
    }

    /// The database, opened as another process would, for example a command. It has the contacts of nodes until now.
    pub async fn store(&self) -> Store {
        let store = Store::of(&self.data()).await.unwrap();
        self.running.contacts.store(&store).await.unwrap();
        store
    }

    /// Lets the server's start be long ago, so that it may judge which nodes are silent.
    pub fn has_listened_long(&self) {
        self.running.contacts.listens_since(0);
    }

    pub fn ca(&self) -> String {
        Authority::open(&self.data()).unwrap().pem().to_owned()
    }

    /// A client that trusts this server and has no certificate.
    pub fn client(&self) -> Client {
        trusting(&self.ca()).build().unwrap()
    }

    /// Registers and releases a node with the usual UUID.
    pub async fn add_released(&self, name: &str) -> String {
        let identity = Identity { uuid: Some(UUID.to_owned()), ..Identity::default() };
        let new = NewNode { name: Some(name.to_owned()), identity, release: true, ..NewNode::default() };
        operate::add_node(&self.store().await, new).await.unwrap().id
    }

    /// A machine that is enrolled as a new, released node.
    pub async fn enrolled(&self, name: &str) -> Node {
        self.add_released(name).await;
        Node::enrol(self, Machine::with_uuid(UUID)).await
    }
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("boot/x86_64")).unwrap();
    folder
}

impl Running {
    async fn start(folder: &Path, place: &Place, policy: Policy, ek_ca: Option<&Path>, limits: Limits) -> Self {
        let config = Config {
            data: place.clone(),
            url: "https://server.test:8443".parse().unwrap(),
            listen: "127.0.0.1:0".parse().unwrap(),
            boot_listen: Some("127.0.0.1:0".parse().unwrap()),
            metrics_listen: Some("127.0.0.1:0".parse().unwrap()),
            boot: Some(folder.join("boot")).filter(|boot| boot.exists()),
            parts: folder.join("parts"),
            page: true,
            trusted_proxies: vec![PROXY],
            pxe: Default::default(),
            power_hooks: vec![folder.join("power")],
            virtual_machines: false,
            names: Vec::new(),
            max_capture: MAX_CAPTURE,
            redirect: None,
            policy,
            ek_ca: ek_ca.map(Path::to_owned),
            limits,
        };
        install_provider();
        let ((stop, stopped), (ended, done)) = (oneshot::channel(), oneshot::channel());
        let (bound, is_bound) = oneshot::channel();
        // On a thread of its own: a test blocks its thread while a command runs, and a server that could not go on
        // would keep the lock of the database all the while.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = Server::bind_with_clock(config, standing).await.unwrap();
                let addresses = (server.https_address(), server.boot_address(), server.metrics_address());
                assert!(bound.send((addresses, server.contacts())).is_ok());
                server.serve(async { drop(stopped.await) }).await;
            });
            let _ = ended.send(());
        });
        let ((https, boot, metrics), contacts) = is_bound.await.unwrap();
        let url = format!("https://{}", https.unwrap());
        let boot_url = format!("http://{}", boot.unwrap().unwrap());
        let metrics_url = format!("http://{}", metrics.unwrap().unwrap());
        Self { url, boot_url, metrics_url, contacts, stop, done }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.done.await.unwrap();
    }
}

/// Whether a text is anywhere in the database. Of SQLite, also in its log.
pub fn is_stored(data: &Path, text: &str) -> bool {
    let read = |file: &str| std::fs::read(data.join(file)).unwrap_or_default();
    let files = || ["slipway.db", "slipway.db-wal"].map(read).concat();
    postgres::dump_if_asked(data).unwrap_or_else(files).windows(text.len()).any(|found| found == text.as_bytes())
}

/// A clock that stands still, so all requests of a test are within one minute.
fn standing() -> Instant {
    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
    *NOW
}

/// Every client needs it, also one without TLS.
pub fn install_provider() {
    static PROVIDER: Once = Once::new();
    // A bucket may have installed it before.
    PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// Builder of a client that trusts only this CA.
pub fn trusting(ca: &str) -> ClientBuilder {
    install_provider();
    Client::builder().tls_certs_only([Certificate::from_pem(ca.as_bytes()).unwrap()])
}

/// A machine that wants to enrol.
pub struct Machine {
    pub key: KeyPair,
    pub identity: Identity,
    pub boot_id: String,
    pub token: Option<String>,
    pub tpm: Option<Tpm>,
}

impl Machine {
    pub fn with_uuid(uuid: &str) -> Self {
        Self::new(Identity { uuid: Some(uuid.to_owned()), ..Identity::default() })
    }

    pub fn new(identity: Identity) -> Self {
        let key = KeyPair::generate().unwrap();
        Self { key, identity, boot_id: "boot-1".to_owned(), token: None, tpm: None }
    }

    pub fn csr(&self) -> String {
        CertificateParams::new(Vec::new()).unwrap().serialize_request(&self.key).unwrap().pem().unwrap()
    }

    pub fn request(&self) -> EnrolRequest {
        EnrolRequest {
            identity: self.identity.clone(),
            inventory: Inventory::default(),
            csr: self.csr(),
            agent_version: "test".to_owned(),
            boot_id: self.boot_id.clone(),
            bootstrap_token: self.token.clone(),
            tpm: self.tpm.clone(),
            timing: None,
        }
    }

    pub async fn try_enrol(&self, server: &TestServer) -> Response {
        let request = self.request();
        server.client().post(server.url("/v1/enrol")).json(&request).send().await.unwrap()
    }
}

/// An enrolled machine.
pub struct Node {
    pub machine: Machine,
    pub enrolment: Enrolment,
    /// Uses the node's certificate.
    pub client: Client,
}

impl Node {
    pub async fn enrol(server: &TestServer, machine: Machine) -> Self {
        let response = machine.try_enrol(server).await;
        assert_eq!(response.status(), StatusCode::OK);
        let enrolment: Enrolment = response.json().await.unwrap();
        let client = with_certificate(&server.ca(), &machine.key, &enrolment.certificate);
        Self { machine, enrolment, client }
    }

    /// A connection with the node's certificate.
    pub async fn connect(&self, server: &TestServer) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(server.ca().as_bytes()).unwrap()).unwrap();
        let chain = CertificateDer::pem_slice_iter(self.enrolment.certificate.as_bytes()).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(self.machine.key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();
        let stream = TcpStream::connect(server.url("").strip_prefix("https://").unwrap()).await.unwrap();
        TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await.unwrap()
    }

    /// Asks for work without waiting.
    pub async fn workflow(&self, server: &TestServer) -> Option<Workflow> {
        let response = self.client.get(server.url("/v1/node/workflow?wait=0")).send().await.unwrap();
        match response.status() {
            StatusCode::NO_CONTENT => None,
            StatusCode::OK => Some(response.json().await.unwrap()),
            other => panic!("{other}"),
        }
    }

    pub async fn post_events(&self, server: &TestServer, run: &str, events: &[Event]) -> Response {
        let body = serde_json::json!({ "run": run, "events": events });
        self.client.post(server.url("/v1/node/events")).json(&body).send().await.unwrap()
    }

    /// Reports every step of a run as done.
    pub async fn finish(&self, server: &TestServer, workflow: &Workflow) {
        self.finish_with(server, workflow, |_| Outcome::default()).await;
    }

    /// Has every step succeed with the outcome for its action.
    pub async fn finish_with(&self, server: &TestServer, workflow: &Workflow, outcome: fn(&Action) -> Outcome) {
        let mut seq = workflow.next_seq;
        let mut events = Vec::new();
        for (step, done) in (0..).zip(&workflow.steps) {
            for kind in [EventKind::Started, EventKind::Succeeded(outcome(&done.action))] {
                events.push(Event { seq, at: 1, step, attempt: 1, kind });
                seq += 1;
            }
        }
        let response = self.post_events(server, &workflow.run, &events).await;
        assert_eq!(response.status(), StatusCode::OK);
    }
}

pub fn with_certificate(ca: &str, key: &KeyPair, certificate: &str) -> Client {
    let pem = key.serialize_pem() + certificate;
    let identity = reqwest::Identity::from_pem(pem.as_bytes()).unwrap();
    trusting(ca).identity(identity).build().unwrap()
}

/// The error of a refusal. Checks that the status matches the code.
pub async fn refusal(response: Response) -> ErrorBody {
    let status = response.status();
    let body: ErrorBody = response.json().await.unwrap();
    assert_eq!(body.code.status(), status.as_u16());
    body
}
