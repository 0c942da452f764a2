//! A machine that retries nothing: what a server cannot answer at once is left to the step, which waits for it. A
//! server that was silent once is not waited for a second time.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use slipway_protocol::{Disk, RecoveryKey};

use crate::error::{Error, FetchError};
use crate::machine::{Cancel, Candidate, Machine, Request, Response, Setup, Upload, UploadError};

pub(super) struct Hasty<'a> {
    machine: &'a dyn Machine,
    setup: Setup,
    /// URLs that could not be fetched for a temporary reason.
    silent: Mutex<Vec<String>>,
}

impl<'a> Hasty<'a> {
    pub(super) fn new(machine: &'a dyn Machine) -> Self {
        let setup = Setup { patience: Duration::ZERO, ..machine.setup().clone() };
        Self { machine, setup, silent: Mutex::default() }
    }
}

impl Machine for Hasty<'_> {
    fn setup(&self) -> &Setup {
        &self.setup
    }

    fn cancel(&self) -> &Cancel {
        self.machine.cancel()
    }

    fn disks(&self) -> Result<Vec<Candidate>, Error> {
        self.machine.disks()
    }

    fn former_partitions(&self, disk: &Disk) -> Vec<String> {
        self.machine.former_partitions(disk)
    }

    fn fetch(&self, request: &Request<'_>, stop: &Cancel) -> Result<Response, FetchError> {
        let silent = || self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if silent().iter().any(|url| url == request.url) {
            return Err(FetchError::Body { source: io::ErrorKind::TimedOut.into() });
        }
        let fetched = self.machine.fetch(request, stop);
        if fetched.as_ref().is_err_and(FetchError::is_transient) {
            silent().push(request.url.to_owned());
        }
        fetched
    }

    fn upload(&self, name: &str) -> Result<Box<dyn Upload + '_>, UploadError> {
        self.machine.upload(name)
    }

    fn store_recovery_key(&self, key: &RecoveryKey) -> Result<(), UploadError> {
        self.machine.store_recovery_key(key)
    }

    fn load_kernel(&self, kernel: &File, initrd: Option<&File>, cmdline: &CStr) -> io::Result<()> {
        self.machine.load_kernel(kernel, initrd, cmdline)
    }
}
