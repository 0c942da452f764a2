//! SSH public keys, as lines of authorized_keys (sshd(8), "AUTHORIZED_KEYS FILE FORMAT") without options.

/// The types that sshd accepts, and the beginning of such a key in base64. A key begins with the length of its type and
/// the type again (RFC 4253, section 6.6).
const TYPES: &[(&str, &str)] = &[
    ("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5"),
    ("ssh-rsa", "AAAAB3NzaC1yc2"),
    ("ecdsa-sha2-nistp256", "AAAAE2VjZHNhLXNoYTItbmlzdHAyNT"),
    ("ecdsa-sha2-nistp384", "AAAAE2VjZHNhLXNoYTItbmlzdHAzOD"),
    ("ecdsa-sha2-nistp521", "AAAAE2VjZHNhLXNoYTItbmlzdHA1Mj"),
    ("sk-ssh-ed25519@openssh.com", "AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29t"),
    ("sk-ecdsa-sha2-nistp256@openssh.com", "AAAAInNrLWVjZHNhLXNoYTItbmlzdHAyNTZAb3BlbnNzaC5jb2"),
];
/// The greatest length of a line, in bytes. An RSA key of 16384 bits, the largest that OpenSSH makes, has less than 3
/// KiB.
const MAX_LEN: usize = 8192;

/// Returns why this is not a public key that can let somebody in, or nothing if it is one.
pub fn problem(line: &str) -> Option<&'static str> {
    if line.chars().any(|c| matches!(c, '\n' | '\r')) {
        return Some("it has more than one line");
    }
    if line.chars().any(char::is_control) || line.len() > MAX_LEN {
        return Some("it has a control character, or more than 8 KiB");
    }
    if line.contains("PRIVATE KEY") {
        return Some("it is a private key; give the public one, from the file that ends with .pub");
    }
    let mut words = line.split(' ').filter(|word| !word.is_empty());
    let (kind, key) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let Some((_, start)) = TYPES.iter().find(|(name, _)| *name == kind) else {
        return Some("its first word is not a key type such as ssh-ed25519; options before the type are not supported");
    };
    match is_base64(key) && key.starts_with(start) {
        true => None,
        false => Some("its second word is not a key of that type in base64"),
    }
}

/// Returns whether this is base64 with its padding (RFC 4648, section 4).
pub(crate) fn is_base64(text: &str) -> bool {
    let value = text.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    text.len().is_multiple_of(4) && text.len() - value.len() <= 2 && value.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_line_of_a_known_type() {
        let good = [
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEqK",
            "ssh-ed25519  AAAAC3NzaC1lZDI1NTE5AAAAIEqK  me at home, ä",
            "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAB me",
            "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAI",
            "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAA",
        ];
        for line in good {
            assert_eq!(problem(line), None, "{line:?}");
        }
        let bad = [
            ("", "its first word is not a key type"),
            ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEqK\nssh-rsa", "it has more than one line"),
            ("ssh-ed25519\tAAAAC3NzaC1lZDI1NTE5AAAAIEqK", "it has a control character"),
            ("ssh-dss AAAAB3NzaC1kc3MAAACB", "its first word is not a key type"),
            ("command=\"x\" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEqK", "options before the type are not supported"),
            ("ssh-ed25519", "its second word is not a key of that type"),
            ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEq", "its second word is not a key of that type"),
            ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA-Eq_", "its second word is not a key of that type"),
            ("ssh-ed25519 AAAAB3NzaC1yc2EAAAADAQABAAAB", "its second word is not a key of that type"),
            ("-----BEGIN OPENSSH PRIVATE KEY-----", "it is a private key"),
        ];
        for (line, expect) in bad {
            assert!(problem(line).is_some_and(|problem| problem.contains(expect)), "{line:?}: {:?}", problem(line));
        }
        assert!(problem(&format!("ssh-rsa AAAAB3NzaC1yc2E{}", "A".repeat(8200))).is_some());
    }
}
