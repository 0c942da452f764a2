//! What this process measures of requests and connections.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

/// Upper bounds of the buckets for requests, in seconds. Polls take up to 30 s.
const REQUEST_SECONDS: [f64; 9] = [0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 5.0, 15.0, 45.0];

/// Meters of one process.
#[derive(Clone, Debug)]
pub struct Meters {
    /// Requests by route and status.
    pub requests: Family<RequestLabels, Counter>,
    /// Seconds until the first byte of the response.
    pub request_seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    /// Bytes of files that were sent.
    pub served: Family<FileLabels, Counter>,
    /// Open connections of each port.
    pub connections: Family<PortLabels, Gauge>,
    /// Requests of strangers that wait until they may use the database.
    pub strangers_waiting: Gauge,
    /// Requests whose body waits for memory.
    pub bodies_waiting: Gauge,
}

/// A route as it is declared, without what clients put into it, and the class of the status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    route: String,
    status: &'static str,
}

/// A route as it is declared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabels {
    route: String,
}

/// The kind of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FileLabels {
    kind: &'static str,
}

/// A listening port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PortLabels {
    /// Its name, as in the log.
    pub port: &'static str,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(|| Histogram::new(REQUEST_SECONDS)),
            served: Family::default(),
            connections: Family::default(),
            strangers_waiting: Gauge::default(),
            bodies_waiting: Gauge::default(),
        }
    }
}

impl Meters {
    /// Counts a request whose response begins after this time, and its file, if it has one.
    pub fn answered(&self, route: &str, took: Duration, response: Response) -> Response {
        let status = class(response.status());
        self.requests.get_or_create(&RequestLabels { route: route.to_owned(), status }).inc();
        self.request_seconds.get_or_create(&RouteLabels { route: route.to_owned() }).observe(took.as_secs_f64());
        match kind(route) {
            Some(kind) if response.status().is_success() => {
                let sent = self.served.get_or_create_owned(&FileLabels { kind });
                response.map(|body| Body::new(Sent { body, sent }))
            }
            _ => response,
        }
    }
}

fn class(status: StatusCode) -> &'static str {
    match status.as_u16() {
        0..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    }
}

/// The kind of the files that a route serves.
fn kind(route: &str) -> Option<&'static str> {
    match route {
        "/images/{digest}" => Some("image"),
        "/boot/{*path}" => Some("boot_file"),
        _ => None,
    }
}

/// A body whose bytes are counted when they are on their way.
struct Sent {
    body: Body,
    sent: Counter,
}

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.sent.inc_by(frame.data_ref().map_or(0, |data| data.len() as u64));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
