//! What follows when a source fails while it is read: the same place again after a pause, another one, or the end.

use std::time::Duration;

use slipway_protocol::Failure;

use super::Halt;
use crate::error::{Error, FetchError, SourceError};
use crate::fetch::mirrors::{Mirrors, Then};
use crate::fetch::{self, retry};

/// Where in a source the reading is.
#[derive(Default)]
pub(super) struct Position {
    /// Next byte wanted.
    pub(super) offset: u64,
    /// Size in bytes, once it is known.
    pub(super) total: Option<u64>,
    /// Of the place that is asked.
    pub(super) etag: Option<String>,
}

/// What decides how the reading of a source goes on.
pub(super) struct Resume<'a> {
    pub(super) mirrors: &'a mut Mirrors,
    /// All that is read will be checked. Then a source without an entity tag may be resumed too, also from another place.
    pub(super) verified: bool,
    /// How long nothing may come before all places are given up.
    pub(super) patience: Duration,
    /// Says what is worth telling the operator.
    pub(super) note: Box<dyn Fn(String) + Send + 'a>,
    /// How long to wait after an error before try number n, from 1.
    pub(super) pause: fn(&FetchError, u32) -> Duration,
}

impl Resume<'_> {
    /// Decides what follows a failure: the end, or another try after a pause, perhaps at another place. The operator is told of
    /// the first failure of a row, and of every change of the place.
    pub(super) fn go_on(&mut self, at: &mut Position, error: FetchError) -> Result<Duration, Halt> {
        let (url, offset) = (fetch::shown(self.mirrors.url()), at.offset);
        let failed = |source| Err(Halt::Failed(Error::Source(SourceError::Fetch { url: url.clone(), source })));
        if matches!(error, FetchError::NotResumable { .. }) {
            self.mirrors.not_resumable();
            return failed(error);
        }
        let then = self.mirrors.failed(&error, self.patience);
        let failures = self.mirrors.outage().failures();
        match then {
            Then::GiveUp => return Err(Halt::Failed(self.given_up(url, offset, error))),
            Then::Other => {
                let other = fetch::shown(self.mirrors.url());
                (self.note)(format!("going on at {other} from byte {offset}, because {url} failed: {}", why(&error)));
            }
            Then::Same if failures == 1 => {
                (self.note)(format!("fetching again from byte {offset}, because {}", why(&error)));
            }
            Then::Same => {}
        }
        if let Some(missing) = self.not_resumable(at, then).filter(|_| self.mirrors.has_begun()) {
            let reason = format!("{error}, and {missing}");
            return failed(FetchError::NotResumable { offset, reason });
        }
        if then == Then::Other {
            at.etag = None;
            // What one place asks for is not for the next.
            return Ok(match self.mirrors.was_each_asked() {
                true => (self.pause)(&error, failures).min(retry::LONGEST_PAUSE),
                false => Duration::ZERO,
            });
        }
        Ok((self.pause)(&error, failures))
    }

    /// What is missing to go on at the byte. The entity tags of two servers say nothing of each other.
    fn not_resumable(&self, at: &Position, then: Then) -> Option<&'static str> {
        match then {
            Then::Other if !self.verified || at.total.is_none() => Some(
                "another place can be gone on with only where a digest is given and the size of the source is known",
            ),
            Then::Other if self.mirrors.is_mixing_over() => Some("one of the places has something else"),
            Then::Same if at.etag.is_none() && !self.verified => {
                Some("the source has neither a strong entity tag nor a digest to resume by")
            }
            _ => None,
        }
    }

    fn given_up(&self, url: String, offset: u64, error: FetchError) -> Error {
        let (failed, outage) = (self.mirrors.told(), self.mirrors.outage());
        let (failures, seconds) = (outage.failures(), outage.lasted().as_secs());
        if !failed.is_empty() {
            return Error::Source(SourceError::NoMirror { failed, is_transient: self.mirrors.is_transient() });
        }
        match error.is_transient() {
            true => Error::Source(SourceError::FetchGaveUp { url, offset, failures, seconds, source: error }),
            false => Error::Source(SourceError::Fetch { url, source: error }),
        }
    }
}

/// An error and the cause at its bottom.
fn why(error: &FetchError) -> String {
    let why = Failure::of(error);
    let cause = why.causes.last().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{}{cause}", why.reason)
}
