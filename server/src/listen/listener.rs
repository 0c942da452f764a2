//! Accepts connections, with or without TLS, and serves HTTP/1.1 on them until stopped.
//!
//! Each connection has a separate task from its first byte, so that a slow handshake delays no other. `axum::serve` is
//! not used, because it has no time-outs for headers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{CONNECTION, RETRY_AFTER};
use axum::http::{HeaderValue, Request, StatusCode};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::metrics::gauge::Gauge;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::api::auth::Peer;
use crate::base::limits::{Connections, Limits};
use crate::base::meters::Counted;
use crate::base::rate::Buckets;
use crate::keys::ca::subject;
use crate::listen::connections::{Busy, Slot, Table, TurnedAway};
use crate::listen::live_keys::LiveKeys;

/// Pause after accept(2) failed, most likely because no file descriptors were left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Silence after which the kernel asks whether a client is still there, and the interval at which it repeats that.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How long to wait for requests in progress when stopping.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the numbers of refused connections are logged.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Body of the answer when there is no room for a request, in the API's format.
const BUSY: &[u8] =
    br#"{"code":"unavailable","message":"the server has too many requests of unknown clients","causes":[]}"#;

/// State shared by all connections of one port.
struct Port {
    name: &'static str,
    tls: Option<watch::Receiver<TlsAcceptor>>,
    router: Router,
    limits: Arc<Limits>,
    keys: Arc<LiveKeys>,
    table: Arc<Table>,
    handshakes: Buckets,
    stopping: watch::Receiver<bool>,
}

/// One listening socket.
pub struct Listener {
    /// The socket.
    pub socket: TcpListener,
    /// Name of the port in the log.
    pub name: &'static str,
    /// TLS settings, for connections from now on. `None` for plain HTTP.
    pub tls: Option<watch::Receiver<TlsAcceptor>>,
    /// Limits on the connections to the socket.
    pub connections: Connections,
    /// Counts the open connections.
    pub open: Gauge,
}

/// Serves one listening socket until `stopping` becomes true and the requests in progress are finished.
pub async fn run(
    listener: Listener,
    router: Router,
    limits: Arc<Limits>,
    keys: Arc<LiveKeys>,
    mut stopping: watch::Receiver<bool>,
) {
    let Listener { socket, name, tls, connections, open: count } = listener;
    let table = Table::new(connections);
    let handshakes = Buckets::new("handshakes", limits.handshakes, Instant::now);
    let port = Arc::new(Port { name, tls, router, limits, keys, table, handshakes, stopping: stopping.clone() });
    // Every connection holds a sender, so the receiver ends with the last connection.
    let (open, mut all_closed) = mpsc::channel::<Infallible>(1);
    let mut tell = interval(TELL_EVERY);
    tell.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            _ = tell.tick() => {
                port.tell();
                continue;
            }
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        match accepted {
            Ok((stream, address)) => {
                if let Some(slot) = port.table.admit(address.ip()) {
                    let (id, open, port) = (slot.id(), open.clone(), Arc::clone(&port));
                    let table = Arc::clone(&port.table);
                    let counted = Counted::new(&count);
                    let task = tokio::spawn(async move {
                        let _counted = counted;
                        connection(&port, stream, address, Arc::new(slot)).await;
                        drop(open);
                    });
                    table.set_task(id, task.abort_handle());
                }
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop((socket, open));
    port.tell();
    if timeout(STOP_TIMEOUT, all_closed.recv()).await.is_err() {
        tracing::warn!("requests were still being answered after {} s", STOP_TIMEOUT.as_secs());
    }
}

impl Port {
    /// Logs only numbers of refused clients, because a line for each would fill the log.
    fn tell(&self) {
        let (port, TurnedAway { refused, replaced, requests, handshakes }) = (self.name, self.table.turned_away());
        if refused + replaced + requests > 0 {
            tracing::warn!(port, refused, replaced, requests, "too many connections; some were refused");
        }
        if handshakes > 0 {
            tracing::info!(port, handshakes, "TLS handshakes failed");
        }
    }
}

async fn connection(port: &Port, stream: TcpStream, address: SocketAddr, slot: Arc<Slot>) {
    // Answers are written at once, so waiting to fill packets would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, %address, "setting TCP_NODELAY");
    }
    // The kernel closes the connection of a client that accepts no data for this time, whether it is gone or does not
    // read (tcp(7)), but not that of a slow reader. The limits are far below 2^32 ms.
    let stall = u32::try_from(port.limits.stall.as_millis()).unwrap_or(u32::MAX);
    if let Err(error) = set_tcp_user_timeout(&stream, stall) {
        tracing::debug!(%error, %address, "setting TCP_USER_TIMEOUT");
    }
    // Otherwise the poll of a machine that lost its power would stay open, and would count as a sign of life.
    if let Err(error) = set_keepalive(&stream) {
        tracing::debug!(%error, %address, "setting TCP keepalive");
    }
    // Boxed, because a task is as large as its largest future, and most connections of an attacker never get here.
    let Some(tls) = port.tls.as_ref().map(|tls| tls.borrow().clone()) else {
        return Box::pin(serve(port, stream, Peer { address, certificate: None }, slot)).await;
    };
    let accept = async {
        // A client that closes the connection without sending anything only checked that the server is reachable, such
        // as a machine trying its interfaces, or a health check.
        match stream.peek(&mut [0]).await {
            Ok(0) => Ok(None),
            // A handshake is the most expensive thing that a stranger can cause.
            _ if port.handshakes.take(address.ip()).is_err() => {
                port.table.refuse();
                Ok(None)
            }
            // The stream is boxed too: it has more than a kilobyte, and each future that it is moved through has room
            // for it as long as the connection is open.
            _ => Box::pin(tls.accept(stream)).await.map(|stream| Some(Box::new(stream))),
        }
    };
    let mut stopping = port.stopping.clone();
    let handshake = tokio::select! {
        handshake = timeout(port.limits.first_request, accept) => handshake,
        _ = stopping.wait_for(|stopping| *stopping) => return,
    };
    match handshake {
        Ok(Ok(None)) => tracing::debug!(%address, "connection closed before its handshake"),
        Ok(Ok(Some(stream))) => {
            // If there is a certificate, the verifier has accepted it.
            let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let certificate = certificate.and_then(subject);
            if certificate.as_ref().is_none_or(|subject| slot.belongs_to(&subject.key)) {
                Box::pin(serve(port, stream, Peer { address, certificate }, slot)).await;
            }
        }
        Ok(Err(error)) if port.table.failed_handshake() => tracing::info!(%error, %address, "TLS handshake failed"),
        Ok(Err(error)) => tracing::debug!(%error, %address, "TLS handshake failed"),
        Err(_) => tracing::debug!(%address, "the TLS handshake took too long"),
    }
}

/// Has the kernel find out whether an idle client is still there. How long it tries is TCP_USER_TIMEOUT.
fn set_keepalive(stream: &TcpStream) -> Result<(), Errno> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)
}

async fn serve<S>(port: &Port, stream: S, peer: Peer, slot: Arc<Slot>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (limits, address) = (&port.limits, peer.address);
    let idle = if peer.certificate.is_some() { limits.node_idle } else { limits.stranger_idle };
    let (peer, asked) = (Arc::new(peer), AtomicBool::new(false));
    let service = service_fn(|mut request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let busy = slot.begin();
        request.extensions_mut().insert(Peer::clone(&peer));
        let answer = busy.is_some().then(|| port.router.clone().oneshot(request.map(Body::new)));
        async move {
            let response = match answer {
                Some(answer) => answer.await.unwrap_or_else(|never| match never {}),
                None => no_room(),
            };
            Ok::<_, Infallible>(response.map(|body| Answer { body, _busy: busy }))
        }
    });
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(limits.header_bytes)
        .max_headers(limits.headers)
        .serve_connection(TokioIo::new(stream), service);
    let mut http = pin!(http);
    let mut first_request = pin!(sleep(limits.first_request));
    let mut age = pin!(sleep(limits.connection_age));
    let certificate = peer.certificate.clone();
    let mut revoked = pin!(async {
        match &certificate {
            Some(subject) => port.keys.revoked(subject).await,
            None => std::future::pending().await,
        }
    });
    let mut stopping = port.stopping.clone();
    let (mut waits, mut closes, mut stops) = (true, false, false);
    loop {
        tokio::select! {
            ended = &mut http => {
                if let Err(error) = ended {
                    tracing::debug!(%error, %address, "connection ended");
                }
                return;
            }
            () = &mut first_request, if waits => {
                waits = false;
                if !asked.load(Ordering::Relaxed) {
                    return;
                }
            }
            () = &mut age, if !closes => closes = true,
            () = &mut revoked => {
                tracing::info!(%address, "connection closed: its key is no longer valid for the node");
                return;
            }
            _ = stopping.wait_for(|stopping| *stopping), if !stops => stops = true,
        }
        if stops && !asked.load(Ordering::Relaxed) {
            return;
        }
        if closes || stops {
            // Finishes the request in progress. Further calls have no effect.
            http.as_mut().graceful_shutdown();
        }
    }
}

/// The answer to a stranger's request if too many others are in progress.
fn no_room() -> axum::response::Response {
    let mut response = axum::response::Response::new(Body::from(BUSY));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    response
}

/// Body of an answer. The request counts as in progress until the body is sent.
struct Answer {
    body: Body,
    _busy: Option<Busy>,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        pin!(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
