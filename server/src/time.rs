//! Times in the database and the protocol.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;

/// Milliseconds since 1970.
pub type Millis = u64;

/// Now, by this host's clock.
pub fn now() -> Millis {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A time for people, to the second: `2026-01-31 09:05:00 UTC`. A time outside of the calendar is shown as a number.
pub fn utc(at: Millis) -> String {
    let date = i64::try_from(at / 1000).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    date.map_or_else(
        || format!("{at} ms after 1970"),
        |at| {
            let (year, month, day) = at.to_calendar_date();
            let (hour, minute, second) = at.to_hms();
            format!("{year:04}-{:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC", u8::from(month))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_utc() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(1_769_850_300_999), "2026-01-31 09:05:00 UTC");
        assert_eq!(utc(u64::MAX), "18446744073709551615 ms after 1970");
    }
}
