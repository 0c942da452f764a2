use std::io;
use std::time::Duration;

/// Why a TPM cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum TpmError {
    /// There is no TPM 2.0, or its driver is not loaded. Only this error means that.
    #[error(
        "{path} does not exist; switch on the TPM (2.0, also called PTT or fTPM) in the firmware's setup, or do \
         without it"
    )]
    Missing { path: String },
    /// The device of the TPM cannot be opened.
    #[error("opening {path}")]
    Open { path: String, source: io::Error },
    /// A command could not be sent, or its answer could not be read.
    #[error("{command}: talking to the TPM; switch the machine off and on")]
    Transport {
        /// The name of the command in the specification.
        command: &'static str,
        source: io::Error,
    },
    /// There was no answer in time.
    #[error("{command}: the TPM did not answer within {deadline:?}; switch the machine off and on")]
    Silent {
        /// The name of the command in the specification.
        command: &'static str,
        deadline: Duration,
    },
    /// An earlier command failed. No other is sent, because its answer could belong to the earlier one.
    #[error("{command}: not sent, because the TPM failed at an earlier command")]
    Failed {
        /// The name of the command in the specification.
        command: &'static str,
    },
    /// A command is larger than a TPM accepts, because of the server's challenge.
    #[error("{command}: the server's challenge is too long for a TPM command")]
    TooLong {
        /// The name of the command in the specification.
        command: &'static str,
    },
    /// An answer does not fit the command.
    #[error("{command}: the TPM's answer is truncated or malformed; its firmware may need an update")]
    Malformed {
        /// The name of the command in the specification.
        command: &'static str,
    },
    /// The TPM refused a command.
    #[error("{command}: the TPM refused with {code:#x} ({})", meaning(*code))]
    Refused {
        /// The name of the command in the specification.
        command: &'static str,
        /// The response code (part 2, 6.6).
        code: u32,
    },
    /// A hierarchy is protected with a password.
    #[error(
        "a password is set for the TPM's {hierarchy} hierarchy; clear the TPM in the firmware's setup, which removes it"
    )]
    Password { hierarchy: &'static str },
    /// The SHA-256 bank does not have a register.
    #[error("the TPM has no PCR {pcr} in its SHA-256 bank; switch on that bank in the firmware's setup")]
    NoRegister { pcr: u32 },
    /// The registers changed during each quote.
    #[error("the TPM's registers changed during each of {attempts} quotes; a program keeps measuring into them")]
    Unsteady { attempts: u32 },
    /// Unsealing returned a different secret.
    #[error("the TPM returned a different secret from the one it sealed; this TPM cannot be used")]
    OtherSecret,
}

impl TpmError {
    /// Whether the TPM refused with one of these codes, in the form of [`without_place`].
    pub(crate) fn is(&self, codes: &[u32]) -> bool {
        matches!(self, Self::Refused { code, .. } if codes.contains(&without_place(*code)))
    }
}

/// A response code without the number of its handle, parameter or session (part 2, 6.6.2), and without the software
/// layer in its upper half.
fn without_place(code: u32) -> u32 {
    if code & 0x80 == 0 { code & 0xFFFF } else { code & 0xBF }
}

/// The name of a response code, and what to do about it.
fn meaning(code: u32) -> &'static str {
    match without_place(code) {
        0x081 => "TPM_RC_ASYMMETRIC",
        0x082 => "TPM_RC_ATTRIBUTES",
        0x084 => "TPM_RC_VALUE",
        0x085 => "TPM_RC_HIERARCHY: the hierarchy is switched off; switch it on in the firmware's setup",
        0x08A => "TPM_RC_TYPE",
        0x08B => "TPM_RC_HANDLE",
        0x08E => "TPM_RC_AUTH_FAIL",
        0x092 => "TPM_RC_SCHEME",
        0x095 => "TPM_RC_SIZE",
        0x09A => "TPM_RC_INSUFFICIENT",
        0x09D => "TPM_RC_POLICY_FAIL",
        0x09F => "TPM_RC_INTEGRITY",
        0x0A2 => "TPM_RC_BAD_AUTH",
        0x0A6 => "TPM_RC_CURVE: it does not support P-256",
        0x100 => "TPM_RC_INITIALIZE: the firmware has not started it; switch it on in the firmware's setup and restart",
        0x101 => "TPM_RC_FAILURE: its self-test failed; switch the machine off and on",
        0x120 => "TPM_RC_DISABLED: it is switched off; switch it on in the firmware's setup",
        0x128 => "TPM_RC_PCR_CHANGED: a PCR has changed in the meantime; try again",
        0x12D => "TPM_RC_UPGRADE: its firmware update is incomplete",
        0x12F => "TPM_RC_AUTH_UNAVAILABLE",
        0x130 => "TPM_RC_REBOOT: restart the machine",
        0x143 => "TPM_RC_COMMAND_CODE: it does not support the command",
        0x902 => "TPM_RC_OBJECT_MEMORY: it has no memory for more keys; restart the machine",
        0x903 => "TPM_RC_SESSION_MEMORY: it has no memory for more sessions; restart the machine",
        0x904 => "TPM_RC_MEMORY: it is out of memory; restart the machine",
        0x905 => "TPM_RC_SESSION_HANDLES: it has no memory for more sessions; restart the machine",
        0x906 => "TPM_RC_OBJECT_HANDLES: it has no memory for more keys; restart the machine",
        0x908 => "TPM_RC_YIELDED: it is still busy; try again",
        0x90A => "TPM_RC_TESTING: it is still busy; try again",
        0x910 => "TPM_RC_REFERENCE_H0",
        0x921 => "TPM_RC_LOCKOUT: it is locked after too many wrong passwords; clear it in the firmware's setup",
        0x922 => "TPM_RC_RETRY: it is still busy; try again",
        _ => "TPM 2.0 Library, part 2, 6.6.3",
    }
}
