//! The places an image can be fetched from: the first, and where that fails the next, which is then stayed with.

use std::time::Duration;

use super::retry::MAX_FAILURES;
use super::{FetchError, STALL_TIMEOUT, shown};
use crate::text;

/// Failures in a row at one place, without a byte received between them, after which another is asked.
const TRIES: u32 = 2;
/// Longest silence that is put up with, for a source that is slow and not broken.
const LONGEST_STALL: Duration = Duration::from_secs(60);

/// Where an image can be fetched from, how that went so far, and what it took.
pub(crate) struct Mirrors {
    places: Vec<Place>,
    /// Index of the place that is asked.
    at: usize,
    /// Failures in a row, without a byte received between them: at this place, and at all of them.
    here: u32,
    in_a_row: u32,
    stall: Duration,
    /// How often any of them was asked.
    pub(crate) attempts: u64,
    /// Bytes that had been received before and were dropped, to be fetched again.
    pub(crate) again: u64,
}

struct Place {
    url: String,
    /// Why it failed last.
    failure: Option<String>,
    /// It failed with what will not pass.
    is_out: bool,
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The same place is asked again.
    Same,
    /// Another one is.
    Other,
    /// All of them have failed for good or often enough.
    GiveUp,
}

impl Mirrors {
    /// These places, of which there is at least one.
    pub(crate) fn new(first: &str, others: &[String]) -> Self {
        let urls = std::iter::once(first).chain(others.iter().map(String::as_str)).map(str::to_owned);
        let places = urls.map(|url| Place { url, failure: None, is_out: false }).collect();
        Self { places, at: 0, here: 0, in_a_row: 0, stall: STALL_TIMEOUT, attempts: 0, again: 0 }
    }

    /// A warning for the operator if it took more than one attempt.
    pub(crate) fn warning(&self) -> Option<String> {
        let (attempts, again) = (self.attempts, text::size(self.again));
        (attempts > 1).then(|| format!("fetching took {attempts} attempts, and {again} were fetched again"))
    }

    /// The place that is asked.
    pub(crate) fn url(&self) -> &str {
        &self.places[self.at].url
    }

    /// All places.
    pub(crate) fn urls(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|place| place.url.as_str())
    }

    /// Whether any of them may yet answer.
    pub(crate) fn may_pass(&self) -> bool {
        self.places.iter().any(|place| !place.is_out)
    }

    /// How long this place may be silent: 10 s, and twice as long after each time that was too short, up to a minute.
    pub(crate) fn stall(&self) -> Duration {
        self.stall
    }

    /// Failures in a row, without a byte received between them.
    pub(crate) fn failures(&self) -> u32 {
        self.in_a_row
    }

    /// Takes note of a failure of the place asked, and of whether bytes had come before it.
    pub(crate) fn failed(&mut self, error: &FetchError, received: bool) -> Then {
        if received {
            (self.here, self.in_a_row) = (0, 0);
        }
        self.here += 1;
        self.in_a_row += 1;
        if error.is_stall() {
            self.stall = (self.stall * 2).min(LONGEST_STALL);
        }
        let place = &mut self.places[self.at];
        place.failure = Some(text::chain(error));
        place.is_out = !error.may_pass();
        let is_out = place.is_out;
        let left = self.places.iter().filter(|place| !place.is_out).count();
        let most = MAX_FAILURES.max(TRIES * u32::try_from(left).unwrap_or(u32::MAX));
        if left == 0 || self.in_a_row >= most {
            return Then::GiveUp;
        }
        if is_out || (left > 1 && (self.here >= TRIES || error.retry_after().is_some())) {
            self.move_on();
            return Then::Other;
        }
        Then::Same
    }

    /// Takes note that the place asked cannot go on with what was begun. Where that was begun here, the next place may do better;
    /// where it was begun elsewhere, this place may do well from the beginning.
    pub(crate) fn not_resumable(&mut self) {
        if self.here > 0 {
            self.move_on();
        }
    }

    /// Goes on to the next place that has not failed for good, if there is one.
    fn move_on(&mut self) {
        let places = self.places.len();
        let mut others = (1..places).map(|step| (self.at + step) % places);
        if let Some(next) = others.find(|&index| !self.places[index].is_out) {
            (self.at, self.here, self.stall) = (next, 0, STALL_TIMEOUT);
        }
    }

    /// Each place with why it failed last, for an error; nothing where there is but one.
    pub(crate) fn told(&self) -> Vec<String> {
        if self.places.len() == 1 {
            return Vec::new();
        }
        let told = |place: &Place| Some(format!("{}: {}", shown(&place.url), place.failure.as_ref()?));
        self.places.iter().filter_map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::Refusal;
    use reqwest::StatusCode;
    use std::io;

    fn refused(status: StatusCode, retry_after: Option<u64>) -> FetchError {
        let retry_after = retry_after.map(Duration::from_secs);
        FetchError::Status { status, refusal: Refusal { retry_after, ..Refusal::default() } }
    }

    fn dropped() -> FetchError {
        FetchError::Body { source: io::ErrorKind::ConnectionReset.into() }
    }

    fn stalled() -> FetchError {
        FetchError::Body { source: io::ErrorKind::TimedOut.into() }
    }

    #[test]
    fn the_place_that_works_is_stayed_with() {
        let mut mirrors = Mirrors::new("https://a/x", &["https://b/x".to_owned(), "https://c/x".to_owned()]);
        assert_eq!(mirrors.failed(&dropped(), true), Then::Same);
        assert_eq!(mirrors.failed(&dropped(), true), Then::Same);
        assert_eq!((mirrors.failed(&dropped(), false), mirrors.url()), (Then::Other, "https://b/x"));
        assert_eq!(mirrors.failed(&dropped(), false), Then::Same);
        assert_eq!(mirrors.failed(&dropped(), true), Then::Same);
        assert_eq!(
            (mirrors.failed(&refused(StatusCode::NOT_FOUND, None), true), mirrors.url()),
            (Then::Other, "https://c/x")
        );
        // A server that says when to come back is not waited for while there is another.
        let busy = refused(StatusCode::SERVICE_UNAVAILABLE, Some(30));
        assert_eq!((mirrors.failed(&busy, false), mirrors.url()), (Then::Other, "https://a/x"));
        assert_eq!(mirrors.failed(&refused(StatusCode::NOT_FOUND, None), false), Then::Other);
        assert_eq!(mirrors.url(), "https://c/x", "b is out for good");
        assert_eq!(mirrors.failed(&busy, true), Then::Same);
        assert_eq!(mirrors.failed(&refused(StatusCode::GONE, None), false), Then::GiveUp);
        let told = mirrors.told();
        assert_eq!(told[2], "https://c/x: the server answered 410 Gone");
        assert_eq!(told.len(), 3);
    }

    #[test]
    fn every_place_is_asked_before_all_are_given_up() {
        let urls: Vec<String> = (0..8).map(|n| format!("https://{n}/x")).collect();
        let mut mirrors = Mirrors::new(&urls[0], &urls[1..]);
        let mut asked = vec![mirrors.url().to_owned()];
        while mirrors.failed(&dropped(), false) != Then::GiveUp {
            asked.push(mirrors.url().to_owned());
        }
        let expect: Vec<String> = urls.iter().flat_map(|url| [url.clone(), url.clone()]).collect();
        assert_eq!(asked, expect);
    }

    #[test]
    fn patience_with_silence_grows_to_a_minute_and_is_another_places_anew() {
        let mut mirrors = Mirrors::new("https://a/x", &["https://b/x".to_owned()]);
        let stalls: Vec<u64> = (0..4)
            .map(|_| {
                let now = mirrors.stall().as_secs();
                mirrors.failed(&stalled(), true);
                now
            })
            .collect();
        assert_eq!(stalls, [10, 20, 40, 60]);
        mirrors.move_on();
        assert_eq!(mirrors.stall().as_secs(), 10);
        mirrors.failed(&dropped(), true);
        assert_eq!(mirrors.stall().as_secs(), 10);
    }
}
