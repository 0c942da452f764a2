//! Accepts connections, with or without TLS, and serves HTTP/1.1 on them until told to stop.
//!
//! Each connection has its own task from its first byte, so that a slow handshake delays nobody. `axum::serve` is not
//! used because it has no time-outs for headers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::api::auth::Peer;
use crate::ca::subject;

/// Time limit of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit until the headers of a request are complete, including the time a connection is idle. Longer than common
/// HTTP clients keep an idle connection (90 s), so that the client closes it and never finds its request dropped.
const HEADER_TIMEOUT: Duration = Duration::from_secs(100);
/// Pause after accept(2) failed, most likely for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a stop waits for requests in progress.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves one listening socket until `stopping` becomes true and the requests in progress are done.
pub async fn run(listener: TcpListener, tls: Option<TlsAcceptor>, router: Router, mut stopping: watch::Receiver<bool>) {
    let connections = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        match accepted {
            Ok((stream, address)) => {
                let (tls, router, watcher) = (tls.clone(), router.clone(), connections.watcher());
                tokio::spawn(connection(stream, address, tls, router, watcher, stopping.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(STOP_TIMEOUT, connections.shutdown()).await.is_err() {
        tracing::warn!("requests were still being answered after {} s", STOP_TIMEOUT.as_secs());
    }
}

async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    router: Router,
    watcher: Watcher,
    mut stopping: watch::Receiver<bool>,
) {
    // Answers are written at once. Waiting to fill packets would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, %address, "setting TCP_NODELAY");
    }
    let Some(tls) = tls else {
        return serve(stream, Peer { address, certificate: None }, router, watcher).await;
    };
    let accept = async {
        // A client that hangs up without sending anything only checked that the server is there: a machine that tries
        // its interfaces, or a health check.
        match stream.peek(&mut [0]).await {
            Ok(0) => Ok(None),
            _ => tls.accept(stream).await.map(Some),
        }
    };
    let handshake = tokio::select! {
        handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, accept) => handshake,
        _ = stopping.wait_for(|stopping| *stopping) => return,
    };
    match handshake {
        Ok(Ok(None)) => tracing::debug!(%address, "connection closed before its first byte"),
        Ok(Ok(Some(stream))) => {
            // The verifier has accepted the certificate, or there is none.
            let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let certificate = certificate.and_then(subject);
            serve(stream, Peer { address, certificate }, router, watcher).await;
        }
        Ok(Err(error)) => tracing::info!(%error, %address, "TLS handshake failed"),
        Err(_) => tracing::info!(%address, "TLS handshake took longer than {} s", HANDSHAKE_TIMEOUT.as_secs()),
    }
}

async fn serve<S>(stream: S, peer: Peer, router: Router, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let address = peer.address;
    let peer = Arc::new(peer);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer::clone(&peer));
        let answer = router.clone().oneshot(request.map(Body::new));
        async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, %address, "connection ended");
    }
}
