//! Sends captured disks and recovery keys to the server.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::time::Duration;

use slipway_actions::{Cancel, Candidate, Error, FetchError, Machine, Request, Response, Setup, Upload, UploadError};
use slipway_protocol::{CapturedImage, Disk, ErrorCode, RecoveryKey};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::enrol::Session;
use crate::server::client::ClientError;

/// Interval at which a waiting request checks whether it must stop.
const STOP_CHECK: Duration = Duration::from_millis(100);
/// Wait before asking the server again whether it has verified an image.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A machine in a run. Captured disks and recovery keys go to the run's server.
pub(crate) struct ServerMachine {
    machine: Box<dyn Machine + Send>,
    session: Session,
    run: String,
    runtime: Handle,
}

impl ServerMachine {
    pub(crate) fn new(machine: Box<dyn Machine + Send>, session: Session, run: String, runtime: Handle) -> Self {
        Self { machine, session, run, runtime }
    }

    /// Waits for the server's answer or until the action must stop. Only for action threads, which may block.
    fn wait<T>(&self, request: impl Future<Output = Result<T, ClientError>>) -> Result<T, UploadError> {
        let stopped = async {
            while !self.cancel().is_set() {
                sleep(STOP_CHECK).await;
            }
        };
        self.runtime.block_on(async {
            tokio::select! {
                answer = request => answer.map_err(failed),
                // The part of the action that asked to stop reports the cause.
                () = stopped => Err(UploadError { source: "stopping on request".into(), is_transient: true }),
            }
        })
    }
}

/// Makes the error of an upload. Rejected credentials are transient: another task may already be replacing them.
fn failed(error: ClientError) -> UploadError {
    let is_transient = error.is_transient() || error.code() == Some(ErrorCode::Unauthenticated);
    UploadError { source: Box::new(error), is_transient }
}

impl Machine for ServerMachine {
    fn disks(&self) -> Result<Vec<Candidate>, Error> {
        self.machine.disks()
    }

    fn fetch(&self, request: &Request<'_>, stop: &Cancel) -> Result<Response, FetchError> {
        self.machine.fetch(request, stop)
    }

    fn cancel(&self) -> &Cancel {
        self.machine.cancel()
    }

    fn upload(&self, name: &str) -> Result<Box<dyn Upload + '_>, UploadError> {
        self.wait(self.session.client().begin_capture(&self.run, name))?;
        Ok(Box::new(ServerUpload { machine: self, name: name.to_owned() }))
    }

    fn store_recovery_key(&self, key: &RecoveryKey) -> Result<(), UploadError> {
        self.wait(self.session.client().store_recovery_key(&self.run, key))
    }

    fn setup(&self) -> &Setup {
        self.machine.setup()
    }

    fn former_partitions(&self, disk: &Disk) -> Vec<String> {
        self.machine.former_partitions(disk)
    }

    fn load_kernel(&self, kernel: &File, initrd: Option<&File>, cmdline: &CStr) -> io::Result<()> {
        self.machine.load_kernel(kernel, initrd, cmdline)
    }
}

/// An image being uploaded. If the run ends before the image is committed, the server discards it.
struct ServerUpload<'a> {
    machine: &'a ServerMachine,
    name: String,
}

impl Upload for ServerUpload<'_> {
    fn put(&mut self, offset: u64, piece: &[u8]) -> Result<u64, UploadError> {
        let ServerMachine { session, run, .. } = self.machine;
        self.machine.wait(session.client().put_capture(run, &self.name, offset, piece.to_vec()))
    }

    fn commit(&mut self, image: &CapturedImage) -> Result<(), UploadError> {
        let ServerMachine { session, run, .. } = self.machine;
        self.machine.wait(async {
            while !session.client().commit_capture(run, image).await? {
                sleep(ASK_AGAIN).await;
            }
            Ok(())
        })
    }
}
