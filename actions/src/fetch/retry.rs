//! Retries: when, and how often.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant, SystemTime};

use crate::error::{Error, FetchError, SourceError};
use crate::machine::{Cancel, Machine};
use crate::report::Report;

/// How long one mirror may fail if there is another one.
const SHORT_PATIENCE: Duration = Duration::from_secs(20);
/// First pause before another try. It is doubled with each failure in a row, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Longest pause that a server may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(120);
/// Maximum number of times that a source that cannot be resumed is fetched from its start again.
const RESTARTS: u32 = 3;
const STOP_CHECK: Duration = Duration::from_millis(50);

/// Returns how long one mirror may fail: shorter if there are other mirrors.
pub(crate) fn patience_with(machine: &dyn Machine, is_only: bool) -> Duration {
    let patience = machine.setup().patience;
    if is_only { patience } else { patience.min(SHORT_PATIENCE) }
}

/// Failures in a row, with no more than a few bytes received between them.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    failures: u32,
    began: Option<Instant>,
}

impl Outage {
    /// Records a failure.
    pub(crate) fn failed(&mut self) {
        self.failures += 1;
        self.began.get_or_insert_with(Instant::now);
    }

    /// Number of failures.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Time since the first failure.
    pub(crate) fn lasted(&self) -> Duration {
        self.began.map_or(Duration::ZERO, |began| began.elapsed())
    }
}

/// Returns the pause after this many failures in a row, which doubles from `first` up to `longest`. Up to half of the
/// pause is random, so that a thousand machines do not retry at the same time.
pub fn back_off(failures: u32, first: Duration, longest: Duration) -> Duration {
    let full = first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest);
    let random = RandomState::new().hash_one(failures) % 1000;
    full / 2 + full / 2 * u32::try_from(random).unwrap_or_default() / 1000
}

/// Tells the operator after the first failure of a series until when slipway tries again, by this machine's clock.
pub(crate) fn outlook(patience: Duration, machine: &dyn Machine) -> String {
    // An HTTP date is "Fri, 31 Dec 1999 23:59:59 GMT" (RFC 9110, 5.6.7).
    let date = httpdate::fmt_http_date(SystemTime::now() + patience);
    let time = date.split(' ').nth(4).unwrap_or_default();
    let long = match patience.as_secs() {
        seconds if seconds >= 60 && seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    };
    let end = if machine.setup().is_operating_system { "" } else { "; Ctrl-C ends it" };
    format!("trying again until {time} UTC ({long}){end}")
}

/// Returns the pause before the next try, if the server asks for none.
pub(crate) fn usual_pause(failures: u32) -> Duration {
    back_off(failures, FIRST_PAUSE, LONGEST_PAUSE)
}

/// Returns the pause before the next try: as long as the server asks for, up to a limit, but never shorter than the
/// usual back-off.
pub(crate) fn pause(error: &FetchError, failures: u32) -> Duration {
    usual_pause(failures).max(error.retry_after().unwrap_or_default().min(LONGEST_WAIT))
}

/// Fetches a source. If it cannot be resumed, fetches it from its start again.
pub(crate) fn starting_over<T>(
    report: &mut dyn FnMut(Report),
    mut fetch: impl FnMut(&mut dyn FnMut(Report)) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut restarts = 0;
    loop {
        match fetch(report) {
            Err(Error::Source(SourceError::Fetch { source: cause @ FetchError::NotResumable { .. }, .. }))
                if restarts < RESTARTS =>
            {
                restarts += 1;
                report(Report::Note(format!("starting over: {cause}")));
            }
            other => return other,
        }
    }
}

/// Waits for `pause`. Returns false if a stop was requested.
pub(crate) fn sleep(pause: Duration, stop: &Cancel) -> bool {
    let until = Instant::now() + pause;
    while Instant::now() < until {
        if stop.is_set() {
            return false;
        }
        std::thread::sleep(STOP_CHECK.min(pause));
    }
    !stop.is_set()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Refusal;
    use reqwest::StatusCode;

    #[test]
    fn pauses_grow_and_stay_bounded() {
        for (failures, at_least, at_most) in [(1, 125, 250), (2, 250, 500), (7, 5000, 10_000), (100, 5000, 10_000)] {
            let pause = usual_pause(failures).as_millis();
            assert!((at_least..=at_most).contains(&pause), "{failures} failures gave {pause} ms");
        }
    }

    #[test]
    fn a_server_is_granted_the_pause_it_asks_for_within_bounds() {
        let busy = |after: Option<u64>| FetchError::Status {
            status: StatusCode::TOO_MANY_REQUESTS,
            refusal: Refusal { retry_after: after.map(Duration::from_secs), ..Refusal::default() },
        };
        assert_eq!(pause(&busy(Some(30)), 1).as_secs(), 30);
        assert_eq!(pause(&busy(Some(86_400)), 1).as_secs(), 120);
        assert!(pause(&busy(Some(0)), 1).as_millis() >= 125);
        assert!(pause(&busy(None), 1).as_millis() <= 250);
    }
}
