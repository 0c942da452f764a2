//! The context of an erase method: the open disk, and its progress reports.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use slipway_protocol::EraseMode;

use crate::disk::open::OpenDisk;
use crate::error::{EraseError, Error};
use crate::machine::Cancel;

/// How often a disk that is erasing itself is checked.
const LOOK: Duration = Duration::from_millis(200);

/// Progress of one disk in bytes.
#[derive(Debug, Default)]
pub(super) struct Share {
    done: AtomicU64,
    goal: AtomicU64,
}

impl Share {
    /// Returns the bytes done, and the bytes to do in all.
    pub(super) fn look(&self) -> (u64, u64) {
        let done = self.done.load(Relaxed);
        (done, self.goal.load(Relaxed).max(done))
    }
}

/// One disk being erased.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    pub(super) disk: &'a OpenDisk,
    /// Warnings for the operator, if the disk is erased.
    pub(super) warnings: Vec<String>,
    cancel: &'a Cancel,
    share: &'a Share,
    notes: &'a Sender<String>,
    /// Bytes done when the current task began.
    base: u64,
}

impl<'a> Worker<'a> {
    pub(super) fn new(disk: &'a OpenDisk, cancel: &'a Cancel, share: &'a Share, notes: &'a Sender<String>) -> Self {
        Self { disk, warnings: Vec::new(), cancel, share, notes, base: 0 }
    }

    /// Begins a task of this many bytes. The bytes done by earlier tasks still count.
    pub(super) fn begin(&mut self, bytes: u64) {
        self.base = self.share.done.load(Relaxed);
        self.share.goal.store(self.base + bytes, Relaxed);
    }

    /// Returns the error for a disk that began to erase itself, so that no other mode can help.
    pub(super) fn stuck(&self, reason: String) -> Error {
        EraseError::Stuck { disk: self.disk.path().to_owned(), mode: EraseMode::Secure, reason }.into()
    }

    /// Reports that this many bytes of the current task are done.
    pub(super) fn reach(&self, bytes: u64) {
        self.share.done.fetch_max(self.base + bytes, Relaxed);
    }

    /// Sends a note to the operator.
    pub(super) fn note(&self, text: String) {
        // The receiver is gone only when the program ends.
        self.notes.send(text).ok();
    }

    /// Fails once the step has been cancelled.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.cancel.check()
    }

    /// Waits between two checks of a disk that is erasing itself and cannot be stopped.
    pub(super) fn pause(&self) -> Result<(), Error> {
        self.check().inspect_err(|_| {
            self.note(format!("{} continues to erase itself, and cannot be stopped", self.disk.path()));
        })?;
        thread::sleep(LOOK);
        Ok(())
    }

    /// Runs a command that blocks until the disk has erased itself, for about as long as the estimate. The step can be
    /// cancelled meanwhile; the command then keeps the disk open until it ends, so that nobody else can use it.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        estimate: Duration,
        command: impl FnOnce(&File) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let file = self.disk.file().try_clone();
        let file = file.map_err(|source| Error::OpenDisk { disk: self.disk.path().to_owned(), source })?;
        let began = Instant::now();
        let thread = thread::spawn(move || command(&file));
        while !thread.is_finished() {
            self.pause()?;
            let share = (began.elapsed().as_secs_f64() / estimate.as_secs_f64().max(1.0)).min(0.99);
            self.reach((self.disk.size() as f64 * share) as u64);
        }
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}
