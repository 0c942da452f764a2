//! Shows the SSH host keys that an installed system posted, for people who are about to log in to it.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest, Sha256};

/// Returns a line for each key: the fingerprint as ssh prints it, then the key as in known_hosts. No other posted value
/// is printed, because the installed system controls the values.
pub fn lines(posted: &BTreeMap<String, String>) -> String {
    let keys = posted.iter().filter(|(name, value)| name.starts_with("pub_key_") && *value != "N/A");
    let line = |(name, value): (&String, &String)| match fingerprint(value) {
        Some((kind, fingerprint, key)) => format!("  {fingerprint}  {kind} {key}\n"),
        None => format!("  {}: not a public key\n", name.escape_default()),
    };
    keys.map(line).collect()
}

/// Parses a line of a public key file (sshd(8), "AUTHORIZED_KEYS FILE FORMAT") to type, fingerprint and key in base64.
fn fingerprint(line: &str) -> Option<(&str, String, &str)> {
    let mut words = line.split_whitespace();
    let (kind, key) = (words.next()?, words.next()?);
    let blob = STANDARD.decode(key).ok()?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'@');
    let is_kind = kind.bytes().all(is_name);
    is_kind.then(|| (kind, format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(blob))), key))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";

    fn check(name: &str, value: &str, expect: &str) {
        assert_eq!(lines(&BTreeMap::from([(name.to_owned(), value.to_owned())])), expect, "{value:?}");
    }

    #[test]
    fn keys_are_shown_as_ssh_shows_them() {
        // The output of `ssh-keygen -l -f` for this key, which is GitHub's.
        let expect = format!("  SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU  ssh-ed25519 {KEY}\n");
        check("pub_key_ed25519", &format!("ssh-ed25519 {KEY} root@web1\n"), &expect);
        check("pub_key_dsa", "N/A", "");
        check("hostname", "web1", "");
    }

    #[test]
    fn what_is_no_key_is_not_printed() {
        for value in ["", "ssh-rsa", "ssh-rsa \u{1b}[2J", &format!("\u{1b}[2J {KEY}")] {
            check("pub_key_rsa", value, "  pub_key_rsa: not a public key\n");
        }
        check("pub_key_\u{9b}2J", "x", "  pub_key_\\u{9b}2J: not a public key\n");
    }
}
