//! Text from outside, made safe for a terminal or a log.
//!
//! A serial number, an error message or a log may contain control sequences for a terminal (ECMA-48), line breaks, or
//! characters that change the order in which other characters are shown (Unicode Standard Annex #9). Such harmful
//! characters are replaced by escapes as in Rust, such as `\u{1b}`.

use std::borrow::Cow;

/// Returns a value on one line, with all harmful characters escaped, line breaks and tabs too.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmful, |c, out| out.extend(c.escape_default()))
}

/// Returns a text of several lines, with harmful characters escaped. Line breaks and tabs are kept.
pub fn lines(text: &str) -> Cow<'_, str> {
    let is_harmful = |c: char| is_harmful(c) && !matches!(c, '\n' | '\t');
    escaped(text, is_harmful, |c, out| out.extend(c.escape_default()))
}

/// Returns a JSON document of the same meaning, with harmful characters escaped. Of control characters, JSON itself
/// requires escapes only for those below U+0020 (RFC 8259, section 7).
pub fn json(document: &str) -> Cow<'_, str> {
    let is_harmful = |c: char| is_harmful(c) && !c.is_ascii_whitespace();
    escaped(document, is_harmful, |c, out| {
        c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| *out += &format!("\\u{unit:04x}"));
    })
}

/// Returns a value on one line, cut to `most` characters before it is escaped. A value that was cut ends with `…`.
pub fn short_line(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => line(text).into_owned(),
        Some((end, _)) => format!("{}…", line(&text[..end])),
    }
}

/// Returns a message without the docs.rs address that some libraries put at the end of their messages, for programmers.
pub fn for_people(message: &str) -> String {
    match message.find("https://docs.rs/") {
        Some(at) => message[..at].trim_end_matches([' ', ':', '(', '<']).to_owned(),
        None => message.to_owned(),
    }
}

/// Returns a size with a binary unit, rounded to a tenth of that unit: `8 GiB`, `1.5 MiB`. Every size that people read
/// is written so.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    // Rounding may give 1024.0, which is written as 1 of the next unit.
    let tenths = |power: usize| (u128::from(bytes) * 10 + (1 << (10 * power)) / 2) >> (10 * power);
    let power = (1..UNITS.len()).find(|power| tenths(*power) < 10_240).unwrap_or(UNITS.len());
    let (tenths, name) = (tenths(power), UNITS[power - 1]);
    match tenths % 10 {
        0 => format!("{} {name}", tenths / 10),
        tenth => format!("{}.{tenth} {name}", tenths / 10),
    }
}

/// Returns two sizes in words. If two different sizes would have the same words, both are in bytes.
pub fn two_sizes(one: u64, other: u64) -> (String, String) {
    if one != other && size(one) == size(other) {
        return (format!("{one} bytes"), format!("{other} bytes"));
    }
    (size(one), size(other))
}

fn escaped(text: &str, is_harmful: impl Fn(char) -> bool, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.contains(&is_harmful) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_harmful(c) { escape(c, &mut out) } else { out.push(c) }
    }
    out.into()
}

/// Whether a character controls the display of other characters, or is invisible.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Soft hyphen, and the bidirectional marks.
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            // Separators of lines and paragraphs, embeddings and overrides.
            | '\u{2028}'..='\u{202e}'
            // Word joiner, invisible operators, isolates, and deprecated format characters.
            | '\u{2060}'..='\u{206f}'
            // Byte order mark, annotations, tags.
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_on_its_line_and_orders_no_terminal_about() {
        let check = |text: &str, expect: &str| assert_eq!(line(text), expect, "{text:?}");
        check("7CZ1 é 漢 \\ \" 😀", "7CZ1 é 漢 \\ \" 😀");
        check("a\u{1b}]0;owned\u{7}b", "a\\u{1b}]0;owned\\u{7}b");
        check("a\nb\r\tc\0\u{7f}\u{9b}2J", "a\\nb\\r\\tc\\u{0}\\u{7f}\\u{9b}2J");
        check("\u{202e}fdp.\u{2066}x", "\\u{202e}fdp.\\u{2066}x");
        for c in ['\u{200b}', '\u{200e}', '\u{61c}', '\u{2028}', '\u{2029}', '\u{feff}', '\u{e0041}', '\u{2060}'] {
            assert!(line(&c.to_string()).is_ascii(), "{c:?}");
        }
    }

    #[test]
    fn a_log_keeps_its_lines_and_tabs() {
        assert_eq!(lines("a\tb\nc\r\u{1b}[2J\n"), "a\tb\nc\\r\\u{1b}[2J\n");
    }

    #[test]
    fn json_means_the_same_afterwards() {
        let value = serde_json::json!({ "a\u{202e}": "\u{7f}\u{9b}\u{e0041}\u{1b}\n é" });
        let pretty = serde_json::to_string_pretty(&value).expect("JSON");
        let safe = json(&pretty);
        assert!(safe.contains("\\u202e") && safe.contains("\\udb40\\udc41") && safe.contains('é'), "{safe}");
        assert!(!safe.contains(|c| is_harmful(c) && c != '\n'), "{safe:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).expect("JSON"), value);
    }

    #[test]
    fn a_long_value_is_cut() {
        assert_eq!(short_line("abc", 3), "abc");
        assert_eq!(short_line("é\u{1b}c", 2), "é\\u{1b}…");
    }

    #[test]
    fn sizes_have_the_unit_that_fits() {
        for (bytes, expect) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            ((1 << 20) - 1, "1 MiB"),
            (4_612_186_931, "4.3 GiB"),
            ((4 << 30) - 1, "4 GiB"),
            (1536 * 1024, "1.5 MiB"),
            (8 << 30, "8 GiB"),
            (1_000_204_886_016, "931.5 GiB"),
        ] {
            assert_eq!(size(bytes), expect);
        }
        let tls =
            "peer closed connection without sending TLS close_notify: https://docs.rs/rustls/latest/rustls/manual";
        assert_eq!(for_people(tls), "peer closed connection without sending TLS close_notify");
        assert_eq!(for_people("https://s.example/docs.rs: no"), "https://s.example/docs.rs: no");
        assert_eq!(two_sizes(3 << 30, 4 << 30), ("3 GiB".to_owned(), "4 GiB".to_owned()));
        assert_eq!(two_sizes(8 << 30, (8 << 30) + 512), ("8589934592 bytes".to_owned(), "8589935104 bytes".to_owned()));
    }
}
