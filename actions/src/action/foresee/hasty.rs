//! A machine that tries nothing again: what a server cannot say at once is left to the step, which waits for it.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::time::Duration;

use slipway_protocol::{Disk, RecoveryKey};

use crate::error::{Error, FetchError};
use crate::machine::{Cancel, Candidate, Machine, Request, Response, Setup, Upload, UploadError};

pub(super) struct Hasty<'a> {
    machine: &'a dyn Machine,
    setup: Setup,
}

impl<'a> Hasty<'a> {
    pub(super) fn new(machine: &'a dyn Machine) -> Self {
        Self { machine, setup: Setup { patience: Duration::ZERO, ..machine.setup().clone() } }
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
        self.machine.fetch(request, stop)
    }

    fn upload(&self, name: &str) -> Result<Box<dyn Upload + '_>, UploadError> {
        self.machine.upload(name)
    }

    fn escrow(&self, key: &RecoveryKey) -> Result<(), UploadError> {
        self.machine.escrow(key)
    }

    fn load_kernel(&self, kernel: &File, initrd: Option<&File>, cmdline: &CStr) -> io::Result<()> {
        self.machine.load_kernel(kernel, initrd, cmdline)
    }
}
