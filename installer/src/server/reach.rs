//! Checks whether the host at the other end of a connection is the server. Any host on a network can accept a
//! connection; only the server can complete a TLS handshake with a certificate of the boot medium's CA.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::Url;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::config::Config;
use crate::server::tls::{self, TlsError};

/// Maximum number of bytes in a handshake. A certificate chain has a few kilobytes.
const MOST: u64 = 64 << 10;
/// Maximum number of bytes in a proxy's answer.
const MOST_OF_PROXY: usize = 8 << 10;
/// How long a proxy may take to connect to the server.
const TUNNEL: Duration = Duration::from_secs(10);

/// The server's address, its proxy if any, and the TLS settings that verify it.
#[derive(Clone)]
pub struct Server {
    url: Url,
    /// URL of the proxy, if there is one.
    proxy: Option<Url>,
    name: ServerName<'static>,
    connector: TlsConnector,
}

/// Why the server's address or CA cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ServerError {
    /// The host is not a name that a certificate can have.
    #[error("{host:?} in the server's URL is neither a host name nor an IP address")]
    Name { host: String },
    /// The URL of the server or of its proxy cannot be used.
    #[error("reading {url}, the URL of the server or of its proxy")]
    Url { url: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// The CA cannot be used.
    #[error("setting up TLS")]
    Tls {
        #[from]
        source: TlsError,
    },
}

/// Why a host that accepted a connection is not accepted as the server.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Stranger {
    /// The host did not complete the handshake in time.
    #[error("it accepts connections, but does not finish a TLS handshake in {} s", patience.as_secs())]
    Slow { patience: Duration },
    /// The host's certificate failed the check.
    #[error("the server is not trusted, so nothing was sent: {verdict}")]
    Untrusted { verdict: String },
    /// The proxy refused to connect to the server.
    #[error("the proxy does not connect to {to}: it says {answer:?}{}", advice(answer))]
    Proxy {
        /// Host and port of the server.
        to: String,
        /// The first line of the proxy's answer, cut to 100 characters.
        answer: String,
    },
    /// The connection to the proxy broke, or its answer could not be parsed.
    #[error("asking the proxy to connect to {to}")]
    NoAnswer {
        /// Host and port of the server.
        to: String,
        source: io::Error,
    },
    /// The host does not speak TLS, or the connection broke.
    #[error("it accepts connections, but the TLS handshake fails")]
    Handshake { source: io::Error },
}

impl Server {
    /// Makes the server of a configuration.
    pub fn new(config: &Config) -> Result<Self, ServerError> {
        let url = config.server.clone();
        let host = url.host_str().unwrap_or_default();
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|_| ServerError::Name { host: host.to_owned() })?;
        let proxy = proxy_to(config)?;
        // The clock is set only once there is a network, so validity dates are not compared with it. Chain and name are
        // verified.
        let connector = TlsConnector::from(Arc::new(tls::client_for_clock(&config.ca)?));
        Ok(Self { url, proxy, name, connector })
    }

    /// Returns the host and port to connect to: the proxy's if there is a proxy, else the server's.
    pub fn first_hop(&self) -> (&str, u16) {
        host_and_port(self.proxy.as_ref().unwrap_or(&self.url))
    }

    /// Fails unless the server is at the other end of `stream`, or behind the proxy there. Sends the server only the
    /// handshake, which may take `patience`.
    pub async fn verify(&self, mut stream: TcpStream, patience: Duration) -> Result<(), Stranger> {
        if self.proxy.is_some() {
            let (host, port) = host_and_port(&self.url);
            let to = format!("{host}:{port}");
            let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {} s", TUNNEL.as_secs()));
            match tokio::time::timeout(TUNNEL, open_tunnel(&mut stream, &to)).await {
                Ok(opened) => opened?,
                Err(_) => return Err(Stranger::NoAnswer { to, source: late() }),
            }
        }
        let (read, write) = stream.into_split();
        let bounded = tokio::io::join(read.take(MOST), write);
        match tokio::time::timeout(patience, self.connector.connect(self.name.clone(), bounded)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(source)) => Err(match tls::certificate_verdict(&source) {
                Some(verdict) => Stranger::Untrusted { verdict },
                None => Stranger::Handshake { source },
            }),
            Err(_) => Err(Stranger::Slow { patience }),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = host_and_port(&self.url);
        write!(f, "https://{host}:{port}")?;
        match self.proxy.as_ref().map(host_and_port) {
            Some((host, port)) => write!(f, " through the proxy {host}:{port}"),
            None => Ok(()),
        }
    }
}

/// Returns host and port of a URL. The schemes http and https have default ports.
fn host_and_port(url: &Url) -> (&str, u16) {
    (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or(443))
}

/// Returns the proxy for the server, chosen by the same rules as in the HTTP client for all other requests.
fn proxy_to(config: &Config) -> Result<Option<Url>, ServerError> {
    let Some(proxy) = config.machine.proxy() else { return Ok(None) };
    let matcher = Matcher::builder().all(proxy.url.as_str()).no(proxy.except.as_str()).build();
    let server: Uri = config.server.as_str().parse().map_err(wrong_url(config.server.as_str()))?;
    matcher.intercept(&server).map(|_| proxy.url.parse().map_err(wrong_url(&proxy.url))).transpose()
}

fn wrong_url<E: std::error::Error + Send + Sync + 'static>(url: &str) -> impl FnOnce(E) -> ServerError {
    let url = url.to_owned();
    |source| ServerError::Url { url, source: Box::new(source) }
}

/// Asks an HTTP proxy to connect to a host and port (RFC 9110, section 9.3.6).
async fn open_tunnel(stream: &mut TcpStream, to: &str) -> Result<(), Stranger> {
    let broken = |source| Stranger::NoAnswer { to: to.to_owned(), source };
    let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(broken)?;
    let mut answer = Vec::new();
    // Read byte by byte, because the server's bytes follow the proxy's answer.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() == MOST_OF_PROXY {
            return Err(broken(io::Error::other(format!("its answer has more than {MOST_OF_PROXY} bytes"))));
        }
        answer.push(stream.read_u8().await.map_err(broken)?);
    }
    let line = String::from_utf8_lossy(answer.split(|byte| *byte == b'\r').next().unwrap_or_default());
    match status(&line) {
        // The HTTP client for all other requests also accepts only 200.
        Some("200") => Ok(()),
        _ => Err(Stranger::Proxy { to: to.to_owned(), answer: line.chars().take(100).collect() }),
    }
}

/// Returns the status code in an answer's first line (RFC 9112, section 4).
fn status(line: &str) -> Option<&str> {
    line.strip_prefix("HTTP/1.")?.split(' ').nth(1)
}

/// Returns what an operator can do about a proxy's answer.
fn advice(answer: &str) -> &'static str {
    match status(answer) {
        Some("403") => {
            "; allow this connection in the proxy (with squid: in SSL_ports, and for the machines' addresses)"
        }
        Some("407") => "; let machines use the proxy without a login, because slipway has none",
        _ => "",
    }
}
