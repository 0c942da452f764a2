//! Lengths of time as operators write them on the command lines of both programs.

use std::time::Duration;

/// Reads a number of seconds, or a number with a unit: `s`, `m`, `h` or `d`, as timeout(1) has them.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a number of seconds, or a number followed by s, m, h or d");
    let (number, unit) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 60 * 60),
        Some((at, 'd')) => (&text[..at], 24 * 60 * 60),
        _ => (text, 1),
    };
    // `parse` accepts a sign.
    let number: u64 =
        Some(number).filter(|text| !text.starts_with('+')).and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    let seconds = number.checked_mul(unit).filter(|seconds| seconds.checked_mul(1000).is_some());
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

/// Returns a length of time in its two largest units, such as `2 h 5 min`.
pub fn words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_seconds_or_have_a_unit() {
        for (text, seconds) in [("90s", 90), ("90", 90), ("2m", 120), ("1h", 3600), ("7d", 7 * 86_400), ("0s", 0)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "h", "1w", "-1s", "+1s", "1.5h", "1 h", "ä", "99999999999999999d", "18446744073709551615"] {
            parse(bad).expect_err(bad);
        }
    }

    #[test]
    fn durations_are_told_in_two_units() {
        for (seconds, expect) in [(0, "0 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (90_000, "1 d 1 h")] {
            assert_eq!(words(Duration::from_secs(seconds)), expect);
        }
    }
}
