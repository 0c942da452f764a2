//! The mirrors of an image. If one fails, the next is used, and kept.

use std::time::Duration;

use super::retry::Outage;
use super::shown;
use crate::error::FetchError;
use crate::machine::STALL_TIMEOUT;
use crate::text;

/// Number of failures in a row at one mirror before the next is used.
const TRIES: u32 = 2;
/// Bytes received between two failures that make the second the first of a new series. A working connection delivers
/// more within a few round trips. Without this limit, a mirror that sends one byte per connection would be used for
/// ever.
const PROGRESS: u64 = 64 << 10;
/// Upper limit of the stall timeout, for sources that are slow but not broken.
const LONGEST_STALL: Duration = Duration::from_secs(60);

/// The mirrors of an image, their state and statistics.
pub(crate) struct Mirrors {
    places: Vec<Place>,
    /// Index of the current mirror.
    at: usize,
    /// Failures in a row at the current mirror, with no more than a few bytes received between two of them.
    here: u32,
    outage: Outage,
    /// Bytes received since the last failure.
    since: u64,
    stall: Duration,
    /// Bytes received since the download was started.
    received: u64,
    /// Whether data combined from several mirrors was wrong.
    is_mixing_over: bool,
    /// Offset at which the last response to a request for the whole source broke off, if one did.
    broke_off_at: Option<u64>,
    /// Number of requests to all mirrors.
    pub(crate) attempts: u64,
    /// Bytes that were received, dropped and have to be fetched again.
    pub(crate) again: u64,
}

struct Place {
    url: String,
    /// The mirror's last failure, in words.
    failure: Option<String>,
    /// Whether its last failure was permanent.
    is_out: bool,
    /// Whether it delivered a part of the current download.
    gave: bool,
    /// The `Content-Encoding` of its last response, if the body may be compressed on the way.
    coding: Option<String>,
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Try the same mirror again.
    Same,
    /// Try another mirror.
    Other,
    /// Give up: all mirrors have failed permanently or too often.
    GiveUp,
}

impl Mirrors {
    /// Starts at the first of these mirrors, with no failures.
    pub(crate) fn new(first: &str, others: &[String]) -> Self {
        let urls = std::iter::once(first).chain(others.iter().map(String::as_str)).map(str::to_owned);
        let places = urls.map(|url| Place { url, failure: None, is_out: false, gave: false, coding: None }).collect();
        let (stall, is_mixing_over) = (STALL_TIMEOUT, false);
        Self {
            places,
            at: 0,
            here: 0,
            outage: Outage::default(),
            since: 0,
            stall,
            received: 0,
            is_mixing_over,
            broke_off_at: None,
            attempts: 0,
            again: 0,
        }
    }

    /// Starts again at the first byte. Counts the bytes received so far as ones to be fetched again.
    pub(crate) fn begin(&mut self) {
        self.again += std::mem::take(&mut self.received);
        self.since = 0;
        self.places.iter_mut().for_each(|place| place.gave = false);
    }

    /// Whether any byte was received since the start.
    pub(crate) fn has_begun(&self) -> bool {
        self.received > 0
    }

    /// Records bytes received from the current mirror.
    pub(crate) fn received(&mut self, bytes: u64) {
        self.received += bytes;
        self.since += bytes;
        self.places[self.at].gave |= bytes > 0;
        if self.since >= PROGRESS {
            (self.here, self.outage) = (0, Outage::default());
        }
    }

    /// Records how the current mirror compressed its response on the way.
    pub(crate) fn coded(&mut self, coding: Option<String>) {
        self.places[self.at].coding = coding;
    }

    /// How the current mirror compressed its last response on the way.
    pub(crate) fn coding(&self) -> Option<&str> {
        self.places[self.at].coding.as_deref()
    }

    /// Records where a response to a request for the whole source broke off. Returns whether the previous one broke off
    /// at the same byte. Then the source ends there, and the server leaves out the end marker.
    pub(crate) fn breaks_off_again(&mut self, at: u64) -> bool {
        self.broke_off_at.replace(at) == Some(at)
    }

    /// Returns a warning for the operator if there was more than one attempt.
    pub(crate) fn warning(&self) -> Option<String> {
        let again = match self.again {
            0 => String::new(),
            again => format!(", and {} were fetched again", text::size(again)),
        };
        (self.attempts > 1).then(|| format!("fetching took {} attempts{again}", self.attempts))
    }

    /// URL of the current mirror.
    pub(crate) fn url(&self) -> &str {
        &self.places[self.at].url
    }

    /// Index of the current mirror, from 0.
    pub(crate) fn index(&self) -> usize {
        self.at
    }

    /// URLs of all mirrors.
    pub(crate) fn urls(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|place| place.url.as_str())
    }

    /// Whether any mirror may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        self.places.iter().any(|place| !place.is_out)
    }

    /// Stall timeout of the current mirror: 10 s, doubled after each stall, up to a minute.
    pub(crate) fn stall(&self) -> Duration {
        self.stall
    }

    /// The current series of failures.
    pub(crate) fn outage(&self) -> &Outage {
        &self.outage
    }

    /// Records a failure of the current mirror. Gives up if each mirror was tried and nothing was received for
    /// `patience`.
    pub(crate) fn failed(&mut self, error: &FetchError, patience: Duration) -> Then {
        self.here += 1;
        self.outage.failed();
        self.since = 0;
        if error.is_stall() {
            self.stall = (self.stall * 2).min(LONGEST_STALL);
        }
        let place = &mut self.places[self.at];
        place.failure = Some(text::chain(error));
        place.is_out = !error.is_transient();
        let is_out = place.is_out;
        let left = self.places.iter().filter(|place| !place.is_out).count();
        if left == 0 || (self.was_each_asked() && self.outage.lasted() >= patience) {
            return Then::GiveUp;
        }
        if is_out || (left > 1 && (self.here >= TRIES || error.retry_after().is_some())) {
            self.move_on();
            return Then::Other;
        }
        Then::Same
    }

    /// Whether the series has enough failures for each remaining mirror to have been tried.
    pub(crate) fn was_each_asked(&self) -> bool {
        let left = self.places.iter().filter(|place| !place.is_out).count();
        self.outage.failures() >= TRIES * u32::try_from(left).unwrap_or(u32::MAX)
    }

    /// Records that the current mirror cannot resume the download. If the download failed at this mirror before, the
    /// next mirror may do better. If it was started at another, this mirror may deliver all of it from the start.
    pub(crate) fn not_resumable(&mut self) {
        if self.here > 0 {
            self.move_on();
        }
    }

    /// Whether a download started at one mirror must be finished there.
    pub(crate) fn is_mixing_over(&self) -> bool {
        self.is_mixing_over
    }

    /// Records that the received data is wrong. If it came from one mirror, excludes that mirror. If it came from
    /// several, it is unknown which was wrong, and from now on each must deliver the whole image. Returns the mirrors
    /// that contributed, and whether a mirror is left to start again with.
    pub(crate) fn gave_wrong(&mut self, why: &str) -> (Vec<&str>, bool) {
        let mut gave: Vec<usize> = (0..self.places.len()).filter(|&index| self.places[index].gave).collect();
        if gave.is_empty() {
            // An empty download came from the current mirror.
            gave.push(self.at);
        }
        // Each call excludes a mirror or ends mixing, so this terminates.
        let are_out = gave.len() == 1 || self.is_mixing_over;
        for &index in &gave {
            self.places[index].failure = Some(why.to_owned());
            self.places[index].is_out |= are_out;
        }
        self.is_mixing_over = true;
        if self.places[self.at].is_out {
            self.move_on();
        }
        let can_begin_again = !self.places[self.at].is_out;
        (gave.into_iter().map(|index| self.places[index].url.as_str()).collect(), can_begin_again)
    }

    /// Switches to the next mirror without a permanent failure, if there is one.
    fn move_on(&mut self) {
        let places = self.places.len();
        let mut others = (1..places).map(|step| (self.at + step) % places);
        if let Some(next) = others.find(|&index| !self.places[index].is_out) {
            (self.at, self.here, self.stall) = (next, 0, STALL_TIMEOUT);
        }
    }

    /// Whether the last failure of all mirrors is the same. Then the mirrors are not the cause.
    pub(crate) fn failed_alike(&self) -> bool {
        self.places.iter().all(|place| place.failure == self.places[0].failure)
    }

    /// Returns each mirror with its last failure, for an error; empty if there is only one mirror.
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
    use crate::error::Refusal;
    use reqwest::StatusCode;
    use std::io;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn refused(status: StatusCode, retry_after: Option<u64>) -> FetchError {
        let retry_after = retry_after.map(Duration::from_secs);
        FetchError::Status { status, refusal: Refusal { retry_after, ..Refusal::default() } }
    }

    fn dropped() -> FetchError {
        FetchError::Body { source: io::ErrorKind::ConnectionReset.into() }
    }

    /// A failure after a good deal of data was received.
    fn broken_off(mirrors: &mut Mirrors, error: &FetchError) -> Then {
        mirrors.received(PROGRESS);
        mirrors.failed(error, PATIENCE)
    }

    fn stalled() -> FetchError {
        FetchError::Body { source: io::ErrorKind::TimedOut.into() }
    }

    #[test]
    fn the_place_that_works_is_stayed_with() {
        let mut mirrors = Mirrors::new("https://a/x", &["https://b/x".to_owned(), "https://c/x".to_owned()]);
        assert_eq!(broken_off(&mut mirrors, &dropped()), Then::Same);
        assert_eq!(broken_off(&mut mirrors, &dropped()), Then::Same);
        assert_eq!((mirrors.failed(&dropped(), PATIENCE), mirrors.url()), (Then::Other, "https://b/x"));
        assert_eq!(mirrors.failed(&dropped(), PATIENCE), Then::Same);
        assert_eq!(broken_off(&mut mirrors, &dropped()), Then::Same);
        assert_eq!(
            (broken_off(&mut mirrors, &refused(StatusCode::NOT_FOUND, None)), mirrors.url()),
            (Then::Other, "https://c/x")
        );
        // If another mirror is left, a server's request to come back later is not waited for.
        let busy = refused(StatusCode::SERVICE_UNAVAILABLE, Some(30));
        assert_eq!((mirrors.failed(&busy, PATIENCE), mirrors.url()), (Then::Other, "https://a/x"));
        assert_eq!(mirrors.failed(&refused(StatusCode::NOT_FOUND, None), PATIENCE), Then::Other);
        assert_eq!(mirrors.url(), "https://c/x", "b is out for good");
        assert_eq!(broken_off(&mut mirrors, &busy), Then::Same);
        assert_eq!(mirrors.failed(&refused(StatusCode::GONE, None), PATIENCE), Then::GiveUp);
        let told = mirrors.told();
        assert_eq!(told[2], "https://c/x: the server answered 410 Gone");
        assert_eq!(told.len(), 3);
    }

    #[test]
    fn a_place_is_given_up_for_the_time_that_nothing_came_and_not_for_its_failures() {
        let mut mirrors = Mirrors::new("https://a/x", &[]);
        for _ in 0..1000 {
            assert_eq!(mirrors.failed(&dropped(), PATIENCE), Then::Same);
        }
        assert_eq!(mirrors.failed(&dropped(), mirrors.outage().lasted()), Then::GiveUp);
        mirrors.received(PROGRESS);
        assert_eq!(mirrors.failed(&dropped(), Duration::from_millis(1)), Then::Same);
    }

    #[test]
    fn a_place_that_gives_a_few_bytes_and_hangs_up_is_not_asked_for_ever() {
        let given_up_after = |bytes: u64| {
            let mut mirrors = Mirrors::new("https://a/x", &[]);
            (1..100_u32).find(|_| {
                // Received in small pieces, as when reading.
                mirrors.received(1);
                mirrors.received(bytes - 1);
                mirrors.failed(&dropped(), Duration::ZERO) == Then::GiveUp
            })
        };
        assert_eq!(given_up_after(1), Some(TRIES));
        assert_eq!(given_up_after(PROGRESS - 1), Some(TRIES));
        assert_eq!(given_up_after(PROGRESS), None);
        let mut mirrors = Mirrors::new("https://a/x", &["https://b/x".to_owned()]);
        for expect in [Then::Same, Then::Other] {
            mirrors.received(1);
            assert_eq!(mirrors.failed(&dropped(), PATIENCE), expect);
        }
        assert_eq!(mirrors.url(), "https://b/x");
    }

    #[test]
    fn a_place_that_gave_another_image_is_out_and_several_are_asked_one_by_one() {
        let mut mirrors = Mirrors::new("https://a/x", &["https://b/x".to_owned(), "https://c/x".to_owned()]);
        mirrors.begin();
        mirrors.received(5);
        while mirrors.failed(&dropped(), PATIENCE) == Then::Same {}
        mirrors.received(7);
        assert_eq!(mirrors.gave_wrong("wrong"), (vec!["https://a/x", "https://b/x"], true));
        assert!(mirrors.is_mixing_over());
        for (url, can_begin_again) in [("https://b/x", true), ("https://c/x", true), ("https://a/x", false)] {
            mirrors.begin();
            assert_eq!(mirrors.url(), url);
            assert_eq!(mirrors.gave_wrong("wrong"), (vec![url], can_begin_again));
        }
        assert_eq!((mirrors.told().len(), mirrors.is_transient(), mirrors.again), (3, false, 12));
    }

    #[test]
    fn every_place_is_asked_before_all_are_given_up() {
        let urls: Vec<String> = (0..8).map(|n| format!("https://{n}/x")).collect();
        let mut mirrors = Mirrors::new(&urls[0], &urls[1..]);
        let mut asked = vec![mirrors.url().to_owned()];
        while mirrors.failed(&dropped(), Duration::ZERO) != Then::GiveUp {
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
                broken_off(&mut mirrors, &stalled());
                now
            })
            .collect();
        assert_eq!(stalls, [10, 20, 40, 60]);
        mirrors.move_on();
        assert_eq!(mirrors.stall().as_secs(), 10);
        broken_off(&mut mirrors, &dropped());
        assert_eq!(mirrors.stall().as_secs(), 10);
    }
}
