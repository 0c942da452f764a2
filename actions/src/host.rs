//! The machine this process runs on.

use std::fs;
use std::path::{Path, PathBuf};

use crate::capture_file::CaptureFile;
use crate::disks;
use crate::error::Error;
use crate::fetch::{self, FetchError, Request, Trust};
use crate::machine::{Cancel, Candidate, Machine, Response, Upload, UploadError};

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
    /// File a captured disk becomes; there must be none yet.
    pub capture_to: Option<PathBuf>,
}

/// The machine this process runs on.
#[derive(Debug)]
pub struct Host {
    trust: Trust,
    cancel: Cancel,
    is_operating_system: bool,
    capture_to: Option<PathBuf>,
}

impl Host {
    /// The host, trusting the given certificates and no others.
    pub fn new(options: HostOptions) -> Self {
        let trust = match options.trust {
            given if !given.is_empty() => Trust { pem: given, origin: "the CA given to this machine or by hand" },
            _ => Trust { pem: fs::read_to_string(SYSTEM_TRUST).into_iter().collect(), origin: SYSTEM_TRUST },
        };
        let HostOptions { cancel, is_operating_system, capture_to, .. } = options;
        Self { trust, cancel, is_operating_system, capture_to }
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

    fn upload(&self, name: &str) -> Result<Box<dyn Upload + '_>, UploadError> {
        let no_place =
            || UploadError { source: format!("nobody said where to put the image {name}").into(), may_pass: false };
        Ok(Box::new(CaptureFile::begin(self.capture_to.as_deref().ok_or_else(no_place)?)?))
    }

    fn is_operating_system(&self) -> bool {
        self.is_operating_system
    }
}
