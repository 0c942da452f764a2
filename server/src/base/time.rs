//! Times in the database, the protocol and output for people.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;

/// Milliseconds since 1970.
pub type Millis = u64;

/// Returns the current time by this host's clock.
pub fn now() -> Millis {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Formats a time for people, to the second: `2026-01-31 09:05:00 UTC`. Times beyond the calendar are shown as a
/// number.
pub fn utc(at: Millis) -> String {
    date_and_time(at).map_or_else(|| format!("{at} ms after 1970"), |(date, time)| format!("{date} {time} UTC"))
}

/// Formats a time for programs (RFC 3339): `2026-01-31T09:05:00.999Z`. `None` for times beyond the calendar.
pub fn rfc3339(at: Millis) -> Option<String> {
    date_and_time(at).map(|(date, time)| format!("{date}T{time}.{:03}Z", at % 1000))
}

fn date_and_time(at: Millis) -> Option<(String, String)> {
    let at = OffsetDateTime::from_unix_timestamp(i64::try_from(at / 1000).ok()?).ok()?;
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second) = at.to_hms();
    let date = format!("{year:04}-{:02}-{day:02}", u8::from(month));
    Some((date, format!("{hour:02}:{minute:02}:{second:02}")))
}

/// Suffix of the field that repeats a time field in RFC 3339.
pub const DATED: &str = "_rfc3339";

/// Whether a field of operators' output is a time in milliseconds since 1970.
pub fn is_time(key: &str) -> bool {
    matches!(key, "at" | "since") || ["_at", "_since", "_until", "_seen", "_asked"].iter().any(|end| key.ends_with(end))
}

/// Converts operators' output to JSON. Adds to each time in milliseconds the same time in RFC 3339.
pub fn dated<T: Serialize>(value: &T) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(value)?;
    add_dates(&mut value);
    Ok(value)
}

fn add_dates(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(add_dates),
        Value::Object(fields) => {
            fields.values_mut().for_each(add_dates);
            let times = fields.iter().filter(|(key, _)| is_time(key));
            let date = |(key, at): (&String, &Value)| Some((format!("{key}{DATED}"), rfc3339(at.as_u64()?)?.into()));
            let dates: Vec<(String, Value)> = times.filter_map(date).collect();
            fields.extend(dates);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_utc() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(1_769_850_300_999), "2026-01-31 09:05:00 UTC");
        assert_eq!(utc(u64::MAX), "18446744073709551615 ms after 1970");
        assert_eq!(rfc3339(1_769_850_300_999).as_deref(), Some("2026-01-31T09:05:00.999Z"));
        assert_eq!(rfc3339(u64::MAX), None);
    }

    #[test]
    fn every_time_has_its_date_beside_it() {
        let key = serde_json::json!({ "since": 1500, "last_seen": null });
        let given = serde_json::json!([{ "used_at": 0, "attempt": 1, "at": "here", "key": key }]);
        let expect = serde_json::json!([{
            "used_at": 0, "used_at_rfc3339": "1970-01-01T00:00:00.000Z", "attempt": 1, "at": "here",
            "key": { "since": 1500, "since_rfc3339": "1970-01-01T00:00:01.500Z", "last_seen": null },
        }]);
        assert_eq!(dated(&given).expect("JSON"), expect);
    }
}
