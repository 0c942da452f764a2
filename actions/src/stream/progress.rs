//! Measures progress, and which stage is the bottleneck.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use slipway_protocol::{Progress, Stage};

/// Minimum time between two progress reports.
pub(crate) const REPORT_EVERY: Duration = Duration::from_millis(500);
/// Time over which the rate is averaged.
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// Value of an atomic for "not known".
const UNKNOWN: u64 = u64::MAX;

/// Bytes counted by the stages.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) fetched: AtomicU64,
    fetch_total: AtomicU64,
    pub(crate) written: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self { fetched: zero(), fetch_total: AtomicU64::new(UNKNOWN), written: zero() }
    }
}

impl Counters {
    pub(crate) fn set_fetch_total(&self, total: Option<u64>) {
        self.fetch_total.store(total.unwrap_or(UNKNOWN), Relaxed);
    }

    /// Size of the source in bytes, if known.
    pub(crate) fn fetch_total(&self) -> Option<u64> {
        Some(self.fetch_total.load(Relaxed)).filter(|&total| total != UNKNOWN)
    }
}

/// Time a stage's threads spent waiting for another stage.
#[derive(Debug)]
pub(crate) struct Meter {
    stage: Stage,
    threads: u64,
    nanos: AtomicU64,
}

impl Meter {
    pub(crate) fn new(stage: Stage, threads: u64) -> Self {
        Self { stage, threads, nanos: AtomicU64::new(0) }
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn per_thread(&self) -> u64 {
        self.nanos.load(Relaxed) / self.threads
    }
}

/// When progress is due: [`REPORT_EVERY`] after the start and after each report. Missed reports are not made up for.
pub(crate) struct Pace {
    next: Instant,
}

impl Pace {
    pub(crate) fn new(begin: Instant) -> Self {
        Self { next: begin + REPORT_EVERY }
    }

    /// Whether to report now.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + REPORT_EVERY;
        }
        is_due
    }
}

/// The counters at one time.
#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    written: u64,
    fetched: u64,
}

/// Turns counters and meters into [`Progress`], one sample at a time.
pub(crate) struct Watch<'a> {
    counters: &'a Counters,
    meters: &'a [&'a Meter],
    /// Bytes to be written, if known.
    pub(crate) total: Option<u64>,
    samples: VecDeque<Sample>,
    waited: Vec<u64>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(counters: &'a Counters, meters: &'a [&'a Meter], total: Option<u64>) -> Self {
        let first = Sample { at: Instant::now(), written: 0, fetched: 0 };
        Self { counters, meters, total, samples: VecDeque::from([first]), waited: vec![0; meters.len()] }
    }

    /// Takes a sample of the counters and returns the progress to report now.
    pub(crate) fn look(&mut self, now: Instant) -> Progress {
        let [written, fetched] = [&self.counters.written, &self.counters.fetched].map(|count| count.load(Relaxed));
        let sample = Sample { at: now, written, fetched };
        self.samples.push_back(sample);
        let is_old = |first: &mut Sample| now - first.at > RATE_WINDOW;
        while self.samples.len() > 2 && self.samples.pop_front_if(is_old).is_some() {}
        let since = self.samples.front().unwrap_or(&sample);
        let millis = u64::try_from((now - since.at).as_millis()).unwrap_or(u64::MAX);
        let rate = per_second(since.written, written, millis);
        let fetch_total = self.counters.fetch_total();
        // The unpacked size of a stream is rarely known in advance, but its packed size nearly always is.
        let seconds_left = match (self.total, fetch_total) {
            (Some(total), _) => seconds_left(written, total, rate),
            (None, Some(total)) => seconds_left(fetched, total, per_second(since.fetched, fetched, millis)),
            (None, None) => None,
        };
        Progress {
            bytes: written,
            total: self.total,
            fetched,
            fetch_total,
            rate,
            seconds_left,
            waiting_for: self.slowest(),
        }
    }

    /// Returns the bottleneck: the stage that has waited least for the others since the last sample.
    fn slowest(&mut self) -> Option<Stage> {
        let waited: Vec<u64> = self.meters.iter().map(|meter| meter.per_thread()).collect();
        let since_last = waited.iter().zip(&self.waited).map(|(now, before)| now - before);
        let slowest = self.meters.iter().zip(since_last).min_by_key(|(_, waited)| *waited);
        let stage = slowest.map(|(meter, _)| meter.stage);
        self.waited = waited;
        stage
    }
}

/// Returns the increase per second, 0 if the counter decreased because the source was fetched from its start again.
fn per_second(before: u64, now: u64, millis: u64) -> u64 {
    (now.saturating_sub(before) * 1000).checked_div(millis).unwrap_or(0)
}

/// Returns the time in seconds needed for the rest; none if there is no progress.
fn seconds_left(done: u64, total: u64, rate: u64) -> Option<u64> {
    match total.saturating_sub(done) {
        0 => Some(0),
        left => left.checked_div(rate).map(|seconds| seconds.max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stage_that_waits_least_is_the_one_waited_for() {
        let meters = [Meter::new(Stage::Fetch, 1), Meter::new(Stage::Decode, 1), Meter::new(Stage::Write, 2)];
        let counters = Counters::default();
        let meters: Vec<&Meter> = meters.iter().collect();
        let mut watch = Watch::new(&counters, &meters, None);
        meters[0].waited(Duration::from_millis(300));
        meters[1].waited(Duration::from_millis(300));
        meters[2].waited(Duration::from_millis(400));
        assert_eq!(watch.look(Instant::now()).waiting_for, Some(Stage::Write));
        meters[2].waited(Duration::from_millis(400));
        meters[1].waited(Duration::from_millis(300));
        assert_eq!(watch.look(Instant::now()).waiting_for, Some(Stage::Fetch));
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let counters = Counters::default();
        let mut watch = Watch::new(&counters, &[], Some(100));
        let start = Instant::now();
        for second in 0..20 {
            counters.written.store(if second < 10 { second * 1000 } else { 10_000 + second * 10 }, Relaxed);
            watch.look(start + Duration::from_secs(second));
        }
        assert_eq!(watch.look(start + Duration::from_secs(20)).rate, 8);
    }

    /// Checks the progress reported after two seconds in which this much was written and fetched.
    fn check(total: Option<u64>, fetch_total: Option<u64>, [written, fetched]: [u64; 2], expect: Option<u64>) {
        let counters = Counters::default();
        let mut watch = Watch::new(&counters, &[], total);
        let start = watch.samples[0].at;
        counters.set_fetch_total(fetch_total);
        counters.written.store(written, Relaxed);
        counters.fetched.store(fetched, Relaxed);
        let progress = watch.look(start + Duration::from_secs(2));
        let (known, left) = ((progress.total, progress.fetch_total), progress.seconds_left);
        assert_eq!((known, left), ((total, fetch_total), expect), "{progress:?}");
    }

    #[test]
    fn the_time_left_is_known_where_the_end_of_either_is() {
        check(Some(10_000), None, [2000, 300], Some(8));
        check(None, Some(1000), [2000, 300], Some(4));
        check(Some(10_000), Some(1000), [2000, 300], Some(8));
        check(None, None, [2000, 300], None);
        // At the end.
        check(Some(10_000), Some(1000), [10_000, 1000], Some(0));
        check(None, Some(1000), [9000, 1000], Some(0));
        check(None, Some(0), [0, 0], Some(0));
        // Nearly finished; more than was announced; no progress.
        check(Some(10_000), None, [9999, 0], Some(1));
        check(None, Some(1000), [9000, 1001], Some(0));
        check(Some(10_000), None, [0, 0], None);
        check(None, Some(1000), [0, 0], None);
    }

    #[test]
    fn a_source_that_is_started_over_has_no_time_left_until_it_moves_on() {
        let counters = Counters::default();
        let mut watch = Watch::new(&counters, &[], None);
        let start = watch.samples[0].at;
        counters.set_fetch_total(Some(1000));
        counters.fetched.store(900, Relaxed);
        assert_eq!(watch.look(start + Duration::from_secs(3)).seconds_left, Some(1));
        counters.fetched.store(100, Relaxed);
        assert_eq!(watch.look(start + Duration::from_secs(6)).seconds_left, None);
        counters.fetched.store(400, Relaxed);
        assert_eq!(watch.look(start + Duration::from_secs(9)).seconds_left, Some(6));
    }

    #[test]
    fn progress_is_due_twice_a_second_whatever_was_missed() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let asked = (0..3000).step_by(100).chain(9000..9010).chain([9500, 9999, 10_000]);
        let due: Vec<u64> = asked.filter(|at| pace.is_due(start + Duration::from_millis(*at))).collect();
        assert_eq!(due, [500, 1000, 1500, 2000, 2500, 9000, 9500, 10_000]);
    }
}
