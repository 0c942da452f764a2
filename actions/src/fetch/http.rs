//! Sources on HTTP servers.

use std::io::{self, Read};
use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes};
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_RANGE, DATE, IF_RANGE, RANGE, RETRY_AFTER,
    TRANSFER_ENCODING, WWW_AUTHENTICATE,
};
use reqwest::{StatusCode, Url};
use serde_json::Value;
use slipway_formats::http::{challenge, codings, resumed_total, retry_after, unsatisfied_total};
use slipway_protocol::Proxy;
use tokio::runtime::Runtime;

use super::client::{Trust, client};
use super::headers::{field, fields, strong_etag};
use crate::error::{FetchError, Refusal, certificate_verdict, is_cut_off};
use crate::machine::{Cancel, Request, Response, STALL_TIMEOUT};

/// How often a waiting read checks whether it should stop.
const STOP_CHECK: Duration = Duration::from_millis(100);
/// Maximum size of an error response's body that is read, in bytes.
const MAX_REASON: usize = 4096;

/// Opens a source on a server.
pub(super) fn open(
    request: &Request<'_>,
    trust: &Trust,
    proxy: Option<&Proxy>,
    stop: &Cancel,
) -> Result<Response, FetchError> {
    let (client, trusted) = client(trust, proxy, request)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| FetchError::Body { source })?;
    let mut builder = client.get(request.url).header(ACCEPT_ENCODING, "identity");
    if let Some(accept) = request.accept {
        builder = builder.header(ACCEPT, accept);
    }
    if let Some(authorization) = request.authorization {
        builder = builder.header(AUTHORIZATION, authorization.reveal());
    }
    if request.offset > 0 {
        builder = builder.header(RANGE, format!("bytes={}-", request.offset));
        if let Some(etag) = request.etag {
            builder = builder.header(IF_RANGE, etag);
        }
    }
    let response = runtime.block_on(async {
        tokio::select! {
            response = builder.send() => response.map_err(|source| not_sent(source.without_url(), &trusted)),
            () = stopped(stop) => Err(FetchError::Stopped),
        }
    })?;
    let (status, headers) = (response.status(), response.headers());
    let etag = strong_etag(headers);
    let content_digest = headers.get("docker-content-digest").and_then(|value| value.to_str().ok()).map(str::to_owned);
    // A chunked body has an end marker (RFC 9112, 7.1).
    let is_delimited = response.content_length().is_some() || headers.contains_key(TRANSFER_ENCODING);
    let coding: Vec<String> = fields(headers, &CONTENT_ENCODING)
        .flat_map(|text| codings(&text).map(str::to_owned).collect::<Vec<String>>())
        .collect();
    let coding = (!coding.is_empty()).then(|| coding.join(", "));
    let range = field(headers, &CONTENT_RANGE).unwrap_or_default();
    let total = match (request.offset, status) {
        (0, StatusCode::OK) => response.content_length(),
        (offset, StatusCode::PARTIAL_CONTENT) if offset > 0 => {
            resumed_total(offset, range, request.etag, etag.as_deref())
                .map_err(|reason| FetchError::NotResumable { offset, reason })?
        }
        // An earlier connection broke off right at the end of a source whose size was not known.
        (offset, StatusCode::RANGE_NOT_SATISFIABLE) if offset > 0 && unsatisfied_total(range) == Some(offset) => {
            let (total, body) = (Some(offset), Box::new(io::empty()));
            return Ok(Response { total, etag, is_delimited: true, coding, content_digest, body });
        }
        (offset, StatusCode::OK | StatusCode::RANGE_NOT_SATISFIABLE) if offset > 0 => {
            let reason = format!("the server answered {status} to a request for the rest");
            return Err(FetchError::NotResumable { offset, reason });
        }
        (_, StatusCode::FORBIDDEN) if is_elsewhere(request.url, response.url()) => {
            return Err(FetchError::RedirectRefused);
        }
        _ => {
            let (text, date) = (field(headers, &RETRY_AFTER), field(headers, &DATE));
            let retry_after = text.and_then(|text| retry_after(text, date, SystemTime::now()));
            let challenges = fields(headers, &WWW_AUTHENTICATE).flat_map(|text| challenge::parse(&text)).collect();
            let message = runtime.block_on(async {
                tokio::select! {
                    message = tokio::time::timeout(STALL_TIMEOUT, reason(response)) => message.ok().flatten(),
                    () = stopped(stop) => None,
                }
            });
            return Err(FetchError::Status { status, refusal: Refusal { message, retry_after, challenges } });
        }
    };
    let body = HttpBody { runtime: Some(runtime), response, is_delimited, chunk: Bytes::new(), stop: stop.clone() };
    Ok(Response { total, etag, is_delimited, coding, content_digest, body: Box::new(body) })
}

/// Whether an answer came from another URL than was asked. User, password and fragment do not count.
fn is_elsewhere(asked: &str, answered: &Url) -> bool {
    let parts = |url: &Url| {
        let authority = (url.scheme().to_owned(), url.host_str().map(str::to_owned), url.port_or_known_default());
        (authority, url.path().to_owned(), url.query().map(str::to_owned))
    };
    Url::parse(asked).is_ok_and(|asked| parts(&asked) != parts(answered))
}

fn not_sent(source: reqwest::Error, trusted: &str) -> FetchError {
    let untrusted = || {
        format!(
            "its certificate is not signed by a CA that is trusted here (trusted: {trusted}); if this is the right \
             server, give its CA as `ca` of the step, or by hand with --ca FILE"
        )
    };
    match certificate_verdict(&source, untrusted) {
        Some(verdict) => FetchError::Untrusted { verdict },
        None if is_cut_off(&source) => FetchError::HungUp,
        None => FetchError::Send { source },
    }
}

/// Reads the `message` of an error response whose body is a small JSON object, as slipway's server and others send it.
async fn reason(mut response: reqwest::Response) -> Option<String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        if body.len() + chunk.len() > MAX_REASON {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    let body: Value = serde_json::from_slice(&body).ok()?;
    // Control characters are removed, because the server's text is shown on consoles.
    let message: String = body.get("message")?.as_str()?.chars().filter(|c| !c.is_control()).collect();
    (!message.is_empty()).then_some(message)
}

async fn stopped(stop: &Cancel) {
    while !stop.is_set() {
        tokio::time::sleep(STOP_CHECK).await;
    }
}

/// The body of a response as a blocking reader. It has its own single-threaded runtime, so that TLS is processed on the
/// reading thread.
struct HttpBody {
    runtime: Option<Runtime>,
    response: reqwest::Response,
    is_delimited: bool,
    chunk: Bytes,
    stop: Cancel,
}

impl Read for HttpBody {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            let Some(runtime) = &self.runtime else { return Ok(0) };
            let next = runtime.block_on(async {
                tokio::select! {
                    chunk = self.response.chunk() => chunk.map_err(broken_off),
                    () = stopped(&self.stop) => Err(io::Error::other(FetchError::Stopped)),
                }
            });
            match next {
                Ok(Some(chunk)) => self.chunk = chunk,
                Ok(None) => return Ok(0),
                // Such a body ends with the connection (RFC 9112, 6.3). Many servers send no TLS close_notify before
                // it. Then the end proves no more than that of a connection without TLS.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !self.is_delimited => return Ok(0),
                Err(error) => return Err(error),
            }
        }
        (&mut self.chunk).reader().read(buffer)
    }
}

/// Distinguishes timeouts and connections that ended too early from other errors.
fn broken_off(error: reqwest::Error) -> io::Error {
    match error {
        error if error.is_timeout() => io::Error::new(io::ErrorKind::TimedOut, error.without_url()),
        error if is_cut_off(&error) => {
            io::Error::new(io::ErrorKind::UnexpectedEof, "the server ended the connection too early")
        }
        error => io::Error::other(error.without_url()),
    }
}

impl Drop for HttpBody {
    fn drop(&mut self) {
        // A hanging name lookup must not delay the end of the fetch.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
