//! The machine this process runs on.

use std::fs;
use std::path::Path;

use crate::disks;
use crate::error::Error;
use crate::fetch::{self, FetchError, Request, Trust};
use crate::machine::{Cancel, Candidate, Machine, Response};

/// CA certificates of the running system, used only where nobody gave any: when an action is run by hand.
const SYSTEM_TRUST: &str = "/etc/ssl/certs/ca-certificates.crt";

/// How the host is used.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// CA certificates to trust, each a text in PEM. Empty: those of the running system.
    pub trust: Vec<String>,
    /// Set to stop the running action.
    pub cancel: Cancel,
    /// Slipway is the operating system: what sits on a disk is taken down before the disk is overwritten.
    pub is_operating_system: bool,
}

/// The machine this process runs on.
#[derive(Debug)]
pub struct Host {
    trust: Trust,
    cancel: Cancel,
    is_operating_system: bool,
}

impl Host {
    /// The host, trusting the given certificates and no others.
    pub fn new(options: HostOptions) -> Self {
        let trust = match options.trust {
            given if !given.is_empty() => Trust { pem: given, origin: "the CA given to this machine or by hand" },
            _ => Trust { pem: fs::read_to_string(SYSTEM_TRUST).into_iter().collect(), origin: SYSTEM_TRUST },
        };
        Self { trust, cancel: options.cancel, is_operating_system: options.is_operating_system }
    }
}

impl Machine for Host {
    fn disks(&self) -> Result<Vec<Candidate>, Error> {
        disks::candidates(Path::new("/sys"), Path::new("/proc"), self.is_operating_system)
            .map_err(|source| Error::ListDisks { source })
    }

    fn fetch(&self, request: &Request<'_>, stop: &Cancel) -> Result<Response, FetchError> {
        fetch::open(request, &self.trust, stop)
    }

    fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    fn is_operating_system(&self) -> bool {
        self.is_operating_system
    }
}
