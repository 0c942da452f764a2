//! Whether the host at the other end of a connection is the server. Anybody on a network can accept a connection; only
//! the server can finish a TLS handshake that the CA of the boot medium vouches for.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::tls::{self, TlsError};

/// Most bytes that a handshake may take. A chain of certificates is a few kilobytes.
const MOST: u64 = 64 << 10;

/// How the server is recognised.
#[derive(Clone)]
pub struct Server {
    name: ServerName<'static>,
    connector: TlsConnector,
}

/// Why there is no way to recognise the server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No certificate can be for this name.
    #[error("{host:?} in the server's URL is neither a host name nor an IP address")]
    Name {
        /// The host of the URL.
        host: String,
    },
    /// The CA cannot be used.
    #[error("setting up TLS")]
    Tls {
        /// The cause.
        #[from]
        source: TlsError,
    },
}

/// Why a host that accepted a connection is not the server.
#[derive(Debug, thiserror::Error)]
pub enum Stranger {
    /// It did not finish the handshake in time.
    #[error("it accepts connections, but does not finish a TLS handshake in {} s", patience.as_secs())]
    Slow {
        /// How long it had.
        patience: Duration,
    },
    /// Its certificate is not the server's.
    #[error("the server is not trusted, so nothing was sent: {verdict}")]
    Untrusted {
        /// Result of the certificate check.
        verdict: String,
    },
    /// It does not speak TLS, or the connection broke.
    #[error("it accepts connections, but the TLS handshake fails")]
    Handshake {
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl Server {
    /// The server with this host in its URL, whose certificate one of these CAs signed.
    pub fn new(host: &str, ca: &str) -> Result<Self, ServerError> {
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|_| ServerError::Name { host: host.to_owned() })?;
        // The clock is set by the server's, once there is a network. Chain and name are verified.
        let connector = TlsConnector::from(Arc::new(tls::client_for_clock(ca)?));
        Ok(Self { name, connector })
    }

    /// Whether the server is at the other end. Sends nothing but the handshake.
    pub async fn verify(&self, stream: TcpStream, patience: Duration) -> Result<(), Stranger> {
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
