//! Values that name other hosts: the server, and a proxy with the hosts that are reached without it.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// The longest `no_proxy`, in bytes.
const MOST_NO_PROXY: usize = 4096;

/// An HTTP proxy for everything that a machine downloads, also from the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proxy {
    /// The URL of the proxy, such as `http://proxy.example:3128`.
    pub url: String,
    /// Hosts that are reached without the proxy, separated by commas, as in `no_proxy` of curl(1): host names, which
    /// include their subdomains, addresses, and networks such as `10.0.0.0/8`.
    pub except: String,
}

/// Checks the URL of a server for machines: `https://`, a host name or address, and an optional port. The error says
/// what is wrong with it, as the end of a sentence about the value.
pub fn check_server(url: &str) -> Result<(), String> {
    let wrong = |why: &str| format!("{why}: write it as https://install.example:8443");
    let rest = url.strip_prefix("https://");
    let rest =
        rest.ok_or("does not begin with https://, and slipway connects to its server only over TLS").map_err(wrong)?;
    check_host_and_port(rest).map(drop).map_err(wrong)
}

/// Checks a proxy. The error has the key, `proxy` or `no_proxy`, and what is wrong, as the end of a sentence about the
/// key's value.
pub fn check_proxy(proxy: &Proxy) -> Result<(), (&'static str, String)> {
    let wrong = |why: &str| ("proxy", format!("{why}: write it as http://proxy.example:3128"));
    let rest = proxy.url.strip_prefix("http://");
    let rest = rest
        .ok_or("does not begin with http://; what goes through the proxy is encrypted from end to end by itself")
        .map_err(wrong)?;
    // Programs do not agree on the default port of a proxy.
    if !check_host_and_port(rest).map_err(wrong)? {
        return Err(wrong("has no port"));
    }
    let wrong = |why: String| ("no_proxy", format!("{why}: write it as example.com,192.0.2.7,10.0.0.0/8"));
    if proxy.except.len() > MOST_NO_PROXY {
        return Err(wrong(format!("has more than {MOST_NO_PROXY} bytes")));
    }
    let mut hosts = proxy.except.split(',').map(str::trim).filter(|_| !proxy.except.is_empty());
    match hosts.position(|host| !is_host_or_network(host)) {
        // The message does not repeat the entry, because it may contain a password.
        Some(index) => {
            Err(wrong(format!("has an entry, number {}, that is not a name, address or network", index + 1)))
        }
        None => Ok(()),
    }
}

fn is_host_or_network(text: &str) -> bool {
    let (host, length) = text.split_once('/').map_or((text, None), |(host, length)| (host, Some(length)));
    match (host.parse::<IpAddr>(), length) {
        (Ok(_), None) => true,
        (Ok(address), Some(length)) => (0..=if address.is_ipv4() { 32 } else { 128 }).any(|n| n.to_string() == length),
        (Err(_), None) => is_name(text.strip_prefix('.').unwrap_or(text)),
        (Err(_), Some(_)) => false,
    }
}

/// Whether a text can be a host name. A text that ends in a number is an address or invalid (URL Standard, section
/// 3.5).
fn is_name(text: &str) -> bool {
    let last = text.strip_suffix('.').unwrap_or(text).rsplit('.').next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    text.chars().all(is_plain) && !last.chars().all(|c| c.is_ascii_digit())
}

/// Whether a text is a host name: labels of letters, digits and hyphens, joined by dots (RFC 1123, section 2.1), of at
/// most 253 characters in all (RFC 1035, section 2.3.4).
pub fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_plain && (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Checks the part of a URL after `://`, which must be a host and an optional port. Returns whether the port is there.
fn check_host_and_port(rest: &str) -> Result<bool, &'static str> {
    let host_and_port = rest.strip_suffix('/').unwrap_or(rest);
    if host_and_port.contains('@') {
        return Err("must be a host without user name and password");
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
    if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
        return Err("has something after the host that is not a port");
    }
    if !(is_name(host) || host.parse::<IpAddr>().is_ok()) {
        return Err("has no host");
    }
    // RFC 1035, section 2.3.4, without the dot at the end.
    if host.len() > 253 {
        return Err("has a host name of more than 253 characters");
    }
    Ok(port.is_some())
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
            ("https://192.0.2.256", "has no host"),
            ("https://[install.example]:8443", "has no host"),
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

    #[test]
    fn a_proxy_that_no_machine_could_use_is_refused() {
        let check = |url: &str, except: &str| check_proxy(&Proxy { url: url.to_owned(), except: except.to_owned() });
        let url = "http://proxy.example:3128";
        for except in ["", "example.com", ".example.com, 192.0.2.7,10.0.0.0/8", "2001:db8::/32,2001:db8::1"] {
            assert_eq!(check(url, except), Ok(()), "{except}");
        }
        assert_eq!(check("http://[2001:db8::1]:3128/", ""), Ok(()));
        let long = "a".repeat(MOST_NO_PROXY + 1);
        for (url, except, key, why) in [
            ("https://proxy.example:3128", "", "proxy", "does not begin with http://"),
            ("proxy.example:3128", "", "proxy", "does not begin with http://"),
            ("http://proxy.example", "", "proxy", "has no port"),
            ("http://user:pw@proxy.example:3128", "", "proxy", "without user name and password"),
            ("http://:3128", "", "proxy", "has no host"),
            ("http://192.0.2.256:3128", "", "proxy", "has no host"),
            (url, "a,,b", "no_proxy", "has an entry, number 2, that is not a name, address or network"),
            (url, "https://a.example", "no_proxy", "number 1"),
            (url, "10.0.0.0/33", "no_proxy", "number 1"),
            (url, "a,10.0.0.0/08", "no_proxy", "number 2"),
            (url, "10.0.0.0/+8", "no_proxy", "number 1"),
            (url, "10.0.0", "no_proxy", "number 1"),
            (url, "192.168.1.", "no_proxy", "number 1"),
            (url, "*", "no_proxy", "number 1"),
            (url, "a.example:8443", "no_proxy", "number 1"),
            (url, "a.example b.example", "no_proxy", "number 1"),
            (url, &long, "no_proxy", "more than 4096 bytes"),
        ] {
            let (of, said) = check(url, except).unwrap_err();
            assert!(of == key && said.contains(why) && said.contains(": write it as"), "{url} {except}: {of} {said}");
        }
    }
}
