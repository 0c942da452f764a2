//! Scalars that PyYAML converts to numbers, times or bytes, or fails on (yaml/resolver.py, yaml/constructor.py).

/// Most digits that Python converts to a number (`sys.get_int_max_str_digits`).
const MOST_DIGITS: usize = 4300;
/// Most colons in a base 60 number that Python can still convert to a float.
const MOST_COLONS: usize = 173;

/// Why PyYAML fails on a scalar without a tag.
pub(super) fn plain_problem(text: &str) -> Option<&'static str> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-')) {
        return None;
    }
    let is_dashed = text.as_bytes().get(4) == Some(&b'-');
    if is_dashed && Time::parse(text).is_some_and(|time| time.is_implicit && !time.exists) {
        return Some("cloud-init takes this for a date, and there is no such day or time; put it in quotes");
    }
    (is_empty_number(text) || is_endless(text))
        .then_some("cloud-init takes this for a number that it cannot read; put it in quotes")
}

/// Whether PyYAML reads a scalar without a tag as text.
pub(crate) fn is_text(text: &str) -> bool {
    let is_word = fits("bool", text) || text.eq_ignore_ascii_case("null") || matches!(text, "" | "~");
    let is_number = fits("int", text) || text.contains('.') && fits("float", text);
    !is_word && !is_number && Time::parse(text).is_none_or(|time| !time.is_implicit)
}

/// Whether PyYAML can convert a text to the type of its tag.
pub(super) fn fits(tag: &str, text: &str) -> bool {
    match tag {
        "bool" => ["yes", "no", "true", "false", "on", "off"].iter().any(|word| text.eq_ignore_ascii_case(word)),
        "int" => is_int(unsigned(text)),
        "float" => is_float(unsigned(text)),
        "timestamp" => Time::parse(text).is_some_and(|time| time.exists),
        "binary" => text.is_ascii() && is_base64(text),
        _ => true,
    }
}

fn unsigned(text: &str) -> &str {
    text.strip_prefix(['+', '-']).unwrap_or(text)
}

/// Whether a number has a prefix but no digits.
fn is_empty_number(text: &str) -> bool {
    let digits = unsigned(text);
    let digits = digits.strip_prefix("0b").or_else(|| digits.strip_prefix("0x")).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte == b'_')
}

fn is_endless(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'_' | b':' | b'.');
    text.len() > MOST_COLONS
        && (text.len() > MOST_DIGITS || text.matches(':').count() > MOST_COLONS)
        && unsigned(text).bytes().all(is_part)
}

fn is_int(text: &str) -> bool {
    match text.as_bytes() {
        [b'0', b'b', ..] => are_digits(&text[2..], 2),
        [b'0', b'x', ..] => are_digits(&text[2..], 16),
        [b'0', b'o', ..] => are_digits(&text[2..], 8),
        [b'0', ..] => are_digits(text, 8),
        _ => !is_endless(text) && text.split(':').all(|part| are_digits(part, 10)),
    }
}

fn are_digits(text: &str, base: u32) -> bool {
    text.bytes().any(|byte| byte != b'_') && text.bytes().all(|byte| byte == b'_' || char::from(byte).is_digit(base))
}

fn is_float(text: &str) -> bool {
    [".inf", ".nan", "inf", "infinity", "nan"].iter().any(|word| text.eq_ignore_ascii_case(word))
        || !is_endless(text) && text.split(':').all(is_decimal)
}

fn is_decimal(text: &str) -> bool {
    let at = text.bytes().position(|byte| matches!(byte, b'e' | b'E'));
    let (mantissa, exponent) = at.map_or((text, "0"), |at| (&text[..at], unsigned(&text[at + 1..])));
    let has_digit = mantissa.bytes().any(|byte| byte.is_ascii_digit());
    let all = mantissa.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'_' | b'.'));
    has_digit && all && mantissa.bytes().filter(|byte| *byte == b'.').count() < 2 && are_digits(exponent, 10)
}

/// Like `binascii.a2b_base64`, which skips characters that are not base64, and ignores everything after the padding.
fn is_base64(text: &str) -> bool {
    let (mut characters, mut padding) = (0, 0);
    for byte in text.bytes() {
        match byte {
            b'=' if characters >= 2 => {
                padding += 1;
                if characters + padding >= 4 {
                    return true;
                }
            }
            b'+' | b'/' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => (characters, padding) = ((characters + 1) % 4, 0),
            _ => {}
        }
    }
    characters == 0
}

/// A text in the format of a time (`timestamp_regexp`).
struct Time {
    /// Whether it is a time even without a tag.
    is_implicit: bool,
    /// Whether the day and the time of day exist.
    exists: bool,
}

impl Time {
    fn parse(text: &str) -> Option<Self> {
        let rest = &mut text.as_bytes();
        let year = number(rest, 4, 4)?;
        mark(rest, b"-")?;
        let month = number(rest, 1, 2)?;
        mark(rest, b"-")?;
        let day = number(rest, 1, 2)?;
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = match month {
            2 => 28 + u32::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let is_day = year > 0 && (1..=12).contains(&month) && (1..=days).contains(&day);
        if rest.is_empty() {
            return Some(Self { is_implicit: text.len() == "2024-01-31".len(), exists: is_day });
        }
        if !blanks(rest) {
            mark(rest, b"Tt")?;
        }
        let hour = number(rest, 1, 2)?;
        mark(rest, b":")?;
        let minute = number(rest, 2, 2)?;
        mark(rest, b":")?;
        let second = number(rest, 2, 2)?;
        if mark(rest, b".").is_some() {
            while number(rest, 1, 1).is_some() {}
        }
        let is_zone = zone(rest)?;
        Some(Self { is_implicit: true, exists: is_day && hour < 24 && minute < 60 && second < 60 && is_zone })
    }
}

/// Whether the rest of a time is empty or a valid offset from UTC of less than a day.
fn zone(rest: &mut &[u8]) -> Option<bool> {
    if rest.is_empty() {
        return Some(true);
    }
    blanks(rest);
    let mut minutes = 0;
    if mark(rest, b"Z").is_none() {
        mark(rest, b"+-")?;
        minutes = 60 * number(rest, 1, 2)?;
        if mark(rest, b":").is_some() {
            minutes += number(rest, 2, 2)?;
        }
    }
    rest.is_empty().then_some(minutes < 24 * 60)
}

/// Reads digits, as many as there are from `least` to `most`.
fn number(rest: &mut &[u8], least: usize, most: usize) -> Option<u32> {
    let len = rest.iter().take(most).take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, behind) = rest.split_at_checked(len).filter(|_| len >= least)?;
    *rest = behind;
    Some(digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0')))
}

/// Reads one of the marks.
fn mark(rest: &mut &[u8], marks: &[u8]) -> Option<()> {
    let (first, behind) = rest.split_first()?;
    *rest = if marks.contains(first) { behind } else { return None };
    Some(())
}

/// Skips spaces and tabs. Returns whether there were any.
fn blanks(rest: &mut &[u8]) -> bool {
    let len = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    *rest = rest.get(len..).unwrap_or_default();
    len > 0
}
