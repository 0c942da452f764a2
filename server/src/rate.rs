//! Rate limits for nodes, runs and bearers of tokens. Each server counts for itself, from zero at its start: a count in
//! the database would need the write lock for each refused request.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;

const WINDOW: Duration = Duration::from_secs(60);
/// Number of callers at which those that were quiet for a minute are forgotten.
const CROWD: usize = 1024;

/// A limit for requests of one kind: a number for each caller in any minute. The server knows all callers, so their
/// number is bounded, unlike that of requests.
#[derive(Debug)]
pub struct Rate {
    what: &'static str,
    most: usize,
    clock: fn() -> Instant,
    taken: Mutex<HashMap<String, VecDeque<Instant>>>,
}

impl Rate {
    /// Allows at most `most` in a minute of this clock. `what` names the requests and their caller in the error.
    pub fn new(what: &'static str, most: usize, clock: fn() -> Instant) -> Self {
        Self { what, most, clock, taken: Mutex::default() }
    }

    /// Counts a request of a caller, or refuses it.
    pub fn take(&self, caller: &str) -> Result<(), Error> {
        self.take_at(caller, (self.clock)())
    }

    fn take_at(&self, caller: &str, now: Instant) -> Result<(), Error> {
        let is_past = |at: &Instant| now.saturating_duration_since(*at) >= WINDOW;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.len() >= CROWD {
            taken.retain(|_, times| times.back().is_some_and(|at| !is_past(at)));
        }
        let times = taken.entry(caller.to_owned()).or_default();
        while times.front().is_some_and(is_past) {
            times.pop_front();
        }
        match times.front() {
            Some(first) if times.len() >= self.most => {
                let wait = WINDOW.saturating_sub(now.saturating_duration_since(*first));
                // Rounded up: a caller that waits as told must not be refused again.
                Err(Error::TooOften { what: self.what, most: self.most, retry_after: wait.as_secs() + 1 })
            }
            _ => {
                times.push_back(now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_so_many_in_any_minute() {
        let (rate, start) = (Rate::new("reports", 2, Instant::now), Instant::now());
        let take = |node: &str, second: u64| match rate.take_at(node, start + Duration::from_secs(second)) {
            Ok(()) => None,
            Err(Error::TooOften { retry_after, .. }) => Some(retry_after),
            Err(other) => panic!("{other}"),
        };
        let table = [
            ("a", 0, None),
            ("a", 40, None),
            ("a", 59, Some(2)),
            ("b", 59, None),
            ("a", 60, None),
            ("a", 61, Some(40)),
            ("a", 100, None),
            ("a", 500, None),
        ];
        for (node, second, expect) in table {
            assert_eq!(take(node, second), expect, "{node} at {second}");
        }
    }

    #[test]
    fn quiet_nodes_are_forgotten() {
        let (rate, start) = (Rate::new("reports", 2, Instant::now), Instant::now());
        let crowd = |second: u64| {
            for node in 0..CROWD {
                rate.take_at(&format!("{second}-{node}"), start + Duration::from_secs(second)).expect("the first");
            }
            rate.taken.lock().expect("not poisoned").len()
        };
        assert_eq!(crowd(0), CROWD);
        assert_eq!(crowd(60), CROWD);
    }
}
