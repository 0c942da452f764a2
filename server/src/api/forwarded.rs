//! Finds out which machine fetches boot files through a reverse proxy.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::Response;

use crate::api::App;
use crate::api::auth::Peer;

/// Header to which each proxy appends the address of its client.
const HEADER: &str = "x-forwarded-for";

/// Replaces the address of a trusted proxy by the machine's address, which the proxy sent. Other clients could send any
/// address.
pub async fn believe_proxies(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let said = last(request.headers());
    if let Some((peer, said)) = request.extensions_mut().get_mut::<Peer>().zip(said)
        && app.trusted_proxies.contains(&peer.address.ip().to_canonical())
    {
        peer.address = SocketAddr::new(said, 0);
    }
    next.run(request).await
}

/// Returns the address that the last proxy appended. Earlier addresses came with the request and cannot be trusted.
fn last(headers: &HeaderMap) -> Option<IpAddr> {
    let line = headers.get_all(HEADER).iter().next_back()?.to_str().ok()?;
    line.rsplit(',').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_last_proxy_has_added_counts() {
        let table: [(&[&str], Option<&str>); 8] = [
            (&[], None),
            (&["192.0.2.7"], Some("192.0.2.7")),
            (&["2001:db8::7"], Some("2001:db8::7")),
            (&["198.51.100.1, 192.0.2.7"], Some("192.0.2.7")),
            (&["198.51.100.1", "192.0.2.7"], Some("192.0.2.7")),
            (&["192.0.2.7,"], None),
            (&["192.0.2.7:80"], None),
            (&["unknown"], None),
        ];
        for (lines, expect) in table {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(HEADER, line.parse().unwrap());
            }
            assert_eq!(last(&headers), expect.map(|address| address.parse().unwrap()), "{lines:?}");
        }
    }
}
