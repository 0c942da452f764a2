//! Headers of a response.

use reqwest::header::{ETAG, HeaderMap, HeaderName};

/// The value of a header, if it is text.
pub(super) fn field<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The entity tag, if it is a strong one. Weak ones do not identify bytes.
pub(super) fn strong_etag(headers: &HeaderMap) -> Option<String> {
    let etag = field(headers, &ETAG)?;
    etag.starts_with('"').then(|| etag.to_owned())
}
