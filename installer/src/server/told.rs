//! Logs a lasting state when it begins, and then once a minute.

use std::time::Duration;

use tokio::time::Instant;

/// Interval between repeats: a console opened later shows the state soon, and a machine that waits for days does not
/// fill its log.
const AGAIN: Duration = Duration::from_secs(60);

/// Hint on the console of a waiting machine that has partitions on its disk.
pub const HAS_SYSTEM: &str = "a disk of this machine has partitions: to boot an installed system instead of \
                              slipway, remove the boot medium, or put the disk first in the firmware's boot order (in \
                              QEMU, give the disk the first bootindex)";

/// The last logged sentence and its time.
#[derive(Debug, Default)]
pub struct Told(Option<(String, Instant)>);

impl Told {
    /// Whether to log this sentence now. If so, it counts as logged.
    pub fn is_due(&mut self, sentence: &str, now: Instant) -> bool {
        let said = |(last, at): &(String, Instant)| last == sentence && now < *at + AGAIN;
        if self.0.as_ref().is_some_and(said) {
            return false;
        }
        self.0 = Some((sentence.to_owned(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_a_minute_and_another_thing_at_once() {
        let (mut told, start) = (Told::default(), Instant::now());
        let mut check = |seconds, sentence, expect| {
            assert_eq!(
                told.is_due(sentence, start + Duration::from_secs(seconds)),
                expect,
                "{sentence} at {seconds} s"
            );
        };
        check(0, "wrong CA", true);
        check(59, "wrong CA", false);
        check(60, "wrong CA", true);
        check(61, "no answer", true);
        check(62, "wrong CA", true);
        check(121, "wrong CA", false);
    }
}
