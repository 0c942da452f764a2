//! The requests of a node, one function each.

use std::io::Write;
use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use slipway_actions::http_proxy;
use slipway_protocol::node::attestation::CHALLENGE_TYPE;
use slipway_protocol::workflow::capture::UPLOAD_OFFSET;
use slipway_protocol::{
    CapturedImage, EnrolRequest, Enrolment, ErrorBody, ErrorCode, EventAck, EventBatch, Inventory, MAX_WORKFLOW_BYTES,
    POLL_SECONDS, RecoveryKey, RenewRequest, TpmChallenge, Wait, Workflow,
};

use crate::config::Config;
use crate::server::tls::{self, NodeCertificate, TlsError};

/// Time limits for connecting, and for a whole request with its answer.
const CONNECT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(15);
/// Time limit for sending a piece of an image over a slow line and for the server to store it. The server has the same
/// limit for a request.
const PIECE_PATIENCE: Duration = Duration::from_secs(60);

/// Why a request got no usable answer.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ClientError {
    /// The connection failed or broke.
    #[error("{what} at {url}")]
    Transport { what: &'static str, url: String, source: reqwest::Error },
    /// The server's certificate failed the check against the boot medium's CA.
    #[error("{what} at {url}: the server is not trusted, so nothing was sent: {verdict}")]
    Untrusted { what: &'static str, url: String, verdict: String },
    /// The server refused the request.
    #[error("{what} at {url}: refused with status {status}")]
    Refused { what: &'static str, url: String, status: StatusCode, source: Box<ErrorBody> },
    /// The answer does not follow the protocol.
    #[error("{what} at {url}: the answer with status {status} cannot be read")]
    Answer {
        what: &'static str,
        url: String,
        status: StatusCode,
        /// Error of reading or parsing the answer.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server repeatedly rejects the proof of the TPM.
    #[error("enrolling: the server does not accept this machine's TPM proof; the server's log says why")]
    Unproved,
    /// The TLS client could not be set up.
    #[error("setting up TLS")]
    Tls {
        #[from]
        source: TlsError,
    },
}

impl ClientError {
    pub(crate) fn transport(what: &'static str, url: &Url, source: reqwest::Error) -> Self {
        let url = url.to_string();
        match tls::certificate_verdict(&source) {
            Some(verdict) => Self::Untrusted { what, url, verdict },
            // The URL is already in our message.
            None => Self::Transport { what, url, source: source.without_url() },
        }
    }

    /// Whether the node's credentials no longer work: the server does not know them, or the node was decommissioned.
    pub(crate) fn is_shut_out(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::Unauthenticated | ErrorCode::Decommissioned))
    }

    /// Returns the server's reason, if it gave one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { source, .. } => Some(source.code),
            _ => None,
        }
    }

    /// Whether the server could not be reached or cannot serve now.
    pub fn is_outage(&self) -> bool {
        self.is_transient() && !matches!(self, Self::Untrusted { .. })
    }

    /// Whether the same request may succeed later: the server is away, overloaded or faulty.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Transport { .. } | Self::Untrusted { .. } => true,
            Self::Refused { status, .. } | Self::Answer { status, .. } => {
                status.is_server_error() || matches!(status.as_u16(), 408 | 429)
            }
            Self::Unproved | Self::Tls { .. } => false,
        }
    }
}

/// The server's answer to an enrolment request.
#[derive(Debug)]
pub enum Enrolled {
    /// Admitted: the node's credentials.
    Yes(Enrolment),
    /// An operator must act. Ask again after this time.
    Wait(Wait, Duration),
    /// The TPM must prove itself with this challenge.
    Prove(TpmChallenge),
}

/// Sends requests as an unknown machine or as a node.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    server: Url,
    bearer: Option<slipway_protocol::Secret>,
}

/// Makes an HTTP client. `what` and `url` describe its purpose in errors.
pub(crate) fn http(
    tls: rustls::ClientConfig,
    config: &Config,
    what: &'static str,
    url: &Url,
) -> Result<reqwest::Client, ClientError> {
    let mut builder = reqwest::Client::builder();
    if let Some(proxy) = config.machine.proxy() {
        builder = builder.proxy(http_proxy(&proxy).map_err(|source| ClientError::transport(what, url, source))?);
    }
    let builder = builder
        .tls_backend_preconfigured(tls)
        .https_only(true)
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT)
        .user_agent(concat!("slipway/", env!("CARGO_PKG_VERSION")));
    builder.build().map_err(|source| ClientError::transport(what, url, source))
}

pub(crate) fn join(server: &Url, path: &str) -> Url {
    let mut url = server.clone();
    url.set_path(&format!("{}/{path}", server.path().trim_end_matches('/')));
    url.set_query(None);
    url
}

impl Client {
    /// Makes a client without credentials.
    pub fn new(config: &Config) -> Result<Self, ClientError> {
        Self::build(config, None, None)
    }

    /// Makes a client with a node's credentials.
    pub fn of_node(config: &Config, node: &NodeCertificate, jwt: String) -> Result<Self, ClientError> {
        Self::build(config, Some(node), Some(jwt.into()))
    }

    /// Makes a client with a run's token.
    pub fn of_run(config: &Config, token: slipway_protocol::Secret) -> Result<Self, ClientError> {
        Self::build(config, None, Some(token))
    }

    fn build(
        config: &Config,
        node: Option<&NodeCertificate>,
        bearer: Option<slipway_protocol::Secret>,
    ) -> Result<Self, ClientError> {
        let http = http(tls::client(&config.ca, node)?, config, "setting up a connection", &config.server)?;
        Ok(Self { http, server: config.server.clone(), bearer })
    }

    /// Sends `POST /v1/enrol`.
    pub async fn enrol(&self, request: &EnrolRequest) -> Result<Enrolled, ClientError> {
        let ask = Ask::new("enrolling", Method::POST, "v1/enrol");
        let answer = self.ask(&ask, |r| r.json(request)).await?;
        if answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == CHALLENGE_TYPE) {
            return Ok(Enrolled::Prove(self.read(&ask, answer).await?));
        }
        let answer = self.success(&ask, answer).await?;
        if answer.status() == StatusCode::ACCEPTED {
            let after = answer.headers().get(reqwest::header::RETRY_AFTER);
            let seconds = after.and_then(|v| v.to_str().ok()).and_then(|t| t.parse().ok()).unwrap_or(5u64);
            let wait = self.read(&ask, answer).await?;
            return Ok(Enrolled::Wait(wait, Duration::from_secs(seconds.clamp(1, 300))));
        }
        Ok(Enrolled::Yes(self.read(&ask, answer).await?))
    }

    /// Sends `POST /v1/node/renew`.
    pub async fn renew(&self, request: &RenewRequest) -> Result<Enrolment, ClientError> {
        let ask = Ask::new("renewing the credentials", Method::POST, "v1/node/renew");
        let answer = self.send(&ask, |r| r.json(request)).await?;
        self.read(&ask, answer).await
    }

    /// Sends `PUT /v1/node/inventory`.
    pub async fn inventory(&self, inventory: &Inventory) -> Result<(), ClientError> {
        let ask = Ask::new("reporting the hardware of this machine", Method::PUT, "v1/node/inventory");
        self.send(&ask, |r| r.json(inventory)).await.map(drop)
    }

    /// Sends `GET /v1/node/workflow`, which is a long poll. Returns `None` if there is no work.
    pub async fn workflow(&self) -> Result<Option<Workflow>, ClientError> {
        let patience = Duration::from_secs(POLL_SECONDS) + SILENCE;
        let ask = Ask { patience, ..Ask::new("asking for work", Method::GET, "v1/node/workflow") };
        let answer = self.send(&ask, |r| r).await?;
        if answer.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        self.read(&ask, answer).await.map(Some)
    }

    /// Sends `POST /v1/node/events`.
    pub async fn events(&self, batch: &EventBatch) -> Result<EventAck, ClientError> {
        let ask = Ask::new("reporting", Method::POST, "v1/node/events");
        let answer = self.send(&ask, |r| r.json(batch)).await?;
        self.read(&ask, answer).await
    }

    /// Sends `POST /v1/node/logs` with text that begins at `offset`, in bytes from the start of this boot's log.
    pub async fn logs(&self, boot_id: &str, offset: u64, run: Option<&str>, text: &str) -> Result<(), ClientError> {
        #[derive(Serialize)]
        struct Query<'a> {
            boot_id: &'a str,
            offset: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            run: Option<&'a str>,
        }
        let ask = Ask::new("sending the log", Method::POST, "v1/node/logs");
        let body = compress(text.as_bytes());
        let request = |r: reqwest::RequestBuilder| {
            r.query(&Query { boot_id, offset, run })
                .header(reqwest::header::CONTENT_ENCODING, "gzip")
                .header(CONTENT_TYPE, "text/plain; charset=utf-8")
                .body(body)
        };
        self.send(&ask, request).await.map(drop)
    }

    /// Sends `POST /v1/node/heartbeat`.
    pub async fn heartbeat(&self) -> Result<(), ClientError> {
        self.send(&Ask::new("sending a heartbeat", Method::POST, "v1/node/heartbeat"), |r| r).await.map(drop)
    }

    /// Sends `POST /v1/node/runs/{run}/captures/{name}`.
    pub async fn begin_capture(&self, run: &str, name: &str) -> Result<(), ClientError> {
        let ask =
            Ask::new("starting the upload of an image", Method::POST, format!("v1/node/runs/{run}/captures/{name}"));
        self.send(&ask, |r| r).await.map(drop)
    }

    /// Sends `PUT /v1/node/runs/{run}/captures/{name}` with a piece of an image. Returns how many bytes of the image
    /// the server now has, whether or not it took the piece.
    pub async fn put_capture(&self, run: &str, name: &str, offset: u64, piece: Vec<u8>) -> Result<u64, ClientError> {
        let path = format!("v1/node/runs/{run}/captures/{name}");
        let ask = Ask { patience: PIECE_PATIENCE, ..Ask::new("sending a part of an image", Method::PUT, path) };
        let binary = "application/octet-stream";
        let fill = |r: reqwest::RequestBuilder| r.query(&[("offset", offset)]).header(CONTENT_TYPE, binary).body(piece);
        let answer = self.ask(&ask, fill).await?;
        let stored = answer.headers().get(UPLOAD_OFFSET).and_then(|v| v.to_str().ok()).and_then(|t| t.parse().ok());
        if let Some(stored) = stored {
            return Ok(stored);
        }
        let status = self.success(&ask, answer).await?.status();
        let (what, url) = (ask.what, join(&self.server, &ask.path).to_string());
        Err(ClientError::Answer { what, url, status, source: format!("it has no header {UPLOAD_OFFSET}").into() })
    }

    /// Sends `POST /v1/node/runs/{run}/captures`. Returns false while the server verifies the image: ask again.
    pub async fn commit_capture(&self, run: &str, image: &CapturedImage) -> Result<bool, ClientError> {
        let path = format!("v1/node/runs/{run}/captures");
        let ask = Ask { patience: PIECE_PATIENCE, ..Ask::new("completing the upload of an image", Method::POST, path) };
        let answer = self.send(&ask, |r| r.json(image)).await?;
        Ok(answer.status() != StatusCode::ACCEPTED)
    }

    /// Sends `POST /v1/node/runs/{run}/recovery-keys`. After success the key is stored durably.
    pub async fn store_recovery_key(&self, run: &str, key: &RecoveryKey) -> Result<(), ClientError> {
        let ask = Ask::new("storing a recovery key", Method::POST, format!("v1/node/runs/{run}/recovery-keys"));
        self.send(&ask, |r| r.json(key)).await.map(drop)
    }

    /// Sends a request. Any answer other than success is an error.
    pub(crate) async fn send(
        &self,
        ask: &Ask,
        fill: impl FnOnce(reqwest::RequestBuilder) -> reqwest::RequestBuilder,
    ) -> Result<Response, ClientError> {
        let answer = self.ask(ask, fill).await?;
        self.success(ask, answer).await
    }

    /// Sends a request and returns the answer, whatever its status.
    async fn ask(
        &self,
        ask: &Ask,
        fill: impl FnOnce(reqwest::RequestBuilder) -> reqwest::RequestBuilder,
    ) -> Result<Response, ClientError> {
        let url = join(&self.server, &ask.path);
        let mut request = self.http.request(ask.method.clone(), url.clone()).timeout(ask.patience);
        if let Some(token) = &self.bearer {
            request = request.bearer_auth(token.reveal());
        }
        fill(request).send().await.map_err(|source| ClientError::transport(ask.what, &url, source))
    }

    async fn success(&self, ask: &Ask, answer: Response) -> Result<Response, ClientError> {
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        match self.read::<ErrorBody>(ask, answer).await {
            Ok(body) => {
                let (what, url) = (ask.what, join(&self.server, &ask.path).to_string());
                Err(ClientError::Refused { what, url, status, source: Box::new(body) })
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn read<T: DeserializeOwned>(&self, ask: &Ask, mut answer: Response) -> Result<T, ClientError> {
        let url = join(&self.server, &ask.path);
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|e| ClientError::transport(ask.what, &url, e))? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_WORKFLOW_BYTES {
                let source = format!("it is larger than {MAX_WORKFLOW_BYTES} bytes").into();
                return Err(ClientError::Answer { what: ask.what, url: url.to_string(), status, source });
            }
        }
        serde_json::from_slice(&body).map_err(|e| ClientError::Answer {
            what: ask.what,
            url: url.to_string(),
            status,
            source: Box::new(e),
        })
    }
}

pub(crate) struct Ask {
    what: &'static str,
    method: Method,
    path: String,
    patience: Duration,
}

impl Ask {
    pub(crate) fn new(what: &'static str, method: Method, path: impl Into<String>) -> Self {
        Self { what, method, path: path.into(), patience: SILENCE }
    }

    /// Returns the same request for an answer that may come so much later.
    pub(crate) fn held(self, wait: Duration) -> Self {
        Self { patience: self.patience + wait, ..self }
    }

    /// Returns the same request with the longer time limit for a large body.
    pub(crate) fn patient(self) -> Self {
        Self { patience: PIECE_PATIENCE, ..self }
    }
}

/// Compresses a log for sending.
pub(crate) fn compress(log: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    // Writing to a vector cannot fail.
    gzip.write_all(log).and_then(|()| gzip.finish()).unwrap_or_default()
}
