//! Waiting time between requests.

use std::time::Duration;

/// First wait, and the longest.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(15);

/// Waits that double. Each is shortened by up to half at random, so that a thousand nodes do not ask at the same moment
/// when the server comes back.
#[derive(Debug)]
pub struct Backoff {
    wait: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { wait: FIRST }
    }
}

impl Backoff {
    /// The next wait.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.wait.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.wait = (self.wait * 2).min(LONGEST);
        wait
    }

    /// Starts over after a success.
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
