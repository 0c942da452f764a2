//! Opening a source: HTTPS, HTTP, or a file.

mod client;
pub(crate) mod download;
pub(crate) mod file;
mod headers;
mod http;
#[allow(clippy::indexing_slicing, reason = "it numbers its own list, which never gets shorter")]
pub(crate) mod mirrors;
pub(crate) mod oci;
pub(crate) mod ranges;
pub(crate) mod retry;
pub(crate) mod small;
pub(crate) mod source;
pub(crate) mod verify;

use reqwest::Url;
use slipway_protocol::workflow::{Location, shown_url};
use slipway_protocol::{Failure, Proxy};

use crate::error::FetchError;
use crate::machine::{Cancel, Request, Response};

pub(crate) use client::Trust;
pub use client::http_proxy;
pub(crate) use file::OpenedOnce;

/// Returns an error and its root cause as one text.
fn why(error: &FetchError) -> String {
    let why = Failure::of(error);
    let cause = why.causes.last().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{}{cause}", why.reason)
}

/// Returns a URL for messages: without user, password, query and fragment, which may be secrets.
pub(crate) fn shown(url: &str) -> String {
    if url == file::STDIN {
        return "standard input".to_owned();
    }
    if Location::local_path(url).is_some() {
        return url.to_owned();
    }
    match Url::parse(url) {
        // The apparent port may be the start of a password with a slash in it.
        Ok(parsed) if parsed.port().is_some() && parsed.username().is_empty() && url.contains('@') => {
            format!("{}://...", parsed.scheme())
        }
        Ok(mut url) if url.has_host() => {
            // Setting user or password only fails for URLs that cannot have a user.
            _ = url.set_username("");
            _ = url.set_password(None);
            url.set_query(None);
            url.set_fragment(None);
            url.to_string()
        }
        // Anything else will be refused.
        _ => shown_url(url),
    }
}

/// Opens a source. `trust` has the machine's own CA certificates. The proxy is for sources on other machines. `opened`
/// remembers what can be read only once.
pub(crate) fn open(
    request: &Request<'_>,
    trust: &Trust,
    proxy: Option<&Proxy>,
    opened: &OpenedOnce,
    stop: &Cancel,
) -> Result<Response, FetchError> {
    match Location::of(request.url) {
        Some(Location::File(path)) => file::open(path, request.offset, opened, stop),
        Some(Location::Https | Location::Http) => http::open(request, trust, proxy, stop),
        // The URL of an artifact was replaced by that of its blob before.
        Some(Location::Artifact) | None => Err(FetchError::Scheme),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_schemes_that_are_known_are_fetched() {
        let trust = Trust { pem: Vec::new(), origin: "nobody" };
        let open = |url| open(&Request::new(url, None), &trust, None, &OpenedOnce::default(), &Cancel::new());
        assert!(matches!(open("ftp://x/y"), Err(FetchError::Scheme)));
        assert!(matches!(open("image.raw"), Err(FetchError::Scheme)));
        assert!(matches!(open("file:///nowhere/at/all"), Err(FetchError::OpenFile { .. })));
    }

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        for (url, expect) in [
            ("https://s.example/a/@b/image?X-Amz-Signature=secret#part", "https://s.example/a/@b/image"),
            ("https://user:secret@s.example:8443/image", "https://s.example:8443/image"),
            ("https://user:sec/ret@s.example/image?secret", "https://s.example/image"),
            ("https://user:sec#ret@s.example/image", "https://..."),
            ("https://user:12/34@s.example/image", "https://..."),
            ("https://user:12?34@s.example/image", "https://..."),
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
