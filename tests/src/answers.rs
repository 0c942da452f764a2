//! A server that gives prepared answers, right ones and faulty ones.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use slipway_protocol::{ErrorBody, ErrorCode};
use slipway_server::base::data::DataDir;
use slipway_server::keys::ca::Authority;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Status code and body.
pub type Answer = (u16, String);

/// Returns the answer that refuses a request for this reason.
pub fn refusal(code: ErrorCode) -> Answer {
    let body = ErrorBody { code, message: "no".to_owned(), causes: Vec::new() };
    (code.status(), serde_json::to_string(&body).unwrap())
}

/// Returns what makes TLS connections with a certificate of this CA for 127.0.0.1.
pub fn acceptor(authority: &Authority, data: &DataDir) -> TlsAcceptor {
    let identity = authority.server_identity(data, &BTreeSet::from(["127.0.0.1".to_owned()])).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    TlsAcceptor::from(Arc::new(config.with_single_cert(identity.chain, identity.key).unwrap()))
}

/// Gives these answers in order, each on a connection of its own, and notes the methods of the requests.
pub async fn give(listener: TcpListener, tls: TlsAcceptor, answers: Vec<Answer>, asked: Arc<Mutex<Vec<String>>>) {
    for (status, body) in answers {
        let (connection, _) = listener.accept().await.unwrap();
        let mut connection = tls.accept(connection).await.unwrap();
        let method = method(&mut connection).await;
        asked.lock().unwrap().push(method);
        let head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        connection.write_all([head, body].concat().as_bytes()).await.unwrap();
        connection.shutdown().await.unwrap();
    }
}

/// Reads a whole request. Returns its method.
async fn method(connection: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
    connection.read_exact(&mut vec![0; length.parse().unwrap()]).await.unwrap();
    head.split(' ').next().unwrap().to_owned()
}
