//! The attacks. Whatever the server closes is opened again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use reqwest::{Certificate, Client};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use slipway_protocol::{EnrolRequest, Identity, Inventory};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Pause before a connection that the server closed, or did not accept, is opened again.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a client does not read until it begins another download.
const DEAF: Duration = Duration::from_secs(30);
/// Bytes of a body that are sent, and that are announced: what a stranger may send at most.
const SENT: usize = 200_000;
const ANNOUNCED: usize = 256 << 10;

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    IdleHttps,
    IdleBoot,
    IdleTls,
    UnfinishedBodies,
    UnreadDownloads,
    Enrol,
}

/// An attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attack {
    kind: Kind,
    /// From the address of half of the nodes.
    from_node: bool,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::IdleHttps, Self::IdleBoot, Self::IdleTls, Self::UnfinishedBodies, Self::UnreadDownloads, Self::Enrol];

    fn name(self) -> &'static str {
        match self {
            Kind::IdleHttps => "idle-https",
            Kind::IdleBoot => "idle-boot",
            Kind::IdleTls => "idle-after-handshake",
            Kind::UnfinishedBodies => "unfinished-bodies",
            Kind::UnreadDownloads => "unread-downloads",
            Kind::Enrol => "enrol",
        }
    }

    /// Number of clients, and of addresses they have.
    fn clients(self) -> (usize, usize) {
        match self {
            Kind::IdleHttps | Kind::IdleBoot => (10_000, 50),
            Kind::IdleTls => (3000, 50),
            Kind::UnfinishedBodies | Kind::UnreadDownloads => (200, 20),
            Kind::Enrol => (50, 50),
        }
    }
}

impl Attack {
    /// Every attack, from other addresses first.
    pub fn all() -> Vec<Self> {
        let all = |from_node| Kind::ALL.map(|kind| Self { kind, from_node });
        [all(false), all(true)].concat()
    }

    /// The attack with this name.
    pub fn named(name: &str) -> Self {
        Self::all().into_iter().find(|attack| attack.name() == name).expect("the name of an attack")
    }

    /// Its name.
    pub fn name(self) -> String {
        format!("{}{}", self.kind.name(), if self.from_node { "-from-nodes-address" } else { "" })
    }

    /// How many clients from where.
    pub fn description(self) -> String {
        let (clients, addresses) = self.kind.clients();
        match self.from_node {
            true => format!("{clients} clients with 127.0.0.1, the address of half of the nodes"),
            false => format!("{clients} clients with {addresses} addresses, 127.0.2.0 and the following"),
        }
    }

    fn address(self, client: usize) -> [u8; 4] {
        if self.from_node { [127, 0, 0, 1] } else { [127, 0, 2, (client % self.kind.clients().1) as u8] }
    }
}

/// Goes on until the process is ended. `arguments` are the addresses of both ports, and the file of the CA.
pub async fn run(attack: Attack, arguments: &[String]) {
    let [https, boot, ca] = arguments else { panic!("expected HTTPS BOOT CA") };
    let (https, boot): (SocketAddr, SocketAddr) = (https.parse().unwrap(), boot.parse().unwrap());
    let ca = std::fs::read_to_string(ca).unwrap();
    let connector = connector(&ca);
    for client in 0..attack.kind.clients().0 {
        let (from, connector, ca) = (attack.address(client), connector.clone(), ca.clone());
        tokio::spawn(async move {
            if attack.kind == Kind::Enrol {
                return enrol(client, from, https, &ca).await;
            }
            loop {
                let port = if attack.kind == Kind::IdleBoot { boot } else { https };
                if let Ok(stream) = connect(from, port).await {
                    hold(attack.kind, stream, &connector).await;
                }
                tokio::time::sleep(AGAIN).await;
            }
        });
        // Ten thousand in five seconds.
        if client % 10 == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    std::future::pending().await
}

fn connector(ca: &str) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    TlsConnector::from(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
}

async fn connect(from: [u8; 4], to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// Holds a connection open until the server closes it.
async fn hold(kind: Kind, mut stream: TcpStream, connector: &TlsConnector) {
    match kind {
        Kind::IdleHttps | Kind::IdleBoot => drop(stream.read(&mut [0]).await),
        Kind::IdleTls => {
            if let Some(mut stream) = tls(connector, stream).await {
                drop(stream.read(&mut [0]).await);
            }
        }
        Kind::UnfinishedBodies => {
            let Some(mut stream) = tls(connector, stream).await else { return };
            let head = format!("POST /v1/enrol HTTP/1.1\r\nhost: a\r\ncontent-length: {ANNOUNCED}\r\n\r\n");
            let request = head + &"x".repeat(SENT);
            if stream.write_all(request.as_bytes()).await.is_ok() && stream.flush().await.is_ok() {
                drop(stream.read(&mut [0]).await);
            }
        }
        Kind::UnreadDownloads => {
            let Some(mut stream) = tls(connector, stream).await else { return };
            if stream.write_all(b"GET /boot/large HTTP/1.1\r\nhost: a\r\n\r\n").await.is_ok() {
                tokio::time::sleep(DEAF).await;
            }
        }
        Kind::Enrol => unreachable!("it uses an HTTP client"),
    }
}

async fn tls(connector: &TlsConnector, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
    connector.connect("localhost".try_into().unwrap(), stream).await.ok()
}

/// Asks to enrol again and again.
async fn enrol(client: usize, from: [u8; 4], https: SocketAddr, ca: &str) {
    let key = KeyPair::generate().unwrap();
    let csr = CertificateParams::new(Vec::new()).unwrap().serialize_request(&key).unwrap().pem().unwrap();
    let request = EnrolRequest {
        identity: Identity { macs: vec![format!("52:54:00:00:00:{client:02x}")], ..Identity::default() },
        inventory: Inventory::default(),
        csr,
        agent_version: "siege".to_owned(),
        boot_id: "boot".to_owned(),
        bootstrap_token: None,
        tpm: None,
        timing: None,
    };
    let http = Client::builder().tls_certs_only([Certificate::from_pem(ca.as_bytes()).unwrap()]);
    let http = http.local_address(Some(from.into())).build().unwrap();
    loop {
        if http.post(format!("https://{https}/v1/enrol")).json(&request).send().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
