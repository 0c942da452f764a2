//! Headers of HTTP responses.

pub mod challenge;

use std::time::{Duration, SystemTime};

/// The total size from the `Content-Range` of a 206 (RFC 9110, 14.4), if it continues the request.
pub fn resumed_total(offset: u64, range: &str, tag: Option<&str>, found: Option<&str>) -> Result<Option<u64>, String> {
    if tag.is_some() && found.is_some() && tag != found {
        return Err("the entity tag has changed".to_owned());
    }
    match content_range(range) {
        Some((first, total)) if first == offset => Ok(total),
        _ => Err(format!("the server answered with Content-Range {range:?}")),
    }
}

/// The first byte and the total size of a `Content-Range`. None if it contradicts itself: with a total that is too
/// small, a download would end too early.
fn content_range(range: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = range.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    let total = if total == "*" { None } else { Some(total.parse::<u64>().ok()?) };
    (first <= last && total.is_none_or(|total| last < total)).then_some((first, total))
}

/// How long a server wants no request (RFC 9110, 10.2.3): seconds, or the time until a date. That counts from the
/// server's own `Date` if it sends one.
pub fn retry_after(text: &str, date: Option<&str>) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let now = date.and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or_else(SystemTime::now);
    Some(until.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_resumed_only_where_it_was_asked_for() {
        let check = |range: &str, found: Option<&str>, expect: Option<Option<u64>>| {
            assert_eq!(resumed_total(10, range, Some("\"a\""), found).ok(), expect, "{range} {found:?}");
        };
        check("bytes 10-99/100", Some("\"a\""), Some(Some(100)));
        check("bytes 10-99/100", None, Some(Some(100)));
        check("bytes 10-99/*", None, Some(None));
        check("bytes 10-99/100", Some("\"b\""), None);
        check("bytes 9-99/100", None, None);
        check("bytes */100", None, None);
        check("bytes 10-9/100", None, None);
        check("bytes 10-99/99", None, None);
        check("bytes 10-99/10", None, None);
        check("bytes 10-x/100", None, None);
        check("bytes 10-99/x", None, None);
        check("", None, None);
    }

    #[test]
    fn a_server_says_when_to_come_back_in_seconds_or_by_a_date() {
        let check = |text: &str, date: Option<&str>, expect: Option<u64>| {
            assert_eq!(retry_after(text, date), expect.map(Duration::from_secs), "{text}");
        };
        let date = Some("Fri, 31 Dec 1999 23:59:00 GMT");
        check("120", None, Some(120));
        check("Fri, 31 Dec 1999 23:59:59 GMT", date, Some(59));
        check("Fri, 31 Dec 1999 23:58:59 GMT", date, Some(0));
        check("Fri, 31 Dec 1999 23:59:59 GMT", None, Some(0));
        check("99999999999999999999", date, None);
        check("-1", date, None);
        check("soon", date, None);
    }
}
