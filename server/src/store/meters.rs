//! What this process measures of its use of the database.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

/// Upper bounds of the buckets for commits, in seconds: from a fast disk to one that is about to fail.
const COMMIT_SECONDS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0];

/// Meters of one process. Copies are the same meters.
#[derive(Clone, Debug)]
pub struct Meters {
    /// Seconds from the order to commit until the database has committed.
    pub commit_seconds: Histogram,
    /// Commits that failed.
    pub failed_commits: Counter,
    /// Writers that wait for their turn or for the database's lock.
    pub waiting: Gauge,
    committed: Arc<Mutex<Option<Instant>>>,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            commit_seconds: Histogram::new(COMMIT_SECONDS),
            failed_commits: Counter::default(),
            waiting: Gauge::default(),
            committed: Arc::default(),
        }
    }
}

impl Meters {
    /// Counts a commit that began at this time.
    pub(super) fn committed(&self, began: Instant, is_done: bool) {
        if is_done {
            self.commit_seconds.observe(began.elapsed().as_secs_f64());
        } else {
            self.failed_commits.inc();
        }
        *self.committed.lock().unwrap_or_else(PoisonError::into_inner) = is_done.then(Instant::now);
    }

    /// Whether the newest commit succeeded and is at most this old.
    pub(super) fn has_committed_within(&self, age: Duration) -> bool {
        let committed = *self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        committed.is_some_and(|at| at.elapsed() <= age)
    }
}
