//! What a boot medium tells its machine: where the server is, and how to recognise it. Who makes a medium and the machine that
//! starts from it judge the values by the same functions.

use std::net::Ipv6Addr;

/// Beginning of a certificate in PEM (RFC 7468).
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// Checks the URL of a server for machines: `https://`, a host name or address, and an optional port. The error says what is
/// wrong with it, as the end of a sentence about the value.
pub fn check_server(url: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("{why}: write it as https://install.example:8443"));
    let Some(rest) = url.strip_prefix("https://") else {
        return wrong("does not begin with https://, and slipway connects to its server only over TLS");
    };
    let host_and_port = rest.strip_suffix('/').unwrap_or(rest);
    if host_and_port.contains('@') {
        return wrong("must be a host without user name and password");
    }
    // An IPv6 address contains colons, so it is in brackets (RFC 3986, section 3.2.2).
    let (host, port) = match host_and_port.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => {
            (host, port.strip_prefix(':').or((!port.is_empty()).then_some(port)))
        }
        _ => match host_and_port.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (host_and_port, None),
        },
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if host.is_empty() || !(host.chars().all(is_name) || host.parse::<Ipv6Addr>().is_ok()) {
        return wrong("has no host");
    }
    // RFC 1035, section 2.3.4, without the dot at the end.
    if host.len() > 253 {
        return wrong("has a host name of more than 253 characters");
    }
    match port {
        Some(port) if !port.parse::<u16>().is_ok_and(|port| port > 0) => {
            wrong("has something after the host that is not a port")
        }
        _ => Ok(()),
    }
}

/// Checks that a text has a certificate in PEM. The error says what is wrong with it, as the end of a sentence about the value.
pub fn check_ca(pem: &str) -> Result<(), String> {
    match pem.contains(CERTIFICATE) {
        true => Ok(()),
        false => Err(format!("contains no \"{CERTIFICATE}\": give the CA's certificate in PEM")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_no_machine_could_use_is_refused() {
        for url in [
            "https://install.example:8443",
            "https://install.example",
            "https://192.0.2.1:8443/",
            "https://[2001:db8::1]:8443",
            "https://install_1.example",
        ] {
            assert_eq!(check_server(url), Ok(()), "{url}");
        }
        let bad = [
            ("foo bar", "does not begin with https://"),
            ("http://install.example:8443", "does not begin with https://"),
            ("https://", "has no host"),
            ("https://:8443", "has no host"),
            ("https://foo bar", "has no host"),
            ("https://user@host", "must be a host without user name"),
            ("https://user:pw@host", "must be a host without user name"),
            ("https://host/path", "has no host"),
            ("https://host?x", "has no host"),
            ("https://host:https", "is not a port"),
            ("https://host:0", "is not a port"),
            ("https://host:8443/path", "is not a port"),
            ("https://[2001:db8::1]8443x", "is not a port"),
            ("https://2001:db8::1", "is not a port"),
        ];
        let long = format!("https://{}", "a".repeat(254));
        for (url, why) in bad.into_iter().chain([(&*long, "more than 253 characters")]) {
            let said = check_server(url).err().unwrap_or_default();
            assert!(said.contains(why) && said.contains("write it as https://"), "{url}: {said}");
        }
    }
}
