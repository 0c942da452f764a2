//! First stage: receives the source, resuming at the byte where a connection broke off.

use std::io::{self, Read};
use std::sync::atomic::Ordering::Relaxed;

use slipway_protocol::workflow;

use super::Halt;
use super::buffers::Queue;
use super::progress::{Counters, Meter};
use super::resume::{Position, Resume};
use crate::disk::Buffer;
use crate::error::{Error, FetchError, SourceError};
use crate::fetch::oci::Registry;
use crate::fetch::{self, retry};
use crate::machine::{Cancel, Machine, Request, Response};
use crate::text;

/// Where the source is, and what the stage works with.
pub(super) struct Fetch<'a, 'b> {
    pub(super) machine: &'a dyn Machine,
    pub(super) resume: Resume<'a>,
    /// Where the source is an artifact, the registry of each place, which may want to see a login; else none.
    pub(super) registries: &'a mut [Registry<'b>],
    pub(super) ca: Option<&'a str>,
    /// An end that comes too early will be found out, be it by what is known of the raw image.
    pub(super) whole: bool,
    pub(super) counters: &'a Counters,
    pub(super) meter: &'a Meter,
    pub(super) stop: &'a Cancel,
}

impl Fetch<'_, '_> {
    /// Sends the whole source, in full buffers except for the last.
    pub(super) fn run(mut self, pool: &Queue, out: &Queue) -> Result<(), Halt> {
        let mut at = Position::default();
        let mut buffer = pool.take(self.meter)?;
        // Where a token was renewed: it is not renewed twice for the same byte of the same place.
        let mut logged_in = None;
        self.resume.mirrors.begin();
        loop {
            let error = match self.attempt(&mut at, &mut buffer, pool, out) {
                Ok(()) => break,
                Err(Halt::Failed(Error::Source(SourceError::Fetch { source, .. }))) => source,
                Err(other) => return Err(other),
            };
            if self.stop.is_set() {
                return Err(Halt::Stopped);
            }
            let place = self.resume.mirrors.index();
            let is_only = self.registries.len() == 1;
            if let (Some(registry), Some(challenge)) = (self.registries.get_mut(place), error.challenge())
                && logged_in != Some((place, at.offset))
            {
                logged_in = Some((place, at.offset));
                let patience = retry::patience_with(self.machine, is_only);
                match registry.log_in(challenge, patience, self.machine) {
                    Ok(()) => continue,
                    Err(error) if is_only => return Err(Halt::Failed(error)),
                    Err(error) => (self.resume.note)(text::chain(&error)),
                }
            }
            let pause = self.resume.go_on(&mut at, error)?;
            if !retry::sleep(pause, self.stop) {
                return Err(Halt::Stopped);
            }
        }
        out.send(buffer);
        out.close();
        Ok(())
    }

    /// One connection: from the position to the end or the first failure.
    fn attempt(&mut self, at: &mut Position, buffer: &mut Buffer, pool: &Queue, out: &Queue) -> Result<(), Halt> {
        let url = self.resume.mirrors.url().to_owned();
        let failed = |source| Halt::Failed(Error::Source(SourceError::Fetch { url: fetch::shown(&url), source }));
        let is_local = workflow::local_path(&url).is_some();
        let broken = |source| if is_local { FetchError::ReadFile { source } } else { FetchError::Body { source } };
        let (etag, stall) = (at.etag.as_deref(), self.resume.mirrors.stall());
        let registry = self.registries.get(self.resume.mirrors.index());
        let authorization = registry.and_then(Registry::authorization);
        let request = Request { offset: at.offset, etag, stall, authorization, ..Request::new(&url, self.ca) };
        self.resume.mirrors.attempts += 1;
        let mut response = self.machine.fetch(&request, self.stop).map_err(failed)?;
        self.begin(at, &response).map_err(failed)?;
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
            self.resume.mirrors.received(n as u64);
            if let Some(total) = at.total.filter(|total| at.offset > *total) {
                let reason = format!("more came than the {total} bytes announced");
                return Err(failed(FetchError::NotResumable { offset: total, reason }));
            }
            self.counters.fetched.store(at.offset, Relaxed);
        }
        match at.total {
            Some(total) if at.offset < total && is_local => Err(failed(broken(io::ErrorKind::UnexpectedEof.into()))),
            Some(total) if at.offset < total => Err(failed(FetchError::Short { offset: at.offset, total })),
            _ => Ok(()),
        }
    }

    /// Takes note of what an answer says of the source, if it goes with what is known.
    fn begin(&self, at: &mut Position, response: &Response) -> Result<(), FetchError> {
        let goes_on = at.offset > 0;
        if let Some(total) = at.total.filter(|total| goes_on && response.total != Some(*total)) {
            let now = response.total.map_or("not said".to_owned(), |total| total.to_string());
            let reason = format!("the size was {total} and is now {now}");
            return Err(FetchError::NotResumable { offset: at.offset, reason });
        }
        if response.total.is_none() && !response.is_delimited && !self.whole {
            return Err(FetchError::Endless);
        }
        at.total = response.total;
        // The answer to a request for the rest need not repeat the tag.
        at.etag = response.etag.clone().or(at.etag.take().filter(|_| goes_on));
        self.counters.set_fetch_total(at.total);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Refusal;
    use crate::fetch::mirrors::Mirrors;
    use crate::machine::Candidate;
    use reqwest::StatusCode;
    use slipway_protocol::Stage;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

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

    fn refused(status: StatusCode) -> FetchError {
        FetchError::Status { status, refusal: Refusal::default() }
    }

    fn check(error: fn() -> FetchError, expect_asked: u32, expect: &str) {
        let machine = Failing { asked: AtomicU32::new(0), error, cancel: Cancel::new() };
        let (counters, meter, stop) = (Counters::default(), Meter::new(Stage::Fetch, 1), Cancel::new());
        let mut mirrors = Mirrors::new("https://s.example/image", &[]);
        let fetch = Fetch {
            machine: &machine,
            resume: Resume {
                mirrors: &mut mirrors,
                verified: false,
                note: Box::new(|_| {}),
                pause: |_, _| Duration::ZERO,
                patience: Duration::ZERO,
            },
            registries: &mut [],
            ca: None,
            whole: false,
            counters: &counters,
            meter: &meter,
            stop: &stop,
        };
        match fetch.run(&Queue::pool(&stop, 1, 16), &Queue::new(&stop)) {
            Err(Halt::Failed(error)) => assert_eq!(error.to_string(), expect),
            Err(Halt::Stopped) => panic!("the stage stopped without an error"),
            Ok(()) => panic!("the stage succeeded"),
        }
        assert_eq!(machine.asked.load(Relaxed), expect_asked);
    }

    #[test]
    fn a_fault_that_may_pass_is_tried_again_and_others_are_not() {
        let dropped = || FetchError::Body { source: io::ErrorKind::ConnectionReset.into() };
        check(dropped, 2, "fetching https://s.example/image: stopped at byte 0 after 2 failures in a row in 0 s");
        check(
            || refused(StatusCode::SERVICE_UNAVAILABLE),
            2,
            "fetching https://s.example/image: stopped at byte 0 after 2 failures in a row in 0 s",
        );
        check(|| refused(StatusCode::NOT_FOUND), 1, "fetching https://s.example/image");
    }
}
