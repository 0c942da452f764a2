//! Headers of an answer.

use reqwest::header::{ETAG, HeaderMap, HeaderName};

/// The text of a header, if it is one.
pub(super) fn field<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The entity tag, unless it is a weak one, which says nothing about bytes.
pub(super) fn strong_etag(headers: &HeaderMap) -> Option<String> {
    let etag = field(headers, &ETAG)?;
    etag.starts_with('"').then(|| etag.to_owned())
}
