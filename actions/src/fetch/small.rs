//! Small files that belong to an image: checksums, signatures, manifests.

use std::io::Read;
use std::time::Duration;

use slipway_protocol::workflow::Location;

use super::retry::{self, Outage};
use super::{shown, why};
use crate::error::{Error, FetchError, SourceError};
use crate::machine::{Machine, Request, Response};
use crate::report::{Report, Tell};

/// A file, and what its server reports about it.
pub(crate) struct Small {
    pub(crate) bytes: Vec<u8>,
    /// Digest of the bytes, as registries report it.
    pub(crate) content_digest: Option<String>,
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read(request: &Request<'_>, limit: usize, machine: &dyn Machine, report: Tell) -> Result<Vec<u8>, Error> {
    let note = &mut |text| report(Report::Note(text));
    fetch(request, limit, machine.setup().patience, machine, note).map(|small| small.bytes)
}

/// Fetches a whole file of at most `limit` bytes. After a transient failure it starts again, until the failures have
/// lasted for `patience`. The first failure is noted for the operator.
pub(crate) fn fetch(
    request: &Request<'_>,
    limit: usize,
    patience: Duration,
    machine: &dyn Machine,
    note: &mut dyn FnMut(String),
) -> Result<Small, Error> {
    let url = || shown(request.url);
    let mut outage = Outage::default();
    loop {
        let error = match once(request, limit, machine) {
            Ok(small) => return Ok(small),
            Err(_) if machine.cancel().is_set() => return Err(Error::Cancelled),
            Err(error) => error,
        };
        outage.failed();
        let (failures, lasted) = (outage.failures(), outage.lasted());
        if !error.is_transient() {
            return Err(SourceError::Fetch { url: url(), source: error }.into());
        }
        let pause = retry::pause(&error, failures);
        if failures == 1 && pause < patience {
            let outlook = retry::outlook(patience, machine);
            note(format!("fetching {} failed: {}; {outlook}", url(), why(&error)));
        }
        if lasted + pause >= patience {
            return Err(SourceError::FetchGaveUp {
                url: url(),
                offset: 0,
                failures,
                seconds: lasted.as_secs(),
                source: error,
            }
            .into());
        }
        if !retry::sleep(pause, machine.cancel()) {
            return Err(Error::Cancelled);
        }
    }
}

fn once(request: &Request<'_>, limit: usize, machine: &dyn Machine) -> Result<Small, FetchError> {
    let Response { total, coding, content_digest, body, .. } = machine.fetch(request, machine.cancel())?;
    if let Some(coding) = coding {
        return Err(FetchError::Coded { coding });
    }
    let mut bytes = Vec::new();
    body.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(|source| match Location::local_path(request.url) {
        Some(_) => FetchError::ReadFile { source },
        None => FetchError::Body { source },
    })?;
    let read = bytes.len() as u64;
    match total {
        _ if bytes.len() > limit => Err(FetchError::TooLarge { limit }),
        Some(total) if read < total => Err(FetchError::Short { offset: read, total }),
        _ => Ok(Small { bytes, content_digest }),
    }
}
