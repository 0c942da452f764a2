//! A download over as many connections and from as many mirrors as needed.

use std::io::{self, Read};
use std::time::Duration;

use slipway_formats::http::{Coded, coded};
use slipway_protocol::workflow::Location;

use super::mirrors::{Mirrors, Then};
use super::oci::Registry;
use super::{retry, shown, why};
use crate::error::{Error, FetchError, SourceError};
use crate::machine::{Cancel, Machine, Request, Response};
use crate::text;

/// Maximum gap in bytes between two reads that is skipped on the same connection. For a longer gap a new connection is
/// cheaper.
const MAX_SKIP: u64 = 1 << 20;

/// Where a download comes from, and what is known about its checks.
pub(crate) struct From<'a, 'b> {
    pub(crate) mirrors: &'a mut Mirrors,
    /// The registry of each mirror, which may require a login; none if the source is not an artifact.
    pub(crate) registries: &'a mut [Registry<'b>],
    pub(crate) ca: Option<&'a str>,
    /// Whether everything that is read will be checked. Then a source can be resumed without an entity tag, also from
    /// another mirror.
    pub(crate) verified: bool,
    /// Whether the bytes are used as they come. Then nothing may have compressed them on the way.
    pub(crate) plain: bool,
    /// Whether an early end will be noticed, for example because the size of the raw image is known.
    pub(crate) whole: bool,
}

/// A download in progress.
pub(crate) struct Download<'a, 'b> {
    from: From<'a, 'b>,
    machine: &'a dyn Machine,
    stop: &'a Cancel,
    /// Reports a note to the operator.
    note: Box<dyn Fn(String) + Send + 'a>,
    /// Offset of the next byte wanted.
    offset: u64,
    /// Size in bytes, once known.
    total: Option<u64>,
    /// The size that `size` returned to the caller; none before that.
    told: Option<u64>,
    /// Entity tag at the current mirror.
    etag: Option<String>,
    /// Offset at which the last response began.
    began: u64,
    /// An open response, and the offset of its next byte.
    open: Option<(Response, u64)>,
    /// Mirror and offset for which a token was last renewed, so that it is not renewed twice for the same byte.
    logged_in: Option<(usize, u64)>,
}

impl<'a, 'b> Download<'a, 'b> {
    /// Prepares a download without starting it. `stop` ends it early.
    pub(crate) fn new(
        from: From<'a, 'b>,
        machine: &'a dyn Machine,
        stop: &'a Cancel,
        note: Box<dyn Fn(String) + Send + 'a>,
    ) -> Self {
        from.mirrors.begin();
        let (offset, began, total, told, etag, open, logged_in) = (0, 0, None, None, None, None, None);
        Self { from, machine, stop, note, offset, began, total, told, etag, open, logged_in }
    }

    /// Size of the source in bytes, if known.
    pub(crate) fn total(&self) -> Option<u64> {
        self.total
    }

    /// Offset of the next byte.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next bytes into the buffer and returns their number; 0 at the end of the source.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        loop {
            match self.try_read(buffer) {
                Ok(n) => return Ok(n),
                Err(error) => self.recover(error)?,
            }
        }
    }

    /// Requests the size of the source in bytes. From then on another size is an error.
    pub(crate) fn size(&mut self) -> Result<u64, Error> {
        self.offset = 0;
        loop {
            match self.try_size() {
                Ok(size) => return Ok(size),
                Err(error) => self.recover(error)?,
            }
            self.from.mirrors.attempts += 1;
        }
    }

    /// Fills a buffer from an offset of the source.
    pub(crate) fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.offset = offset;
        loop {
            match self.try_read_at(buffer) {
                Ok(()) => return Ok(()),
                Err(error) => self.recover(error)?,
            }
            self.from.mirrors.attempts += 1;
        }
    }

    fn try_read(&mut self, buffer: &mut [u8]) -> Result<usize, FetchError> {
        let is_local = Location::local_path(self.from.mirrors.url()).is_some();
        self.from.mirrors.attempts += u64::from(self.open.is_none());
        let n = match self.body()?.read(buffer) {
            Err(error) if self.is_end(&error) => 0,
            read => read.map_err(broken(is_local))?,
        };
        match self.total {
            _ if n > 0 => {}
            Some(total) if self.offset < total && is_local => {
                return Err(FetchError::ReadFile { source: io::ErrorKind::UnexpectedEof.into() });
            }
            Some(total) if self.offset < total => return Err(FetchError::Short { offset: self.offset, total }),
            _ => return Ok(0),
        }
        self.received(n as u64);
        if let Some(total) = self.total.filter(|total| self.offset > *total) {
            let reason = format!("the server sent more than the {total} bytes it announced");
            return Err(FetchError::NotResumable { offset: total, reason });
        }
        Ok(n)
    }

    /// Whether a response that broke off may still be complete, which the checks will find out. A server that leaves
    /// out the end marker breaks off each time, and at the same byte.
    fn is_end(&mut self, error: &io::Error) -> bool {
        let is_cut_off = error.kind() == io::ErrorKind::UnexpectedEof;
        let may_be_all = is_cut_off && self.total.is_none() && self.began == 0 && self.from.verified;
        may_be_all && self.from.mirrors.breaks_off_again(self.offset)
    }

    fn try_size(&mut self) -> Result<u64, FetchError> {
        self.body()?;
        let reason = "the size of the source is not known".to_owned();
        let total = self.total.ok_or(FetchError::NotResumable { offset: self.offset, reason })?;
        Ok(*self.told.insert(total))
    }

    fn try_read_at(&mut self, buffer: &mut [u8]) -> Result<(), FetchError> {
        let (wanted, is_local) = (self.offset, Location::local_path(self.from.mirrors.url()).is_some());
        let skip = match &self.open {
            Some((_, at)) if (*at..=*at + MAX_SKIP).contains(&wanted) => wanted - at,
            _ => {
                self.open = None;
                0
            }
        };
        let body = self.body()?;
        io::copy(&mut body.take(skip), &mut io::sink()).map_err(broken(is_local))?;
        body.read_exact(buffer).map_err(broken(is_local))?;
        self.received(buffer.len() as u64);
        Ok(())
    }

    /// Records bytes that were read at the current offset.
    fn received(&mut self, bytes: u64) {
        self.offset += bytes;
        self.from.mirrors.received(bytes);
        if let Some((_, at)) = &mut self.open {
            *at = self.offset;
        }
    }

    /// Returns the body of the open response. If there is none, sends a request from the current offset on.
    fn body(&mut self) -> Result<&mut Box<dyn Read + Send>, FetchError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => (self.connect()?, self.offset),
        };
        Ok(&mut self.open.insert(open).0.body)
    }

    fn connect(&mut self) -> Result<Response, FetchError> {
        let (offset, mirrors) = (self.offset, &self.from.mirrors);
        let authorization = self.from.registries.get(mirrors.index()).and_then(Registry::authorization);
        let (etag, stall) = (self.etag.as_deref(), mirrors.stall());
        let request = Request { offset, etag, stall, authorization, ..Request::new(mirrors.url(), self.from.ca) };
        let response = self.machine.fetch(&request, self.stop)?;
        let known = self.told.or(self.total.filter(|_| offset > 0));
        if let Some(known) = known.filter(|known| response.total != Some(*known)) {
            let now = response.total.map_or("unknown".to_owned(), |total| total.to_string());
            return Err(FetchError::NotResumable { offset, reason: format!("the size was {known} and is now {now}") });
        }
        if response.total.is_none() && !response.is_delimited && !self.from.whole {
            return Err(FetchError::Endless);
        }
        self.check_coding(&response)?;
        self.began = offset;
        self.total = response.total;
        // The response to a range request need not repeat the entity tag.
        self.etag = response.etag.clone().or(self.etag.take().filter(|_| offset > 0));
        Ok(response)
    }

    /// Refuses a body that was compressed on the way if no check would notice. Otherwise records its coding, which may
    /// explain a later error.
    fn check_coding(&mut self, response: &Response) -> Result<(), FetchError> {
        if let Some(coding) = &response.coding {
            let is_noticed = match coded(coding, self.from.mirrors.url()) {
                Coded::InFile => true,
                Coded::Unclear => self.from.verified || !self.from.plain,
                Coded::Unreadable => false,
            };
            if !is_noticed {
                return Err(FetchError::Coded { coding: coding.clone() });
            }
        }
        self.from.mirrors.coded(response.coding.clone());
        Ok(())
    }

    /// Prepares another try, perhaps with a new login or at another mirror, or gives up.
    fn recover(&mut self, error: FetchError) -> Result<(), Error> {
        self.open = None;
        if self.stop.is_set() {
            return Err(Error::Cancelled);
        }
        if self.log_in(&error)? {
            return Ok(());
        }
        let pause = self.go_on(error)?;
        if retry::sleep(pause, self.stop) { Ok(()) } else { Err(Error::Cancelled) }
    }

    /// Gets a new token if the registry requires one. Returns whether it did.
    fn log_in(&mut self, error: &FetchError) -> Result<bool, Error> {
        let (place, is_only) = (self.from.mirrors.index(), self.from.registries.len() == 1);
        let registry = self.from.registries.get_mut(place);
        let (Some(registry), challenges @ [_, ..]) = (registry, error.challenges()) else { return Ok(false) };
        if self.logged_in.replace((place, self.offset)) == Some((place, self.offset)) {
            return Ok(false);
        }
        let patience = retry::patience_with(self.machine, is_only);
        match registry.log_in(challenges, patience, self.machine, &mut |text| (self.note)(text)) {
            Ok(()) => Ok(true),
            Err(error) if is_only => Err(error),
            Err(error) => {
                (self.note)(text::chain(&error));
                Ok(false)
            }
        }
    }

    /// Decides what follows a failure: giving up, or another try after a pause, perhaps at another mirror. The first
    /// failure of a series and every change of the mirror are reported to the operator.
    fn go_on(&mut self, error: FetchError) -> Result<Duration, Error> {
        let (url, offset) = (shown(self.from.mirrors.url()), self.offset);
        let failed = |source| Err(SourceError::Fetch { url: url.clone(), source }.into());
        if matches!(error, FetchError::NotResumable { .. }) {
            self.from.mirrors.not_resumable();
            return failed(error);
        }
        let then = self.from.mirrors.failed(&error, self.machine.setup().patience);
        let failures = self.from.mirrors.outage().failures();
        match then {
            Then::GiveUp => return Err(self.given_up(url, error)),
            Then::Other => {
                let other = shown(self.from.mirrors.url());
                (self.note)(format!(
                    "continuing with {other} from byte {offset}, because {url} failed: {}",
                    why(&error)
                ));
            }
            Then::Same if failures == 1 => {
                let outlook = retry::outlook(self.machine.setup().patience, self.machine);
                (self.note)(format!(
                    "fetching again from byte {offset}, because {url} failed: {}; {outlook}",
                    why(&error)
                ));
            }
            Then::Same => {}
        }
        if let Some(missing) = self.not_resumable(then).filter(|_| self.from.mirrors.has_begun()) {
            let reason = format!("{}, and {missing}", why(&error));
            return failed(FetchError::NotResumable { offset, reason });
        }
        if then == Then::Other {
            self.etag = None;
            // A pause that one mirror asked for does not apply to the next.
            return Ok(match self.from.mirrors.was_each_asked() {
                true => retry::pause(&error, failures).min(retry::LONGEST_PAUSE),
                false => Duration::ZERO,
            });
        }
        Ok(retry::pause(&error, failures))
    }

    /// Returns why the download cannot be resumed; none if it can. Entity tags of two servers cannot be compared.
    fn not_resumable(&self, then: Then) -> Option<&'static str> {
        match then {
            Then::Other if !self.from.verified || self.total.is_none() => Some(
                "the download can continue at another URL only if a digest is given and the size of the source is \
                 known",
            ),
            Then::Other if self.from.mirrors.is_mixing_over() => Some("one of the URLs has different content"),
            Then::Same if self.etag.is_none() && !self.from.verified => {
                Some("the source has neither a strong entity tag nor a digest to resume by")
            }
            _ => None,
        }
    }

    fn given_up(&self, url: String, source: FetchError) -> Error {
        let (failed, outage) = (self.from.mirrors.told(), self.from.mirrors.outage());
        if !failed.is_empty() {
            return SourceError::NoMirror { failed, is_transient: self.from.mirrors.is_transient() }.into();
        }
        let (offset, failures, seconds) = (self.offset, outage.failures(), outage.lasted().as_secs());
        match source.is_transient() {
            true => SourceError::FetchGaveUp { url, offset, failures, seconds, source }.into(),
            false => SourceError::Fetch { url, source }.into(),
        }
    }
}

/// Turns a failed read of a file or a body into an error.
fn broken(is_local: bool) -> impl Fn(io::Error) -> FetchError {
    move |source| if is_local { FetchError::ReadFile { source } } else { FetchError::Body { source } }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::fs::File;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use reqwest::StatusCode;
    use slipway_protocol::{Disk, RecoveryKey};

    use super::*;
    use crate::error::Refusal;
    use crate::machine::{Candidate, Setup, Upload, UploadError};

    /// A source with predefined failures, which counts requests.
    struct Failing {
        asked: AtomicU32,
        error: fn() -> FetchError,
        cancel: Cancel,
        setup: Setup,
    }

    impl Machine for Failing {
        fn setup(&self) -> &Setup {
            &self.setup
        }

        fn disks(&self) -> Result<Vec<Candidate>, Error> {
            Ok(Vec::new())
        }

        fn former_partitions(&self, _: &Disk) -> Vec<String> {
            Vec::new()
        }

        fn upload(&self, _: &str) -> Result<Box<dyn Upload + '_>, UploadError> {
            unreachable!("nothing is captured")
        }

        fn store_recovery_key(&self, _: &RecoveryKey) -> Result<(), UploadError> {
            unreachable!("nothing is encrypted")
        }

        fn load_kernel(&self, _: &File, _: Option<&File>, _: &CStr) -> io::Result<()> {
            unreachable!("nothing is started")
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
        let setup = Setup { patience: Duration::ZERO, ..Setup::default() };
        let machine = Failing { asked: AtomicU32::new(0), error, cancel: Cancel::new(), setup };
        let mut mirrors = Mirrors::new("https://s.example/image", &[]);
        let from =
            From { mirrors: &mut mirrors, registries: &mut [], ca: None, verified: false, plain: false, whole: false };
        let mut download = Download::new(from, &machine, &machine.cancel, Box::new(|_| {}));
        let error = download.read(&mut [0; 16]).expect_err("nothing to read");
        assert_eq!((error.to_string().as_str(), machine.asked.load(Relaxed)), (expect, expect_asked));
    }

    #[test]
    fn a_fault_that_may_pass_is_tried_again_and_others_are_not() {
        let given_up = "fetching https://s.example/image: stopped at byte 0 after 2 failures in a row in 0 s";
        check(|| FetchError::Body { source: io::ErrorKind::ConnectionReset.into() }, 2, given_up);
        check(|| refused(StatusCode::SERVICE_UNAVAILABLE), 2, given_up);
        check(|| refused(StatusCode::NOT_FOUND), 1, "fetching https://s.example/image");
    }
}
