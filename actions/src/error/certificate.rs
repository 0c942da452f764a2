//! Why the certificate of a server was refused, in words for people.

use std::error::Error as StdError;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use rustls::CertificateError;
use rustls::pki_types::UnixTime;

/// Says what is wrong with the certificate of a server and what to do, if that is the root cause of an error, in a
/// sentence about "its certificate". `untrusted` is the sentence for a certificate whose CA is not trusted.
pub fn certificate_verdict(error: &(dyn StdError + 'static), untrusted: impl FnOnce() -> String) -> Option<String> {
    let refused = causes(error).find_map(|error| match error.downcast_ref() {
        Some(rustls::Error::InvalidCertificate(refused)) => Some(refused),
        _ => None,
    })?;
    Some(match refused {
        // A renewed CA has the same name as the old one; then the signature does not match.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => untrusted(),
        CertificateError::NotValidYetContext { time, not_before } => out_of_date("from", *not_before, *time),
        CertificateError::ExpiredContext { time, not_after } => out_of_date("until", *not_after, *time),
        CertificateError::NotValidForNameContext { expected, presented } => wrong_name(&expected.to_str(), presented),
        // The verifier's own error, which has no type that is public here.
        CertificateError::Other(other) if other.to_string() == "CaUsedAsEndEntity" => {
            "it uses a CA certificate, as `openssl req -x509` makes it, but slipway does not accept a CA certificate \
             as a server's: make one with `openssl req -x509 -addext basicConstraints=critical,CA:FALSE -addext \
             subjectAltName=DNS:NAME ...`, and give it as the CA, or sign one with a CA"
                .to_owned()
        }
        CertificateError::Other(other) => format!("its certificate was rejected: {other}"),
        other => format!("its certificate was rejected: {other}"),
    })
}

fn out_of_date(from_or_until: &str, limit: UnixTime, now: UnixTime) -> String {
    format!(
        "its certificate is valid {from_or_until} {}, but this machine's clock says {}; if the clock is wrong, set it, \
         otherwise renew the certificate",
        date(limit),
        date(now)
    )
}

/// Formats a time as in HTTP.
fn date(time: UnixTime) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}

/// Says that the certificate is for other names. The verifier writes names as `DnsName("localhost")` and
/// `IpAddress(127.0.0.1)`.
fn wrong_name(expected: &str, presented: &[String]) -> String {
    if presented.is_empty() {
        return format!(
            "its certificate names no server, because a common name does not count: make one whose subjectAltName has \
             {expected}"
        );
    }
    let bare = |name: &String| match name.strip_suffix(')').and_then(|name| name.split_once('(')) {
        Some((_, name)) => name.trim_matches('"').to_owned(),
        None => name.clone(),
    };
    let names: Vec<String> = presented.iter().map(bare).collect();
    format!(
        "its certificate is for another name ({}), not for {expected}; change the URL, or make a certificate for this \
         name (slipway-server: `serve --san {expected}`)",
        names.join(", ")
    )
}

/// Returns an error and its causes. The source of an [`io::Error`] is the source of the error it wraps, which would
/// skip the wrapped error.
pub(super) fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let cause = |error: &&'a (dyn StdError + 'static)| {
        let error: &'a (dyn StdError + 'static) = *error;
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped as &(dyn StdError + 'static)),
            None => error.source(),
        }
    };
    std::iter::successors(Some(error), cause)
}
