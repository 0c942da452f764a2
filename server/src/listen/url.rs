//! The URL at which machines reach the server.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use axum::http::Uri;

/// The server's URL: `https://HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    text: String,
    host: String,
}

impl ServerUrl {
    /// The host name or address in it.
    pub fn host(&self) -> &str {
        &self.host
    }
}

/// The text is not the URL of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not of the form https://HOST or https://HOST:PORT")]
pub struct ServerUrlError {
    text: String,
}

impl Display for ServerUrl {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for ServerUrl {
    type Err = ServerUrlError;

    fn from_str(text: &str) -> Result<Self, ServerUrlError> {
        let error = || ServerUrlError { text: text.to_owned() };
        let uri: Uri = text.parse().map_err(|_| error())?;
        let plain = uri.scheme_str() == Some("https") && uri.path() == "/" && uri.query().is_none();
        let authority = uri.authority().filter(|authority| plain && !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(error)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { text: format!("https://{authority}"), host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_url_is_https_and_nothing_but_a_host() {
        let host = |text: &str| text.parse::<ServerUrl>().map(|url| (url.text, url.host)).ok();
        let url = |text: &str, host: &str| Some((text.to_owned(), host.to_owned()));
        assert_eq!(host("https://10.0.2.2:8443"), url("https://10.0.2.2:8443", "10.0.2.2"));
        assert_eq!(host("https://slipway.example/"), url("https://slipway.example", "slipway.example"));
        assert_eq!(host("https://[fd00::1]:8443"), url("https://[fd00::1]:8443", "fd00::1"));
        for bad in ["http://a", "https://a/b", "a:1", "https://", "https://a?b", "https://u@a", ""] {
            assert_eq!(host(bad), None, "{bad:?}");
        }
    }
}
