//! HTTP clients, and the CAs they trust.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, NoProxy};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use slipway_protocol::Proxy;

use crate::error::FetchError;
use crate::machine::Request;

/// Time limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Environment variables with the hosts that are reached without a proxy.
const NO_PROXY: [&str; 2] = ["no_proxy", "NO_PROXY"];
/// Maximum number of redirects to follow.
const MAX_REDIRECTS: usize = 5;

/// CA certificates, and their origin.
#[derive(Debug)]
pub(crate) struct Trust {
    /// Texts in PEM, each with one or more certificates.
    pub(crate) pem: Vec<String>,
    /// The origin, for messages.
    pub(crate) origin: &'static str,
}

/// Returns a client that trusts the CA certificates of the machine and of the step, and a description of these.
pub(super) fn client(
    trust: &Trust,
    proxy: Option<&Proxy>,
    request: &Request<'_>,
) -> Result<(Client, String), FetchError> {
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
                    "it has no certificate; it must be PEM, with the line BEGIN CERTIFICATE".to_owned(),
                ));
            }
            1 => trusted.push(format!("the certificate of {origin}")),
            n => trusted.push(format!("the {n} certificates of {origin}")),
        }
    }
    let trusted = if trusted.is_empty() { "none".to_owned() } else { trusted.join(" and ") };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| FetchError::Trust { reason: error.to_string() })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut builder = Client::builder();
    match proxy {
        Some(proxy) => builder = builder.proxy(http_proxy(proxy).map_err(|source| FetchError::Send { source })?),
        // Without a proxy from the caller, reqwest takes it from the environment, but applies `*` only to host names.
        None if NO_PROXY.iter().filter_map(|name| env::var(name).ok()).any(|except| is_for_all(&except)) => {
            builder = builder.no_proxy();
        }
        None => {}
    }
    builder
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
        // The URL of a captured image has a token, which is not for the server that is redirected to.
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(request.stall)
        .build()
        .map(|client| (client, trusted))
        .map_err(|source| FetchError::Send { source })
}

/// Whether a `NO_PROXY` list exempts all servers from the proxy (curl(1), "NO_PROXY").
fn is_for_all(except: &str) -> bool {
    except.split(',').any(|host| host.trim() == "*")
}

/// Converts a proxy for an HTTP client. Fails if its URL is invalid.
pub fn http_proxy(proxy: &Proxy) -> Result<reqwest::Proxy, reqwest::Error> {
    Ok(reqwest::Proxy::all(&proxy.url)?.no_proxy(NoProxy::from_string(&proxy.except)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_excepts_every_server() {
        for (except, expect) in [("*", true), ("localhost, *", true), ("", false), ("*.example.com", false)] {
            assert_eq!(is_for_all(except), expect, "{except}");
        }
    }
}
