//! Headers of HTTP responses.

pub mod challenge;

use std::time::{Duration, SystemTime};

/// Returns the total size from the `Content-Range` of a 206 (RFC 9110, 14.4), if the server states it. Fails if the
/// response does not begin at `offset`, or if `found`, its entity tag, is not `tag`.
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
    let (range, total) = in_bytes(range)?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    let total = if total == "*" { None } else { Some(total.parse::<u64>().ok()?) };
    (first <= last && total.is_none_or(|total| last < total)).then_some((first, total))
}

/// The total size from the `Content-Range` of a 416, which answers a request for bytes that are not there (RFC 9110,
/// 15.5.17).
pub fn unsatisfied_total(range: &str) -> Option<u64> {
    let (range, total) = in_bytes(range)?;
    total.parse().ok().filter(|_| range == "*")
}

/// The range and the total size of a `Content-Range` in bytes. Names of units have no case (RFC 9110, 14.1).
fn in_bytes(range: &str) -> Option<(&str, &str)> {
    let (unit, range) = range.trim().split_once(' ')?;
    let (range, total) = range.split_once('/')?;
    unit.eq_ignore_ascii_case("bytes").then_some((range.trim(), total.trim()))
}

/// The codings of a `Content-Encoding` that change the bytes, as the server names them (RFC 9110, 8.4; IANA's registry
/// of content codings). Others, such as S3's `aws-chunked`, say nothing about the body.
pub fn codings(text: &str) -> impl Iterator<Item = &str> {
    const CODINGS: [&str; 9] = ["gzip", "x-gzip", "compress", "x-compress", "deflate", "br", "zstd", "dcb", "dcz"];
    let is_coding = |name: &&str| CODINGS.iter().any(|coding| coding.eq_ignore_ascii_case(name));
    text.split(',').map(|name| name.trim_matches([' ', '\t'])).filter(is_coding)
}

/// How a body with this coding can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coded {
    /// The file itself has this compression, as its name shows: Apache's `AddEncoding` declares such files.
    InFile,
    /// Either the file is compressed, or the server compressed it on the way. Images may have this compression.
    Unclear,
    /// The body cannot be read.
    Unreadable,
}

/// What a coding says about the file at a URL.
pub fn coded(coding: &str, url: &str) -> Coded {
    let path = url.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    let ends: &[&str] = match coding.to_ascii_lowercase().as_str() {
        "gzip" | "x-gzip" => &[".gz", ".tgz", ".gzip"],
        "zstd" => &[".zst", ".zstd", ".tzst"],
        _ => return Coded::Unreadable,
    };
    if ends.iter().any(|end| path.ends_with(end)) { Coded::InFile } else { Coded::Unclear }
}

/// How long a server wants no request (RFC 9110, 10.2.3): seconds, or the time until a date. The time until a date
/// counts from the server's own `Date` if it sends one, else from `now`.
pub fn retry_after(text: &str, date: Option<&str>, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let now = date.and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
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
        check("Bytes  10-99/100", None, Some(Some(100)));
        check("items 10-99/100", None, None);
        check("", None, None);
    }

    #[test]
    fn a_range_that_is_not_there_tells_the_size() {
        let check = |range, expect| assert_eq!(unsatisfied_total(range), expect, "{range}");
        check("bytes */100", Some(100));
        check("BYTES */0", Some(0));
        for range in ["bytes */*", "bytes 0-99/100", "bytes */x", "bytes", "items */100", ""] {
            check(range, None);
        }
    }

    #[test]
    fn codings_that_change_the_bytes_are_told_from_others() {
        let check = |text: &str, expect: &[&str]| assert_eq!(codings(text).collect::<Vec<_>>(), expect, "{text}");
        check("identity", &[]);
        check("gzip, identity", &["gzip"]);
        check(" X-GZIP ,,br", &["X-GZIP", "br"]);
        check("aws-chunked", &[]);
        check("", &[]);
        for (coding, url, expect) in [
            ("gzip", "https://s/a.raw.gz?x", Coded::InFile),
            ("x-gzip", "https://s/a.TGZ", Coded::InFile),
            ("gzip", "https://s/a.zst?x=.gz", Coded::Unclear),
            ("zstd", "https://s/a.zst", Coded::InFile),
            ("zstd", "https://s/a.raw", Coded::Unclear),
            ("br", "https://s/a.br", Coded::Unreadable),
        ] {
            assert_eq!(coded(coding, url), expect, "{coding} {url}");
        }
    }

    #[test]
    fn a_server_says_when_to_come_back_in_seconds_or_by_a_date() {
        let check = |text: &str, date: Option<&str>, expect: Option<u64>| {
            assert_eq!(retry_after(text, date, SystemTime::now()), expect.map(Duration::from_secs), "{text}");
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
