//! How far the stages are, and which one the others wait for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use slipway_protocol::{Progress, Stage};

/// Seconds the rate is taken over.
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// Stands for "not known" in an atomic.
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

    /// Size of the source in bytes, if it is known.
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

/// Turns counters and meters into [`Progress`], one look at a time.
pub(crate) struct Watch<'a> {
    counters: &'a Counters,
    meters: &'a [&'a Meter],
    total: Option<u64>,
    samples: VecDeque<(Instant, u64)>,
    waited: Vec<u64>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(counters: &'a Counters, meters: &'a [&'a Meter], total: Option<u64>) -> Self {
        Self { counters, meters, total, samples: VecDeque::from([(Instant::now(), 0)]), waited: vec![0; meters.len()] }
    }

    /// What to report now.
    pub(crate) fn look(&mut self, now: Instant) -> Progress {
        let bytes = self.counters.written.load(Relaxed);
        self.samples.push_back((now, bytes));
        while self.samples.len() > 2 && now - self.samples[0].0 > RATE_WINDOW {
            self.samples.pop_front();
        }
        let (since, from) = self.samples[0];
        let millis = u64::try_from((now - since).as_millis()).unwrap_or(u64::MAX);
        Progress {
            bytes,
            total: self.total,
            fetched: self.counters.fetched.load(Relaxed),
            fetch_total: self.counters.fetch_total(),
            rate: ((bytes - from) * 1000).checked_div(millis).unwrap_or(0),
            waiting_for: self.slowest(),
        }
    }

    /// The stage that waited least for the others since the last look is the one they wait for.
    fn slowest(&mut self) -> Option<Stage> {
        let waited: Vec<u64> = self.meters.iter().map(|meter| meter.per_thread()).collect();
        let since_last = waited.iter().zip(&self.waited).map(|(now, before)| now - before);
        let slowest = self.meters.iter().zip(since_last).min_by_key(|(_, waited)| *waited);
        let stage = slowest.map(|(meter, _)| meter.stage);
        self.waited = waited;
        stage
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
}
