//! The order of versions by which boot loaders sort their entries (UAPI.10 Version Format Specification).

use std::cmp::Ordering;

/// Separators, lowest first. Each is lower than any other character.
const SEPARATORS: [u8; 4] = [b'~', b'-', b'^', b'.'];

/// Compares two versions; the greater one is newer.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        (a, b) = (skip(a, |c| !is_valid(c)), skip(b, |c| !is_valid(c)));
        let mut ordering = separator(SEPARATORS[0], &mut a, &mut b);
        if ordering.is_eq() && (a.is_empty() || b.is_empty()) {
            return a.len().cmp(&b.len());
        }
        for wanted in &SEPARATORS[1..] {
            ordering = ordering.then_with(|| separator(*wanted, &mut a, &mut b));
        }
        if ordering.is_eq() {
            ordering = segment(&mut a, &mut b);
        }
        if ordering.is_ne() {
            return ordering;
        }
    }
}

fn is_valid(c: u8) -> bool {
    c.is_ascii_alphanumeric() || SEPARATORS.contains(&c)
}

fn skip(text: &[u8], what: impl Fn(u8) -> bool) -> &[u8] {
    let end = text.iter().position(|c| !what(*c)).unwrap_or(text.len());
    text.get(end..).unwrap_or_default()
}

/// Skips a separator that both versions have. If only one version has the separator, that version is older.
fn separator(wanted: u8, a: &mut &[u8], b: &mut &[u8]) -> Ordering {
    let (after_a, after_b) = (a.strip_prefix(&[wanted]), b.strip_prefix(&[wanted]));
    if let (Some(after_a), Some(after_b)) = (after_a, after_b) {
        (*a, *b) = (after_a, after_b);
    }
    after_b.is_some().cmp(&after_a.is_some())
}

/// Compares the beginnings and skips them: digits as a number, letters as letters. Numbers are newer than letters.
fn segment(a: &mut &[u8], b: &mut &[u8]) -> Ordering {
    let is_digit = |text: &[u8]| text.first().is_some_and(u8::is_ascii_digit);
    match (is_digit(a), is_digit(b)) {
        (true, true) => {
            (*a, *b) = (skip(a, |c| c == b'0'), skip(b, |c| c == b'0'));
            let (x, y) = (take(a, |c| c.is_ascii_digit()), take(b, |c| c.is_ascii_digit()));
            x.len().cmp(&y.len()).then_with(|| x.cmp(y))
        }
        (false, false) => {
            let (x, y) = (take(a, |c| c.is_ascii_alphabetic()), take(b, |c| c.is_ascii_alphabetic()));
            x.cmp(y)
        }
        (in_a, in_b) => in_a.cmp(&in_b),
    }
}

/// Cuts off the beginning that matches.
fn take<'a>(text: &mut &'a [u8], what: impl Fn(u8) -> bool) -> &'a [u8] {
    let rest = skip(text, what);
    let (taken, rest) = text.split_at(text.len() - rest.len());
    *text = rest;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(older: &str, newer: &str) {
        assert_eq!(compare(older, newer), Ordering::Less, "{older:?} and {newer:?}");
        assert_eq!(compare(newer, older), Ordering::Greater, "{newer:?} and {older:?}");
    }

    #[test]
    fn versions_are_ordered_as_the_specification_has_it() {
        // The examples of the specification.
        let order = "122.1 123~rc1-1 123 123-a 123-a.1 123-1 123-1.1 123^post1 123.a-1 123.1-1 123a-1 124-1";
        let order: Vec<&str> = order.split(' ').collect();
        order.windows(2).for_each(|pair| check(pair[0], pair[1]));
    }

    #[test]
    fn kernels_are_ordered_by_number() {
        check("6.1.0-9-amd64", "6.1.0-18-amd64");
        check("debian-6.9.conf", "debian-6.10.conf");
        check("a-0-rescue", "a-6.5.6-300.fc39.x86_64");
        check("", "1");
        // An invalid character ends a word.
        check("a_b", "ab");
        for (a, b) in [("", ""), ("1.01", "1.1"), ("a_1", "a1"), ("ä1", "1")] {
            assert_eq!(compare(a, b), Ordering::Equal, "{a:?} and {b:?}");
        }
    }
}
