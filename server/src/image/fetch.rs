//! Fetches an image from a URL before it is added. What arrived stays when the command is stopped, and the same command
//! goes on behind it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use reqwest::header::{ACCEPT_ENCODING, CONTENT_RANGE, ETAG, IF_RANGE, RANGE};
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use sha2::{Digest as _, Sha256};
use slipway_formats::http::resumed_total;
use slipway_protocol::{Algorithm, Digest, ErrorCode};
use tokio::io::AsyncWriteExt;

use super::{CHUNK_BYTES, Incoming, Progress, sha256};
use crate::base::data::DataDir;
use crate::base::error::Error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may send nothing.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Failures in a row, without a byte between them, after which the command fails.
const MAX_FAILURES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(2);

/// An image on another server.
#[derive(Clone, Debug)]
pub struct Remote {
    url: Url,
    digest: Digest,
    ca: Vec<Certificate>,
}

impl Remote {
    /// Takes the URL of a file, its SHA-256, and CA certificates in PEM if the server is not verified with those of
    /// this host.
    pub fn new(url: &str, digest: Digest, ca: Option<&str>) -> Result<Self, Error> {
        let refused = |why: &str| Err(Error::refused(ErrorCode::InvalidRequest, why));
        let Ok(url) = Url::parse(url) else { return refused("the URL of the image cannot be understood") };
        if !matches!(url.scheme(), "https" | "http") {
            return refused("the URL of an image starts with https:// or http://");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refused(
                "the URL of the image has a password, which every user of this host can read on the command line: \
                 fetch the file with another program, and add it",
            );
        }
        if digest.algorithm() != Algorithm::Sha256 {
            return refused("the digest of an image that is fetched must be a SHA-256");
        }
        let ca = match ca {
            None => Vec::new(),
            Some(pem) => match Certificate::from_pem_bundle(pem.as_bytes()) {
                Ok(certificates) if !certificates.is_empty() => certificates,
                _ => return refused("the file of --ca has no certificate in PEM"),
            },
        };
        Ok(Self { url, digest, ca })
    }

    pub(super) fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The last part of the URL's path, which is the image's name.
    pub fn file_name(&self) -> String {
        let last = self.url.path_segments().and_then(|mut parts| parts.next_back()).filter(|last| !last.is_empty());
        last.unwrap_or("image").to_owned()
    }

    /// The URL for messages, without its query, which may be a secret.
    fn shown(&self) -> String {
        let mut url = self.url.clone();
        url.set_query(None);
        url.set_fragment(None);
        url.to_string()
    }

    fn client(&self) -> reqwest::Result<Client> {
        // Another provider may be set already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().referer(false).connect_timeout(CONNECT_TIMEOUT).read_timeout(STALL_TIMEOUT);
        if self.ca.is_empty() { client.build() } else { client.tls_certs_only(self.ca.clone()).build() }
    }
}

/// Why a try ended.
enum Ended {
    /// Another try may go on.
    Transient(String),
    Final(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// Fetches an image into the data folder, or the rest of it. Returns the complete file, and its size in bytes.
pub(super) async fn fetch(
    data: &DataDir,
    remote: &Remote,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(Incoming, u64), Error> {
    let path = data.fetched_image(&remote.digest);
    let mut fetched = Fetched::open(&path).await?;
    let failed = |source: reqwest::Error| {
        Error::refused(ErrorCode::Internal, format!("preparing to fetch {}: {source}", remote.shown()))
    };
    let client = remote.client().map_err(failed)?;
    let (mut failures, mut etag) = (0, None);
    loop {
        let before = fetched.size;
        let why = match fetched.go_on(&client, remote, &mut etag, progress).await {
            Ok(()) => break,
            Err(Ended::Final(error)) => return Err(error),
            Err(Ended::Transient(why)) => why,
        };
        failures = if fetched.size > before { 1 } else { failures + 1 };
        if failures >= MAX_FAILURES {
            let message = format!(
                "fetching {} stopped after {} bytes: {why}; the same command goes on from there",
                remote.shown(),
                fetched.size
            );
            return Err(Error::refused(ErrorCode::Unavailable, message));
        }
        tracing::warn!(url = remote.shown(), bytes = fetched.size, why, "fetching the image again");
        tokio::time::sleep(PAUSE * failures).await;
    }
    fetched.complete(remote).await
}

/// What has arrived of a file.
struct Fetched {
    incoming: Incoming,
    file: tokio::fs::File,
    size: u64,
    hash: Sha256,
}

impl Fetched {
    /// Opens the file, and computes the digest of what is there.
    async fn open(path: &Path) -> Result<Self, Error> {
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || {
            let failed = |doing| {
                let path = path.clone();
                move |source| Error::File { doing, path, source }
            };
            let mut options = File::options();
            let opened = options.read(true).write(true).create(true).truncate(false).open(&path);
            let mut file = opened.map_err(failed("opening"))?;
            if file.try_lock().is_err() {
                let message = "another command fetches this image; wait until it has ended";
                return Err(Error::refused(ErrorCode::Conflict, message));
            }
            let (mut hash, mut size, mut chunk) = (Sha256::new(), 0, vec![0; CHUNK_BYTES]);
            loop {
                match file.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(read) => {
                        hash.update(chunk.get(..read).unwrap_or_default());
                        size += read as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(failed("reading")(error)),
                }
            }
            let second = file.try_clone().map_err(failed("opening"))?;
            // It stays, so that another command can go on.
            let incoming = Incoming { path, file, is_kept: true };
            Ok(Self { incoming, file: tokio::fs::File::from_std(second), size, hash })
        });
        opened.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
    }

    /// Fetches what is missing. `etag` is that of the answer before.
    async fn go_on(
        &mut self,
        client: &Client,
        remote: &Remote,
        etag: &mut Option<String>,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), Ended> {
        let transient = |error: reqwest::Error| Ended::Transient(text(&error.without_url()));
        let mut request = client.get(remote.url.clone()).header(ACCEPT_ENCODING, "identity");
        if self.size > 0 {
            request = request.header(RANGE, format!("bytes={}-", self.size));
            if let Some(etag) = &*etag {
                request = request.header(IF_RANGE, etag);
            }
        }
        let mut answer = request.send().await.map_err(transient)?;
        let Some(total) = self.begin(&answer, remote).await? else { return Ok(()) };
        *etag = header(&answer, &ETAG).filter(|etag| etag.starts_with('"'));
        while let Some(bytes) = answer.chunk().await.map_err(transient)? {
            self.file.write_all(&bytes).await.map_err(|source| self.failed("writing", source))?;
            self.hash.update(&bytes);
            self.size += bytes.len() as u64;
            progress(Progress { doing: "fetching", done: self.size, total: total.unwrap_or_default() });
        }
        self.file.flush().await.map_err(|source| self.failed("writing", source))?;
        match total {
            Some(total) if self.size < total => Err(Ended::Transient("the server ended the connection".to_owned())),
            _ => Ok(()),
        }
    }

    /// Judges the head of an answer. Returns the size of the file in bytes, if the server says it; `None` if all of it
    /// is there already. If the server cannot go on in the middle, the file becomes empty.
    async fn begin(&mut self, answer: &Response, remote: &Remote) -> Result<Option<Option<u64>>, Ended> {
        let status = answer.status();
        let range = header(answer, &CONTENT_RANGE).unwrap_or_default();
        match status {
            StatusCode::PARTIAL_CONTENT if self.size > 0 => {
                let total = resumed_total(self.size, &range, None, None).map_err(Ended::Transient)?;
                Ok(Some(total))
            }
            // Nothing is behind what is there. The digest tells whether it is all.
            StatusCode::RANGE_NOT_SATISFIABLE if self.size > 0 => Ok(None),
            StatusCode::OK => {
                self.empty().await?;
                Ok(Some(answer.content_length()))
            }
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Err(Ended::Transient(status.to_string())),
            status if status.is_server_error() => Err(Ended::Transient(status.to_string())),
            status => {
                let message = format!("fetching {}: the server answered {status}", remote.shown());
                Err(Error::refused(ErrorCode::InvalidRequest, message).into())
            }
        }
    }

    async fn empty(&mut self) -> Result<(), Error> {
        use tokio::io::AsyncSeekExt;
        let done = async {
            self.file.set_len(0).await?;
            self.file.rewind().await
        };
        done.await.map_err(|source| self.failed("emptying", source))?;
        (self.size, self.hash) = (0, Sha256::new());
        Ok(())
    }

    fn failed(&self, doing: &'static str, source: io::Error) -> Error {
        Error::File { doing, path: self.incoming.path.clone(), source }
    }

    /// Checks the digest, and makes the file one that is removed unless it is published. A wrong file is removed.
    async fn complete(mut self, remote: &Remote) -> Result<(Incoming, u64), Error> {
        let synced = self.file.sync_all().await;
        synced.map_err(|source| self.failed("writing", source))?;
        let found = sha256(self.hash);
        self.incoming.is_kept = false;
        if found == remote.digest {
            return Ok((self.incoming, self.size));
        }
        let message = format!(
            "the file at {} has the digest {found}, not {} as given; is it the right file?",
            remote.shown(),
            remote.digest
        );
        Err(Error::refused(ErrorCode::InvalidRequest, message))
    }
}

fn header(answer: &Response, name: &reqwest::header::HeaderName) -> Option<String> {
    Some(answer.headers().get(name)?.to_str().ok()?.to_owned())
}

/// An error with its causes.
fn text(error: &(dyn std::error::Error + 'static)) -> String {
    crate::base::error::chain(error)
}
