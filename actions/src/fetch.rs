//! Opening a source: HTTPS, HTTP, or a file.

pub(crate) mod challenge;
pub(crate) mod mirrors;
pub(crate) mod oci;
pub(crate) mod retry;
pub(crate) mod small;
pub(crate) mod source;

use std::error::Error as StdError;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_RANGE, DATE, ETAG, HeaderMap, HeaderName, IF_RANGE, RANGE,
    RETRY_AFTER, TRANSFER_ENCODING, WWW_AUTHENTICATE,
};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use serde_json::Value;
use slipway_protocol::Secret;
use tokio::runtime::Runtime;

use crate::machine::{Cancel, Response};

/// A connection that is not made in this time has failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that delivers nothing for this long is dropped, unless more patience is asked for.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a waiting read looks whether it should stop.
const STOP_CHECK: Duration = Duration::from_millis(100);
/// Most redirects followed.
const MAX_REDIRECTS: usize = 5;
/// Longest body of a refusal that is looked at, in bytes.
const MAX_REASON: usize = 4096;

/// What to fetch.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `https://`, `http://`, `file://` or an absolute path.
    pub url: &'a str,
    /// CA certificates in PEM to trust beside the machine's own.
    pub ca: Option<&'a str>,
    /// First byte wanted.
    pub offset: u64,
    /// Entity tag the source must still have when `offset` is not 0.
    pub etag: Option<&'a str>,
    /// How long the source may be silent.
    pub stall: Duration,
    /// Media types wanted, where there is a choice.
    pub accept: Option<&'a str>,
    /// Value of the `Authorization` header. It is not sent on to another server.
    pub authorization: Option<&'a Secret>,
}

impl<'a> Request<'a> {
    /// Asks for all of it, with 10 s for every silence.
    pub fn new(url: &'a str, ca: Option<&'a str>) -> Self {
        Self { url, ca, offset: 0, etag: None, stall: STALL_TIMEOUT, accept: None, authorization: None }
    }
}

/// Why a source could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Not a URL slipway fetches.
    #[error("a URL starts with https://, http:// or file://, or is an absolute path")]
    Scheme,
    /// The CA certificates given cannot be used.
    #[error("reading the CA certificates to trust: {reason}")]
    Trust {
        /// What is wrong with them.
        reason: String,
    },
    /// The server's certificate comes from an authority nobody told this machine to trust.
    #[error(
        "verifying the server's certificate: its CA is not trusted, only {trusted}; if the server is the right one, give its \
         CA as `ca` of the step, or by hand with --ca FILE"
    )]
    UntrustedCa {
        /// The CA certificates it was verified with, in words.
        trusted: String,
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// A local file could not be read to its end.
    #[error("reading the file")]
    ReadFile {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A local file could not be opened.
    #[error("opening the file")]
    OpenFile {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No client could be made, or no answer came.
    #[error("sending the request")]
    Send {
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// The server answered with something other than the content.
    #[error("the server answered {status}{}", .refusal.message.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Status {
        /// The status line's code and phrase.
        status: StatusCode,
        /// What the server says beside it.
        refusal: Refusal,
    },
    /// A dropped connection could not be told from the end of the source, and nothing else would show what is missing.
    #[error(
        "the server says neither how long the source is nor where it ends; give its digest, or take it from elsewhere"
    )]
    Endless,
    /// The source is not what it was when the first bytes came, or cannot be resumed.
    #[error("resuming at byte {offset}: {reason}")]
    NotResumable {
        /// First byte wanted.
        offset: u64,
        /// What the server said instead.
        reason: String,
    },
    /// The connection was dropped or stalled before the end.
    #[error("reading the body")]
    Body {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The body ended before its announced size.
    #[error("the source ended at byte {offset} of {total}")]
    Short {
        /// Bytes received.
        offset: u64,
        /// Size announced.
        total: u64,
    },
    /// What should be small is not.
    #[error("it has more than the {limit} bytes that are read; check its address")]
    TooLarge {
        /// Most bytes read.
        limit: usize,
    },
    /// Something asked to stop.
    #[error("stopping on request")]
    Stopped,
}

/// What a server says beside the status of its refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, if the body gives one in JSON.
    pub message: Option<String>,
    /// After which time it wants to be asked again.
    pub retry_after: Option<Duration>,
    /// The `WWW-Authenticate` header: how to log in.
    pub challenge: Option<String>,
}

impl FetchError {
    /// Whether it was silence that ended the connection.
    pub(crate) fn is_stall(&self) -> bool {
        match self {
            FetchError::Send { source } => source.is_timeout() && !source.is_connect(),
            FetchError::Body { source } => source.kind() == io::ErrorKind::TimedOut,
            _ => false,
        }
    }

    /// After which time the server wants to be asked again.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            FetchError::Status { refusal, .. } if self.may_pass() => refusal.retry_after,
            _ => None,
        }
    }

    /// Whether the same request may succeed later: true for dropped, refused and stalled connections and for 408, 429 and
    /// 5xx; false for other statuses, for certificates that do not verify, and for local files.
    pub fn may_pass(&self) -> bool {
        match self {
            FetchError::Send { source } => !source.is_builder() && !source.is_redirect() && !is_untrusted(source),
            FetchError::Status { status, .. } => {
                status.is_server_error()
                    || matches!(*status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
            }
            FetchError::NotResumable { .. } | FetchError::Body { .. } | FetchError::Short { .. } => true,
            _ => false,
        }
    }
}

/// Whether a certificate that does not verify is at the bottom of an error.
fn is_untrusted(error: &reqwest::Error) -> bool {
    refused_certificate(error).is_some()
}

/// What is wrong with the certificate that is at the bottom of an error.
fn refused_certificate(error: &reqwest::Error) -> Option<&CertificateError> {
    let first: &(dyn StdError + 'static) = error;
    std::iter::successors(Some(first), |error| cause(*error)).find_map(|error| match error.downcast_ref() {
        Some(rustls::Error::InvalidCertificate(refused)) => Some(refused),
        _ => None,
    })
}

/// The cause of an error. The source of an [`io::Error`] is that of the error it wraps, which would pass that one by.
fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(|error| error.get_ref()) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

/// A URL for messages: without user, password, query and fragment, which may be secrets.
pub(crate) fn shown(url: &str) -> String {
    if local_path(url).is_some() {
        return url.to_owned();
    }
    match Url::parse(url) {
        Ok(mut url) if url.has_host() => {
            // These fail only for URLs that cannot have a user.
            _ = url.set_username("");
            _ = url.set_password(None);
            url.set_query(None);
            url.set_fragment(None);
            url.to_string()
        }
        // Whatever else it is, it will be refused.
        _ => {
            let bare = url.split(['?', '#']).next().unwrap_or_default();
            bare.rsplit('@').next().unwrap_or_default().to_owned()
        }
    }
}

/// Opens a source. `trust` are the machine's own CA certificates.
pub(crate) fn open(request: &Request<'_>, trust: &Trust, stop: &Cancel) -> Result<Response, FetchError> {
    if let Some(path) = local_path(request.url) {
        return open_file(path, request.offset);
    }
    if !(request.url.starts_with("https://") || request.url.starts_with("http://")) {
        return Err(FetchError::Scheme);
    }
    open_http(request, trust, stop)
}

/// The path of a `file://` URL or an absolute path; `file://` URLs are taken as written, without percent-decoding.
pub(crate) fn local_path(url: &str) -> Option<&str> {
    url.strip_prefix("file://").or_else(|| url.starts_with('/').then_some(url))
}

fn open_file(path: &str, offset: u64) -> Result<Response, FetchError> {
    let failed = |source| FetchError::OpenFile { source };
    let mut file = File::open(path).map_err(failed)?;
    let total = file.seek(SeekFrom::End(0)).map_err(failed)?;
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    Ok(Response { total: Some(total), etag: None, is_delimited: true, content_digest: None, body: Box::new(file) })
}

fn open_http(request: &Request<'_>, trust: &Trust, stop: &Cancel) -> Result<Response, FetchError> {
    let (client, trusted) = client(trust, request)?;
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
            response = builder.send() => response.map_err(|source| not_sent(source.without_url(), trusted)),
            () = stopped(stop) => Err(FetchError::Stopped),
        }
    })?;
    let (status, headers) = (response.status(), response.headers());
    let etag = strong_etag(headers);
    let content_digest = headers.get("docker-content-digest").and_then(|value| value.to_str().ok()).map(str::to_owned);
    // A body in chunks has a mark at its end (RFC 9112, 7.1).
    let is_delimited = response.content_length().is_some() || headers.contains_key(TRANSFER_ENCODING);
    let total = match (request.offset, status) {
        (0, StatusCode::OK) => response.content_length(),
        (offset, StatusCode::PARTIAL_CONTENT) if offset > 0 => {
            let range = field(headers, &CONTENT_RANGE).unwrap_or_default();
            resumed_total(offset, range, request.etag, etag.as_deref())
                .map_err(|reason| FetchError::NotResumable { offset, reason })?
        }
        (offset, StatusCode::OK | StatusCode::RANGE_NOT_SATISFIABLE) if offset > 0 => {
            let reason = format!("the server answered {status} to a request for the rest");
            return Err(FetchError::NotResumable { offset, reason });
        }
        _ => {
            let retry_after = field(headers, &RETRY_AFTER).and_then(|text| retry_after(text, field(headers, &DATE)));
            let challenge = field(headers, &WWW_AUTHENTICATE).map(str::to_owned);
            let message = runtime.block_on(async {
                tokio::select! {
                    message = tokio::time::timeout(STALL_TIMEOUT, reason(response)) => message.ok().flatten(),
                    () = stopped(stop) => None,
                }
            });
            return Err(FetchError::Status { status, refusal: Refusal { message, retry_after, challenge } });
        }
    };
    let body = HttpBody { runtime: Some(runtime), response, chunk: Bytes::new(), stop: stop.clone() };
    Ok(Response { total, etag, is_delimited, content_digest, body: Box::new(body) })
}

fn not_sent(source: reqwest::Error, trusted: String) -> FetchError {
    match refused_certificate(&source) {
        // A CA that was made anew has the name of the old one; then it is the signature that does not fit.
        Some(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            FetchError::UntrustedCa { trusted, source }
        }
        _ => FetchError::Send { source },
    }
}

/// The `message` of a refusal whose body is a small JSON object, as slipway's server sends and others do.
async fn reason(mut response: reqwest::Response) -> Option<String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        if body.len() + chunk.len() > MAX_REASON {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    let body: Value = serde_json::from_slice(&body).ok()?;
    // It is the server's text and goes to consoles.
    let message: String = body.get("message")?.as_str()?.chars().filter(|c| !c.is_control()).collect();
    (!message.is_empty()).then_some(message)
}

/// The total size out of a 206's `Content-Range` (RFC 9110, 14.4), when it continues what was asked for.
pub(crate) fn resumed_total(
    offset: u64,
    range: &str,
    wanted: Option<&str>,
    found: Option<&str>,
) -> Result<Option<u64>, String> {
    if wanted.is_some() && found.is_some() && wanted != found {
        return Err("the entity tag has changed".to_owned());
    }
    match content_range(range) {
        Some((first, total)) if first == offset => Ok(total),
        _ => Err(format!("the server answered with Content-Range {range:?}")),
    }
}

/// The first byte and the total size of a `Content-Range`, unless it contradicts itself: a size that is already reached would make
/// an end of what has only begun.
fn content_range(range: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = range.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    let total = if total == "*" { None } else { Some(total.parse::<u64>().ok()?) };
    (first <= last && total.is_none_or(|total| last < total)).then_some((first, total))
}

/// How long a server wants to be left alone (RFC 9110, 10.2.3): seconds, or the time until a date, by the server's own clock
/// where it tells it.
pub(crate) fn retry_after(text: &str, date: Option<&str>) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let now = date.and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or_else(SystemTime::now);
    Some(until.duration_since(now).unwrap_or_default())
}

fn field<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The entity tag, unless it is a weak one, which says nothing about bytes.
fn strong_etag(headers: &HeaderMap) -> Option<String> {
    let etag = field(headers, &ETAG)?;
    etag.starts_with('"').then(|| etag.to_owned())
}

/// CA certificates, and where they are from.
#[derive(Debug)]
pub(crate) struct Trust {
    /// Each a text in PEM, with one certificate or more.
    pub(crate) pem: Vec<String>,
    /// For messages.
    pub(crate) origin: &'static str,
}

/// A client that trusts the CA certificates of the machine and of the step, and those in words.
fn client(trust: &Trust, request: &Request<'_>) -> Result<(Client, String), FetchError> {
    let mut roots = RootCertStore::empty();
    let mut trusted = Vec::new();
    let of_step = request.ca.map(|ca| (ca, "`ca` of the step"));
    for (pem, origin) in trust.pem.iter().map(|pem| (pem.as_str(), trust.origin)).chain(of_step) {
        let failed = |reason: String| FetchError::Trust { reason: format!("{origin}: {reason}") };
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            roots.add(certificate).map_err(|error| failed(error.to_string()))?;
        }
        match roots.len() - before {
            0 => {
                return Err(failed(
                    "there is no certificate in it; it must be PEM, BEGIN CERTIFICATE and all".to_owned(),
                ));
            }
            1 => trusted.push(format!("the certificate of {origin}")),
            n => trusted.push(format!("the {n} certificates of {origin}")),
        }
    }
    let trusted = if trusted.is_empty() { "none at all".to_owned() } else { trusted.join(" and ") };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| FetchError::Trust { reason: error.to_string() })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(Policy::custom(|attempt| {
            let downgrade =
                attempt.url().scheme() != "https" && attempt.previous().iter().any(|url| url.scheme() == "https");
            match downgrade {
                true => attempt.error("the server redirects from https:// to http://"),
                false if attempt.previous().len() > MAX_REDIRECTS => attempt.error("the server redirects too often"),
                false => attempt.follow(),
            }
        }))
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(request.stall)
        .build()
        .map(|client| (client, trusted))
        .map_err(|source| FetchError::Send { source })
}

async fn stopped(stop: &Cancel) {
    while !stop.is_set() {
        tokio::time::sleep(STOP_CHECK).await;
    }
}

/// The body of an answer as a blocking reader. It brings its own single-threaded runtime, so that TLS is done on the
/// thread that reads.
struct HttpBody {
    runtime: Option<Runtime>,
    response: reqwest::Response,
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
                Err(error) => return Err(error),
            }
        }
        let n = self.chunk.len().min(buffer.len());
        buffer[..n].copy_from_slice(&self.chunk.split_to(n));
        Ok(n)
    }
}

/// Keeps apart what ended by silence.
fn broken_off(error: reqwest::Error) -> io::Error {
    let kind = if error.is_timeout() { io::ErrorKind::TimedOut } else { io::ErrorKind::Other };
    io::Error::new(kind, error.without_url())
}

impl Drop for HttpBody {
    fn drop(&mut self) {
        // A name lookup that hangs must not hold up the end of the fetch.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_resumed_only_where_it_was_asked_for() {
        let check = |range: &str, found: Option<&str>, expect: Option<Option<u64>>| {
            assert_eq!(resumed_total(10, range, Some("\"a\""), found).ok(), expect, "{range} {found:?}");
        };
        check("bytes 10-99/100", Some("\"a\""), Some(Some(100)));
        check("bytes 10-99/100", None, Some(Some(100)));
        check("bytes 10-99/*", None, Some(None));
        check("bytes 10-99/100", Some("\"b\""), None);
        check("bytes 9-99/100", None, None);
        check("bytes */100", None, None);
        check("bytes 10-9/100", None, None);
        check("bytes 10-99/99", None, None);
        check("bytes 10-99/10", None, None);
        check("bytes 10-x/100", None, None);
        check("bytes 10-99/x", None, None);
        check("", None, None);
    }

    #[test]
    fn a_server_says_when_to_come_back_in_seconds_or_by_a_date() {
        let check = |text: &str, date: Option<&str>, expect: Option<u64>| {
            assert_eq!(retry_after(text, date), expect.map(Duration::from_secs), "{text}");
        };
        let date = Some("Fri, 31 Dec 1999 23:59:00 GMT");
        check("120", None, Some(120));
        check("Fri, 31 Dec 1999 23:59:59 GMT", date, Some(59));
        check("Fri, 31 Dec 1999 23:58:59 GMT", date, Some(0));
        check("Fri, 31 Dec 1999 23:59:59 GMT", None, Some(0));
        check("99999999999999999999", date, None);
        check("-1", date, None);
        check("soon", date, None);
    }

    #[test]
    fn only_schemes_that_are_known_are_fetched() {
        let trust = Trust { pem: Vec::new(), origin: "nobody" };
        let open = |url| open(&Request::new(url, None), &trust, &Cancel::new());
        assert!(matches!(open("ftp://x/y"), Err(FetchError::Scheme)));
        assert!(matches!(open("image.raw"), Err(FetchError::Scheme)));
        assert!(matches!(open("file:///nowhere/at/all"), Err(FetchError::OpenFile { .. })));
    }

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        for (url, expect) in [
            ("https://s.example/a/@b/image?X-Amz-Signature=secret#part", "https://s.example/a/@b/image"),
            ("https://user:secret@s.example:8443/image", "https://s.example:8443/image"),
            ("https://user:sec/ret@s.example/image?secret", "s.example/image"),
            ("HTTPS://user:secret@s.example/image", "https://s.example/image"),
            ("/images/a?b@c", "/images/a?b@c"),
            ("file:///images/a?b@c", "file:///images/a?b@c"),
            ("user:secret@s.example/image", "s.example/image"),
            ("image.raw", "image.raw"),
        ] {
            assert_eq!(shown(url), expect);
        }
    }
}
