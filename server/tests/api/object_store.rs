//! S3-compatible object stores on this host, which check signatures, for tests: s3s-fs in this process, or Ceph. In
//! front of either stands what tests need to harm requests and to see them.

#[path = "ceph.rs"]
mod ceph;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use futures_util::StreamExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

pub const KEY_ID: &str = "AKIDFORTESTS";
pub const SECRET: &str = "s3cretForTests";
const BUCKET: &str = "images";

/// A program that stores objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Files in a folder.
    S3sFs,
    /// A cluster of Ceph.
    Ceph,
}

impl Program {
    pub const ALL: [Self; 2] = [Self::S3sFs, Self::Ceph];
}

/// A bucket `images`, and what happens to requests on the way to it.
pub struct ObjectStore {
    program: Program,
    /// What the names of objects begin with.
    prefix: String,
    folder: TempDir,
    address: SocketAddr,
    tls: Option<(TlsAcceptor, String)>,
    tests: Arc<Tests>,
    running: Option<JoinHandle<()>>,
}

/// Says whether a request is meant.
pub type Which = fn(&Method, &Uri) -> bool;

/// What tests want of requests.
#[derive(Default)]
pub struct Tests {
    /// Requests that wait until this is another. `None` if none do.
    pub holds: watch::Sender<Option<Which>>,
    /// Number of requests that were held so far.
    pub held: watch::Sender<usize>,
    /// Number of coming requests for an image that are refused like those with an expired URL.
    pub expired: AtomicU32,
    /// Number of bytes of the next image that are sent before the connection is lost; 0 if it is not.
    pub cut_after: AtomicU32,
    /// Whether images are sent slowly.
    pub is_slow: AtomicBool,
    /// Number of bytes of images that were sent.
    pub sent: AtomicU64,
    /// The head of each request for an image: URL and headers.
    pub heads: Mutex<Vec<(Uri, hyper::HeaderMap)>>,
    /// Each request, and the status of its answer.
    pub answers: Mutex<Vec<(Method, Uri, StatusCode)>>,
}

impl Tests {
    /// Lets these requests wait from now on.
    pub fn hold(&self, which: Which) {
        self.holds.send_replace(Some(which));
    }

    /// Waits until this many requests wait, or have waited.
    pub async fn has_held(&self, number: usize) {
        let mut held = self.held.subscribe();
        let waiting = tokio::time::timeout(Duration::from_secs(300), held.wait_for(|held| *held >= number));
        waiting.await.expect("no such request comes").unwrap();
    }

    /// Lets the requests that wait go on.
    pub fn release(&self) {
        self.holds.send_replace(None);
    }

    /// Number of answered requests of this kind.
    pub fn count(&self, which: Which) -> usize {
        self.answers.lock().unwrap().iter().filter(|(method, uri, _)| which(method, uri)).count()
    }
}

/// A part of an upload after the first.
pub fn is_second_part(_: &Method, uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.contains("partNumber=2&"))
}

/// The removal of an image.
pub fn is_removal(method: &Method, uri: &Uri) -> bool {
    method == Method::DELETE && uri.path().contains("/sha256/") && uri.query().is_none()
}

/// The begin of the upload of an image in parts.
pub fn is_begin(method: &Method, uri: &Uri) -> bool {
    method == Method::POST
        && uri.path().contains("/sha256/")
        && uri.query().is_some_and(|query| query.starts_with("uploads"))
}

impl ObjectStore {
    pub async fn start() -> Self {
        Self::start_of(Program::S3sFs, None).await
    }

    /// Starts this program, or uses it if it runs for all tests.
    pub async fn start_program(program: Program) -> Self {
        Self::start_of(program, None).await
    }

    /// An object store with TLS, whose certificate nobody but its own authority signed.
    pub async fn start_with_tls(program: Program) -> Self {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let private = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], private).unwrap();
        Self::start_of(program, Some((TlsAcceptor::from(Arc::new(config)), certificate.pem()))).await
    }

    async fn start_of(program: Program, tls: Option<(TlsAcceptor, String)>) -> Self {
        static CLUSTERS: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let prefix = match program {
            Program::S3sFs => "site".to_owned(),
            // The bucket is that of all tests.
            Program::Ceph => format!("site{}", CLUSTERS.fetch_add(1, Ordering::Relaxed)),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut store = Self { program, prefix, folder, address, tls, tests: Arc::default(), running: None };
        store.run(listener).await;
        store
    }

    /// The URL of the bucket, without its CA.
    pub fn url(&self) -> String {
        self.url_of("")
    }

    /// The URL of the bucket, for a site whose objects have this at the end of their prefix.
    pub fn url_of(&self, site: &str) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("s3://{BUCKET}/{}{site}?endpoint={scheme}://{}", self.prefix, self.address)
    }

    /// The certificate of the object store, in PEM.
    pub fn ca(&self) -> &str {
        &self.tls.as_ref().unwrap().1
    }

    pub fn tests(&self) -> &Tests {
        &self.tests
    }

    /// The same, while the object store is stopped and started.
    pub fn shared(&self) -> &Arc<Tests> {
        &self.tests
    }

    /// The files of the objects whose name begins with this, and of parts of uploads below the root. Only of s3s-fs.
    pub fn files(&self, folder: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path().join(folder)).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
    }

    /// The folder with the bucket of s3s-fs.
    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Kills the program, if it is one, lets all connections break off, and no new ones in.
    pub async fn stop(&mut self) {
        if self.program == Program::Ceph {
            tokio::task::spawn_blocking(ceph::kill_gateway).await.unwrap();
        }
        let running = self.running.take().unwrap();
        running.abort();
        let _ = running.await;
    }

    /// Lets it run again after [`Self::stop`], with the same objects at the same address.
    pub async fn start_again(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.run(listener).await;
    }

    async fn run(&mut self, listener: TcpListener) {
        let behind = match self.program {
            Program::S3sFs => {
                let mut builder = S3ServiceBuilder::new(FileSystem::new(self.folder.path()).unwrap());
                builder.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
                Behind::Service(Box::new(builder.build()))
            }
            Program::Ceph => Behind::Program(tokio::task::spawn_blocking(ceph::address).await.unwrap()),
        };
        let (tests, tls) = (Arc::clone(&self.tests), self.tls.clone());
        self.running = Some(tokio::spawn(async move {
            // Ends all connections on drop.
            let mut connections = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (behind, tests, tls) = (behind.clone(), Arc::clone(&tests), tls.clone());
                connections.spawn(async move {
                    match tls {
                        Some((acceptor, _)) => {
                            if let Ok(socket) = acceptor.accept(socket).await {
                                answer(socket, behind, tests).await;
                            }
                        }
                        None => answer(socket, behind, tests).await,
                    }
                });
            }
        }));
    }
}

/// Who answers requests.
#[derive(Clone)]
enum Behind {
    Service(Box<S3Service>),
    Program(SocketAddr),
}

impl Behind {
    async fn call(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        match self {
            Self::Service(service) => {
                let answer = service.call(request.map(s3s::Body::from)).await;
                answer.map(|answer| answer.map(Body::new)).map_err(|error| io::Error::other(format!("{error:?}")))
            }
            Self::Program(address) => {
                let socket = TokioIo::new(TcpStream::connect(address).await?);
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(socket).await.map_err(io::Error::other)?;
                tokio::spawn(connection);
                // The address that was signed is in its head.
                let answer = sender.send_request(request).await.map_err(io::Error::other)?;
                Ok(answer.map(Body::new))
            }
        }
    }
}

async fn answer(socket: impl AsyncRead + AsyncWrite + Unpin, behind: Behind, tests: Arc<Tests>) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let (behind, tests) = (behind.clone(), Arc::clone(&tests));
        async move {
            let (method, uri) = (request.method().clone(), request.uri().clone());
            let is_held = |holds: &Option<Which>| holds.is_some_and(|which| which(&method, &uri));
            let mut holds = tests.holds.subscribe();
            if is_held(&holds.borrow_and_update()) {
                tests.held.send_modify(|held| *held += 1);
                let _ = holds.wait_for(|holds| !is_held(holds)).await;
            }
            let is_image = method == Method::GET && uri.path().contains("/sha256/");
            if is_image {
                tests.heads.lock().unwrap().push((uri.clone(), request.headers().clone()));
                if tests.expired.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
                {
                    let body = "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>";
                    return Ok::<_, io::Error>(Response::builder().status(403).body(Body::from(body)).unwrap());
                }
            }
            let answer = behind.call(request).await?;
            tests.answers.lock().unwrap().push((method, uri, answer.status()));
            if !is_image {
                return Ok(answer);
            }
            let most = match tests.cut_after.swap(0, Ordering::Relaxed) {
                0 => u32::MAX,
                most => most,
            };
            Ok(answer.map(|body| passed_on(body, most, tests)))
        }
    });
    // Clients and tests end connections as they like.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), answer).await;
}

/// The content of an image, which breaks off after this many bytes.
fn passed_on(body: Body, most: u32, tests: Arc<Tests>) -> Body {
    let mut left = most as usize;
    Body::from_stream(body.into_data_stream().then(move |bytes| {
        let bytes = bytes.map_err(io::Error::other).and_then(|bytes| {
            left = left.checked_sub(bytes.len()).ok_or_else(|| io::Error::other("the test ends the connection"))?;
            Ok(bytes)
        });
        let tests = Arc::clone(&tests);
        async move {
            let bytes = bytes?;
            if tests.is_slow.load(Ordering::Relaxed) {
                // So that what harms it comes in the middle.
                tokio::time::sleep(Duration::from_micros(bytes.len() as u64 / 2)).await;
            }
            tests.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            Ok::<_, io::Error>(bytes)
        }
    }))
}
