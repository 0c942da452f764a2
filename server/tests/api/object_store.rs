//! An S3-compatible object store on this host, which checks signatures, for tests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use futures_util::StreamExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

pub const KEY_ID: &str = "AKIDFORTESTS";
pub const SECRET: &str = "s3cretForTests";

/// A bucket `images`, and what happens to requests on the way to it.
pub struct ObjectStore {
    folder: TempDir,
    address: SocketAddr,
    tls: Option<(TlsAcceptor, String)>,
    tests: Arc<Tests>,
    running: Option<JoinHandle<()>>,
}

/// What tests want of requests.
#[derive(Default)]
pub struct Tests {
    /// Whether uploads never get beyond their first part.
    pub holds_second_parts: AtomicBool,
    /// Wakes when a second part is held.
    pub held: Notify,
    /// Number of coming requests for an image that are refused like those with an expired URL.
    pub expired: AtomicU32,
    /// Number of bytes of the next image that are sent before the connection is lost; 0 if it is not.
    pub cut_after: AtomicU32,
    /// The head of each request for an image: method, URL and headers.
    pub heads: Mutex<Vec<(Uri, hyper::HeaderMap)>>,
}

impl ObjectStore {
    pub async fn start() -> Self {
        Self::start_with(None).await
    }

    /// An object store with TLS, whose certificate nobody but its own authority signed.
    pub async fn start_with_tls() -> Self {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let private = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], private).unwrap();
        Self::start_with(Some((TlsAcceptor::from(Arc::new(config)), certificate.pem()))).await
    }

    async fn start_with(tls: Option<(TlsAcceptor, String)>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("images")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut store = Self { folder, address, tls, tests: Arc::default(), running: None };
        store.run(listener);
        store
    }

    /// The URL of the bucket, without its CA.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("s3://images/site?endpoint={scheme}://{}", self.address)
    }

    /// The certificate of the object store, in PEM.
    pub fn ca(&self) -> &str {
        &self.tls.as_ref().unwrap().1
    }

    pub fn tests(&self) -> &Tests {
        &self.tests
    }

    /// The files of the objects whose name begins with this, and of parts of uploads below the root.
    pub fn files(&self, folder: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path().join(folder)).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
    }

    /// The folder with the bucket.
    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Lets all connections break off, and no new ones in.
    pub async fn stop(&mut self) {
        let running = self.running.take().unwrap();
        running.abort();
        let _ = running.await;
    }

    /// Lets it run again after [`Self::stop`], with the same objects at the same address.
    pub async fn start_again(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.run(listener);
    }

    fn run(&mut self, listener: TcpListener) {
        let mut builder = S3ServiceBuilder::new(FileSystem::new(self.folder.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
        let (service, tests, tls) = (builder.build(), Arc::clone(&self.tests), self.tls.clone());
        self.running = Some(tokio::spawn(async move {
            // Ends all connections on drop.
            let mut connections = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (service, tests, tls) = (service.clone(), Arc::clone(&tests), tls.clone());
                connections.spawn(async move {
                    match tls {
                        Some((acceptor, _)) => {
                            if let Ok(socket) = acceptor.accept(socket).await {
                                answer(socket, service, tests).await;
                            }
                        }
                        None => answer(socket, service, tests).await,
                    }
                });
            }
        }));
    }
}

async fn answer(socket: impl AsyncRead + AsyncWrite + Unpin, service: S3Service, tests: Arc<Tests>) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let (service, tests) = (service.clone(), Arc::clone(&tests));
        async move {
            let is_second = request.uri().query().is_some_and(|query| query.contains("partNumber=2&"));
            if is_second && tests.holds_second_parts.load(Ordering::Relaxed) {
                tests.held.notify_one();
                std::future::pending::<()>().await;
            }
            let is_image = request.method() == "GET" && request.uri().path().contains("/sha256/");
            if is_image {
                tests.heads.lock().unwrap().push((request.uri().clone(), request.headers().clone()));
                if tests.expired.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
                {
                    let body = "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>";
                    return Ok::<_, Infallible>(Response::builder().status(403).body(Body::from(body)).unwrap());
                }
            }
            let answer = service.call(request.map(s3s::Body::from)).await.unwrap().map(Body::new);
            Ok(match if is_image { tests.cut_after.swap(0, Ordering::Relaxed) } else { 0 } {
                0 => answer,
                most => answer.map(|body| cut(body, most)),
            })
        }
    });
    // Clients and tests end connections as they like.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), answer).await;
}

/// A body that breaks off after this many bytes.
fn cut(body: Body, most: u32) -> Body {
    let mut left = most as usize;
    Body::from_stream(body.into_data_stream().map(move |bytes| {
        let bytes = bytes.map_err(std::io::Error::other)?;
        left = left.checked_sub(bytes.len()).ok_or_else(|| std::io::Error::other("the test ends the connection"))?;
        Ok::<_, std::io::Error>(bytes)
    }))
}
