//! How stages end early.

use std::thread;

use crate::error::Error;
use crate::machine::Cancel;

/// Why a stage ended early.
#[derive(Debug)]
pub(crate) enum Halt {
    /// Another stage failed, or a stop was requested.
    Stopped,
    /// This stage failed.
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        match error {
            Error::Cancelled => Halt::Stopped,
            error => Halt::Failed(error),
        }
    }
}

/// Stops the other stages when one panics. The scope then propagates the panic.
pub(super) struct StopOnPanic<'a>(pub(super) &'a Cancel);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.set();
        }
    }
}
