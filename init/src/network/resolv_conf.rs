//! Writes /etc/resolv.conf.

use anyhow::{Context, Result};

use super::lease::Lease;
use crate::confine::RESOLV_CONF;

pub(super) fn write_resolv_conf(lease: &Lease) -> Result<()> {
    std::fs::write(RESOLV_CONF, text(lease)).with_context(|| format!("writing {RESOLV_CONF}"))
}

fn text(lease: &Lease) -> String {
    let mut text = String::new();
    // Domains come from the network, so they are checked before they are written to the file.
    let domains: Vec<&str> = lease.search.iter().map(String::as_str).filter(|domain| is_domain(domain)).collect();
    if !domains.is_empty() {
        text.push_str(&format!("search {}\n", domains.join(" ")));
    }
    for server in lease.name_servers.iter().take(3) {
        text.push_str(&format!("nameserver {server}\n"));
    }
    // By default the resolver waits five seconds for each attempt.
    text.push_str("options timeout:2 attempts:2\n");
    text
}

fn is_domain(text: &str) -> bool {
    !text.is_empty() && text.len() <= 253 && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_domains_reach_resolv_conf() {
        assert!(is_domain("rack1.example.net"));
        assert!(!is_domain("x\nnameserver 192.0.2.66"));
        assert!(!is_domain(""));
    }

    #[test]
    fn domains_and_three_servers_are_named() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let lease = Lease {
            name_servers: names(&["fe80::1%eth0", "192.0.2.1", "192.0.2.2", "192.0.2.3"]),
            search: names(&["a.example", "x y", "b.example"]),
            ..Lease::default()
        };
        let servers = "nameserver fe80::1%eth0\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n";
        assert_eq!(text(&lease), format!("search a.example b.example\n{servers}options timeout:2 attempts:2\n"));
        assert_eq!(text(&Lease::default()), "options timeout:2 attempts:2\n");
    }
}
