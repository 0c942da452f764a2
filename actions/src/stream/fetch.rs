//! First stage: receives the source, resuming at the byte where a connection broke off.

use std::io::{self, Read};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::Halt;
use super::buffers::{Buffer, Queue};
use super::progress::{Counters, Meter};
use crate::error::Error;
use crate::fetch::retry::{self, MAX_FAILURES};
use crate::fetch::{self, FetchError, Request};
use crate::machine::{Cancel, Machine};

/// Where the source is, and what the stage works with.
pub(super) struct Fetch<'a> {
    pub(super) machine: &'a dyn Machine,
    pub(super) url: &'a str,
    pub(super) ca: Option<&'a str>,
    /// A digest of the whole stream will be checked. Then a source without an entity tag may be resumed too.
    pub(super) verified: bool,
    pub(super) counters: &'a Counters,
    pub(super) meter: &'a Meter,
    pub(super) stop: &'a Cancel,
    /// Says what is worth telling the operator.
    pub(super) note: &'a dyn Fn(String),
    /// How long to wait before try number n, from 1.
    pub(super) pause: fn(u32) -> Duration,
}

/// How far the stage has come.
#[derive(Default)]
struct Position {
    offset: u64,
    total: Option<u64>,
    etag: Option<String>,
}

impl Fetch<'_> {
    /// Sends the whole source, in full buffers except for the last.
    pub(super) fn run(&self, pool: &Queue, out: &Queue) -> Result<(), Halt> {
        let mut at = Position::default();
        let mut buffer = pool.take(self.meter)?;
        let mut failures = 0;
        loop {
            let before = at.offset;
            let error = match self.attempt(&mut at, &mut buffer, pool, out) {
                Ok(()) => break,
                Err(Halt::Failed(Error::Fetch { source, .. })) => source,
                Err(other) => return Err(other),
            };
            if self.stop.is_set() {
                return Err(Halt::Stopped);
            }
            failures = if at.offset > before { 1 } else { failures + 1 };
            self.resumable(&at, error, failures)?;
            if !retry::sleep((self.pause)(failures), self.stop) {
                return Err(Halt::Stopped);
            }
        }
        out.send(buffer);
        out.close();
        Ok(())
    }

    /// Whether to go on after a failure; if so, the operator is told of the first of a row.
    fn resumable(&self, at: &Position, error: FetchError, failures: u32) -> Result<(), Halt> {
        let failed = |source| Err(Halt::Failed(Error::Fetch { url: fetch::shown(self.url), source }));
        if !error.may_pass() || matches!(error, FetchError::NotResumable { .. }) {
            return failed(error);
        }
        let offset = at.offset;
        if offset > 0 && at.etag.is_none() && !self.verified {
            let reason = format!("{error}, and the source has neither a strong entity tag nor a digest to resume by");
            return failed(FetchError::NotResumable { offset, reason });
        }
        if failures >= MAX_FAILURES {
            let url = fetch::shown(self.url);
            return Err(Halt::Failed(Error::FetchGaveUp { url, offset, failures, source: error }));
        }
        if failures == 1 {
            let why = slipway_protocol::Failure::of(&error);
            let causes = why.causes.last().map(|cause| format!(": {cause}")).unwrap_or_default();
            (self.note)(format!("fetching again from byte {offset}, because {}{causes}", why.reason));
        }
        Ok(())
    }

    /// One connection: from the position to the end or the first failure.
    fn attempt(&self, at: &mut Position, buffer: &mut Buffer, pool: &Queue, out: &Queue) -> Result<(), Halt> {
        let failed = |source| Halt::Failed(Error::Fetch { url: fetch::shown(self.url), source });
        let is_local = fetch::local_path(self.url).is_some();
        let broken = |source| if is_local { FetchError::ReadFile { source } } else { FetchError::Body { source } };
        let request = Request { offset: at.offset, etag: at.etag.as_deref(), ..Request::new(self.url, self.ca) };
        let mut response = self.machine.fetch(&request, self.stop).map_err(failed)?;
        if at.offset == 0 {
            (at.total, at.etag) = (response.total, response.etag);
            self.counters.set_fetch_total(at.total);
        } else {
            if response.total != at.total {
                let reason = format!("the size was {:?} and is now {:?}", at.total, response.total);
                return Err(failed(FetchError::NotResumable { offset: at.offset, reason }));
            }
            self.counters.resumes.fetch_add(1, Relaxed);
        }
        loop {
            if buffer.spare().is_empty() {
                out.send(std::mem::replace(buffer, pool.take(self.meter)?));
                buffer.place(at.offset);
            }
            let n = response.body.read(buffer.spare()).map_err(|source| failed(broken(source)))?;
            if n == 0 {
                break;
            }
            buffer.advance(n);
            at.offset += n as u64;
            self.counters.fetched.store(at.offset, Relaxed);
        }
        match at.total {
            Some(total) if at.offset < total && is_local => Err(failed(broken(io::ErrorKind::UnexpectedEof.into()))),
            Some(total) if at.offset < total => Err(failed(FetchError::Short { offset: at.offset, total })),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Candidate, Response};
    use slipway_protocol::Stage;
    use std::sync::atomic::AtomicU32;

    /// A source that fails as told, and counts how often it is asked.
    struct Failing {
        asked: AtomicU32,
        error: fn() -> FetchError,
        cancel: Cancel,
    }

    impl Machine for Failing {
        fn disks(&self) -> Result<Vec<Candidate>, Error> {
            Ok(Vec::new())
        }

        fn fetch(&self, _: &Request<'_>, _: &Cancel) -> Result<Response, FetchError> {
            self.asked.fetch_add(1, Relaxed);
            Err((self.error)())
        }

        fn cancel(&self) -> &Cancel {
            &self.cancel
        }
    }

    fn check(error: fn() -> FetchError, expect_asked: u32, expect: &str) {
        let machine = Failing { asked: AtomicU32::new(0), error, cancel: Cancel::new() };
        let (counters, meter, stop) = (Counters::default(), Meter::new(Stage::Fetch, 1), Cancel::new());
        let fetch = Fetch {
            machine: &machine,
            url: "https://s.example/image",
            ca: None,
            verified: false,
            counters: &counters,
            meter: &meter,
            stop: &stop,
            note: &|_| {},
            pause: |_| Duration::ZERO,
        };
        match fetch.run(&Queue::pool(&stop, 1, 16), &Queue::new(&stop)) {
            Err(Halt::Failed(error)) => assert_eq!(error.to_string(), expect),
            Err(Halt::Stopped) => panic!("the stage stopped without an error"),
            Ok(()) => panic!("the stage succeeded"),
        }
        assert_eq!(machine.asked.load(Relaxed), expect_asked);
    }

    #[test]
    fn a_fault_that_may_pass_is_tried_ten_times_and_others_once() {
        let dropped = || FetchError::Body { source: io::ErrorKind::ConnectionReset.into() };
        check(dropped, 10, "fetching https://s.example/image: stopped at byte 0 after 10 failures in a row");
        let unavailable = || FetchError::Status { status: reqwest::StatusCode::SERVICE_UNAVAILABLE, message: None };
        check(unavailable, 10, "fetching https://s.example/image: stopped at byte 0 after 10 failures in a row");
        let missing = || FetchError::Status { status: reqwest::StatusCode::NOT_FOUND, message: None };
        check(missing, 1, "fetching https://s.example/image");
    }
}
