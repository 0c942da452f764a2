//! How stages end early.

use std::thread;

use crate::error::Error;
use crate::machine::Cancel;

/// How a stage ends early.
#[derive(Debug)]
pub(crate) enum Halt {
    /// Because another stage failed or a stop was asked for.
    Stopped,
    /// Because of this.
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

/// Lets the other stages end when one panics; the scope then passes the panic on.
pub(super) struct StopOnPanic<'a>(pub(super) &'a Cancel);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.set();
        }
    }
}
