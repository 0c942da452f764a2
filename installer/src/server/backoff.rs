//! Waiting times between repeated requests.

use std::time::Duration;

use slipway_actions::back_off;

/// The first wait and the longest wait.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(15);

/// Waits that double. Part of each is random, so that a thousand nodes do not ask at the same moment when the server
/// comes back.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Counts a failure, and returns the next wait.
    pub fn next_wait(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        back_off(self.failures, FIRST, LONGEST)
    }

    /// Starts again with the shortest wait after a success.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..20).map(|_| backoff.next_wait()).collect();
        assert!(waits[0] <= FIRST && waits[0] >= FIRST / 2);
        assert!(waits[19] <= LONGEST && waits[19] >= LONGEST / 2);
        backoff.reset();
        assert!(backoff.next_wait() <= FIRST);
    }
}
