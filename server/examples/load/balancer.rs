//! A TCP balancer before several servers, as `stream` of nginx is: round robin, and the next server if one refuses.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Size of a connection's buffer in bytes, in each direction.
const BUFFER: usize = 2048;

/// Starts a balancer on a free port of loopback, which forwards as long as the program runs. Returns its address.
pub async fn start(servers: Vec<SocketAddr>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (servers, turn) = (Arc::new(servers), Arc::new(AtomicUsize::new(0)));
    tokio::spawn(async move {
        loop {
            let Ok((client, from)) = listener.accept().await else { continue };
            let (servers, turn) = (Arc::clone(&servers), Arc::clone(&turn));
            // An error ends the connection, as everything else does.
            tokio::spawn(async move { forward(client, from.ip(), &servers, &turn).await });
        }
    });
    address
}

async fn forward(mut client: TcpStream, from: IpAddr, servers: &[SocketAddr], turn: &AtomicUsize) -> io::Result<()> {
    let first = turn.fetch_add(1, Ordering::Relaxed);
    let mut refused = io::ErrorKind::NotConnected.into();
    for number in 0..servers.len() {
        match connect(servers[(first + number) % servers.len()], from).await {
            Ok(mut server) => {
                client.set_nodelay(true)?;
                return copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER).await.map(drop);
            }
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Connects from the address of the client, because the servers limit what one address may do.
async fn connect(server: SocketAddr, from: IpAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let stream = socket.connect(server).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
