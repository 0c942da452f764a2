//! Bytes that are written as a mark and digits: `%20` in URLs (RFC 3986, section 2.1), `\040` in fstab and mountinfo,
//! `\x20` in the names that udev gives to links.

/// Decodes each mark that is followed by `digits` digits of the base. All other bytes are kept.
pub fn decoded(text: &[u8], mark: &str, digits: usize, base: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let escaped = rest.strip_prefix(mark.as_bytes()).and_then(|rest| rest.split_at_checked(digits));
        let escaped = escaped.and_then(|(digits, after)| Some((byte(digits, base)?, after)));
        let (byte, after) = escaped.unwrap_or((*first, after));
        bytes.push(byte);
        rest = after;
    }
    bytes
}

/// Does the same for a text. Decoded bytes that are not UTF-8 are replaced by U+FFFD.
pub fn decoded_text(text: &str, mark: &str, digits: usize, base: u32) -> String {
    String::from_utf8_lossy(&decoded(text.as_bytes(), mark, digits, base)).into_owned()
}

fn byte(digits: &[u8], base: u32) -> Option<u8> {
    // The number parser would accept a sign too.
    let digits = str::from_utf8(digits).ok().filter(|digits| digits.chars().all(|c| c.is_digit(base)))?;
    u8::from_str_radix(digits, base).ok()
}
