//! Notices that the clock of this host was set, by comparing it with one that nobody sets.

use std::time::{Duration, Instant};

use crate::base::time::{Millis, now};

/// Milliseconds by which the clocks may differ between two looks without the clock being set. Services that keep it
/// right change its speed by less than a thousandth, and what goes by it here is counted in tens of seconds.
pub const STEP: Millis = 5000;
/// Time that reading both clocks may take. If this process was held up between them, they are read again.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    steady: Instant,
    wall: Millis,
}

impl Clocks {
    /// Reads both clocks.
    pub fn read() -> Self {
        loop {
            let (steady, wall) = (Instant::now(), now());
            if steady.elapsed() < AT_ONCE {
                return Self { steady, wall };
            }
        }
    }

    /// Reads both clocks again. Returns by how many milliseconds the clock of this host was set since the last look,
    /// forward if positive; `None` if it was not. A host that was suspended looks the same as a clock set forward.
    pub fn look(&mut self) -> Option<i64> {
        let before = std::mem::replace(self, Self::read());
        set_by(before, *self)
    }

    /// The time of the clock of this host at the last look.
    pub fn wall(&self) -> Millis {
        self.wall
    }
}

fn set_by(before: Clocks, after: Clocks) -> Option<i64> {
    let passed = i64::try_from(after.steady.duration_since(before.steady).as_millis()).unwrap_or(i64::MAX);
    let shown = after.wall.cast_signed().saturating_sub(before.wall.cast_signed());
    Some(shown.saturating_sub(passed)).filter(|by| by.unsigned_abs() >= STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_is_noticed_and_one_that_is_adjusted_is_not() {
        const HOUR: i64 = 60 * 60 * 1000;
        let before = Clocks { steady: Instant::now(), wall: 10 * HOUR.cast_unsigned() };
        let check = |passed: i64, shown: i64, expect: Option<i64>| {
            let steady = before.steady + Duration::from_millis(passed.cast_unsigned());
            let after = Clocks { steady, wall: before.wall.saturating_add_signed(shown) };
            assert_eq!(set_by(before, after), expect, "{passed} {shown}");
        };
        check(0, 0, None);
        check(1000, 1900, None);
        // A server that was held up, with its clock, for an hour.
        check(HOUR, HOUR - 800, None);
        check(1000, 3 * HOUR + 1000, Some(3 * HOUR));
        check(1000, 1000 - 3 * HOUR, Some(-3 * HOUR));
        check(1000, -10 * HOUR, Some(-10 * HOUR - 1000));
        check(2 * HOUR, -HOUR, Some(-3 * HOUR));
    }
}
