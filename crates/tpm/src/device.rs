//! Commands to a machine's TPM: proving which TPM it is, and sealing a secret to the machine's state.

mod attester;
mod channel;
mod commands;
mod error;
mod event_log;
mod seal;

pub use attester::Attester;
pub use error::TpmError;
pub use event_log::{EVENT_LOG, read_event_log};
pub use seal::{Sealed, seal};

/// The first TPM, behind the kernel's resource manager. A TPM 1.2 has no such device.
pub const DEVICE: &str = "/dev/tpmrm0";
