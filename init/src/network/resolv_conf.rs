//! The file that names the name servers.

use anyhow::{Context, Result};
use mozim::DhcpV4Lease;

use crate::confine::RESOLV_CONF;

pub(super) fn write_resolv_conf(lease: &DhcpV4Lease) -> Result<()> {
    let mut text = String::new();
    // The domain comes from the network, so it is checked before it is written to the file.
    if let Some(domain) = lease.domain_name.as_deref().filter(|d| is_domain(d)) {
        text.push_str(&format!("search {domain}\n"));
    }
    for server in lease.dns_srvs.iter().flatten().take(3) {
        text.push_str(&format!("nameserver {server}\n"));
    }
    // The resolver's default is five seconds a try.
    text.push_str("options timeout:2 attempts:2\n");
    std::fs::write(RESOLV_CONF, text).with_context(|| format!("writing {RESOLV_CONF}"))
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
}
