//! Single byte ranges (RFC 9110, section 14).

use std::ops::Range;

/// Which part of an object a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The whole object: there is no range, one that is not understood, or several. A server may then answer in full
    /// (section 14.2).
    Whole,
    /// This range of bytes.
    Part(Range<u64>),
    /// A range beyond the object's end.
    Outside,
}

/// Parses a `Range` header for an object of `size` bytes.
pub fn parse(header: &str, size: u64) -> Wanted {
    let Some((first, last)) = header.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Wanted::Whole;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first > last => Wanted::Whole,
        (Some(first), Some(last)) if first < size => Wanted::Part(first..last.saturating_add(1).min(size)),
        (Some(first), None) if last.trim().is_empty() && first < size => Wanted::Part(first..size),
        (Some(_), Some(_)) => Wanted::Outside,
        (Some(_), None) if last.trim().is_empty() => Wanted::Outside,
        (None, Some(0)) if first.trim().is_empty() => Wanted::Outside,
        (None, Some(suffix)) if first.trim().is_empty() && size > 0 => Wanted::Part(size.saturating_sub(suffix)..size),
        (None, Some(_)) if first.trim().is_empty() => Wanted::Outside,
        _ => Wanted::Whole,
    }
}

/// Whether an `If-Range` header permits the range: only if it is the object's strong tag (section 13.1.5).
pub fn if_range_holds(header: Option<&str>, etag: &str) -> bool {
    header.is_none_or(|wanted| wanted.trim() == etag)
}

/// Whether an `If-None-Match` header has the tag, compared weakly (section 13.1.2).
pub fn none_match_has(header: &str, etag: &str) -> bool {
    header.split(',').map(str::trim).any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_a_part_or_lies_outside_or_is_ignored() {
        let table = [
            ("bytes=0-0", Wanted::Part(0..1)),
            ("bytes=2-5", Wanted::Part(2..6)),
            ("bytes=8-", Wanted::Part(8..10)),
            ("bytes=8-99", Wanted::Part(8..10)),
            ("bytes=0-18446744073709551615", Wanted::Part(0..10)),
            ("bytes=-3", Wanted::Part(7..10)),
            ("bytes=-99", Wanted::Part(0..10)),
            ("bytes=10-", Wanted::Outside),
            ("bytes=10-12", Wanted::Outside),
            ("bytes=-0", Wanted::Outside),
            ("bytes=5-2", Wanted::Whole),
            ("bytes=0-1,4-5", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=a-b", Wanted::Whole),
            ("lines=1-2", Wanted::Whole),
        ];
        for (header, expect) in table {
            assert_eq!(parse(header, 10), expect, "{header}");
        }
        assert_eq!(parse("bytes=0-", 0), Wanted::Outside);
        assert_eq!(parse("bytes=-1", 0), Wanted::Outside);
    }

    #[test]
    fn only_the_same_strong_tag_lets_a_range_apply() {
        assert!(if_range_holds(None, "\"a\""));
        assert!(if_range_holds(Some("\"a\""), "\"a\""));
        for other in ["\"b\"", "W/\"a\"", "Sat, 29 Oct 1994 19:43:31 GMT"] {
            assert!(!if_range_holds(Some(other), "\"a\""), "{other}");
        }
        assert!(none_match_has("\"b\", W/\"a\"", "\"a\""));
        assert!(!none_match_has("\"b\"", "\"a\""));
    }
}
