//! Headers of a response.

use std::borrow::Cow;

use reqwest::header::{ETAG, HeaderMap, HeaderName};

/// The value of a header, if it is text.
pub(super) fn field<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the values of a header that may be sent several times. Bytes that are not text may be in quoted strings (RFC
/// 9110, 5.5).
pub(super) fn fields<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = Cow<'a, str>> {
    headers.get_all(name).into_iter().map(|value| String::from_utf8_lossy(value.as_bytes()))
}

/// Returns the entity tag if it is a strong one. Weak entity tags do not identify bytes.
pub(super) fn strong_etag(headers: &HeaderMap) -> Option<String> {
    let etag = field(headers, &ETAG)?;
    etag.starts_with('"').then(|| etag.to_owned())
}
