//! A small HTTP/1.1 client. Thousands of them fit into this process, and take little of the processor time that the
//! server needs.

use std::io;
use std::net::SocketAddr;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Sizes of a connection's buffers in bytes.
const READ_BUFFER: usize = 1024;
const WRITE_BUFFER: usize = 1024;

/// An open connection.
pub struct Connection {
    stream: BufStream<TlsStream<TcpStream>>,
}

/// An answer.
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Connection {
    /// Connects to the server from this address of loopback.
    pub async fn open(server: SocketAddr, from: [u8; 4], tls: &TlsConnector) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let stream = socket.connect(server).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").unwrap();
        let stream = tls.connect(name, stream).await?;
        Ok(Self { stream: BufStream::with_capacity(READ_BUFFER, WRITE_BUFFER, stream) })
    }

    /// Sends a GET request.
    pub async fn get(&mut self, path: &str) -> io::Result<Answer> {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"), &[]).await
    }

    /// Sends a POST request with a body in JSON.
    pub async fn post(&mut self, path: &str, body: &[u8]) -> io::Result<Answer> {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        self.ask(&head, body).await
    }

    async fn ask(&mut self, head: &str, body: &[u8]) -> io::Result<Answer> {
        self.stream.write_all(head.as_bytes()).await?;
        self.stream.write_all(body).await?;
        self.stream.flush().await?;
        let status = self.line().await?;
        let status =
            status.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let mut length = 0;
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok(Answer { status, body })
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line),
        }
    }
}
