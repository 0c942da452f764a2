use std::io;
use std::time::Duration;

/// Why a TPM neither proves nor seals anything.
#[derive(Debug, thiserror::Error)]
pub enum TpmError {
    /// There is no TPM 2.0, or its driver is not loaded. No other error means that.
    #[error(
        "{path} does not exist; switch on the TPM (2.0, also called PTT or fTPM) in the firmware's setup, or do \
         without it"
    )]
    Missing {
        /// The path of its device.
        path: String,
    },
    /// Its device cannot be opened.
    #[error("opening {path}")]
    Open {
        /// The path of the device.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A command could not be sent, or its answer not be read.
    #[error("{command}: talking to the TPM; it may work again after the machine was switched off and on")]
    Transport {
        /// The name of the command in the specification.
        command: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// There was no answer in time.
    #[error(
        "{command}: the TPM did not answer within {deadline:?}; it may do after the machine was switched off and on"
    )]
    Silent {
        /// The name of the command in the specification.
        command: &'static str,
        /// How long was waited.
        deadline: Duration,
    },
    /// An earlier command found that there is no talking to the TPM. No other is sent to it, as its answer could be the
    /// earlier one's.
    #[error("{command}: not sent, because the TPM failed at an earlier command")]
    Failed {
        /// The name of the command in the specification.
        command: &'static str,
    },
    /// A command is larger than any TPM takes, because of what the server sent.
    #[error("{command}: the server's challenge does not fit into a command of a TPM, so it is for none")]
    TooLong {
        /// The name of the command in the specification.
        command: &'static str,
    },
    /// An answer is not what belongs to the command.
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
    /// Keys in a hierarchy need a password that is set.
    #[error(
        "a password is set for the TPM's {hierarchy} hierarchy; clear the TPM in the firmware's setup, which removes it"
    )]
    Password {
        /// "owner" or "endorsement".
        hierarchy: &'static str,
    },
    /// A register is not in the bank that is used.
    #[error("the TPM has no PCR {pcr} in its SHA-256 bank; switch on that bank in the firmware's setup")]
    NoRegister {
        /// The number of the register.
        pcr: u32,
    },
    /// Something measured into the registers at each attempt to quote them.
    #[error("the TPM's registers changed during each of {attempts} quotes; something goes on measuring into them")]
    Unsteady {
        /// The number of quotes.
        attempts: u32,
    },
    /// Unsealing returned another secret than was sealed.
    #[error("the TPM returned a different secret from the one it sealed; it cannot be used")]
    OtherSecret,
}

impl TpmError {
    /// Whether the TPM refused with one of these codes, each without the place of what was wrong.
    pub(crate) fn is(&self, codes: &[u32]) -> bool {
        matches!(self, Self::Refused { code, .. } if codes.contains(&without_place(*code)))
    }
}

/// A response code without the number of the handle, parameter or session that it is about, if it has one (part 2, 6.6.2),
/// and without the layer of software that made it, in the upper half.
fn without_place(code: u32) -> u32 {
    if code & 0x80 == 0 { code & 0xFFFF } else { code & 0xBF }
}

/// The name of a response code, and what to do, if it is one that can be expected here.
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
        0x0A6 => "TPM_RC_CURVE: it does not know P-256",
        0x100 => "TPM_RC_INITIALIZE: the firmware has not started it; switch it on in the firmware's setup and restart",
        0x101 => "TPM_RC_FAILURE: its self-test failed; switch the machine off and on",
        0x120 => "TPM_RC_DISABLED: it is switched off; switch it on in the firmware's setup",
        0x128 => "TPM_RC_PCR_CHANGED: a PCR has changed in the meantime; try again",
        0x12D => "TPM_RC_UPGRADE: it waits for the rest of its new firmware",
        0x12F => "TPM_RC_AUTH_UNAVAILABLE",
        0x130 => "TPM_RC_REBOOT: restart the machine",
        0x143 => "TPM_RC_COMMAND_CODE: it does not know the command",
        0x902 => "TPM_RC_OBJECT_MEMORY: it has no room for more keys; restart the machine",
        0x903 => "TPM_RC_SESSION_MEMORY: it has no room for more sessions; restart the machine",
        0x904 => "TPM_RC_MEMORY: it has no room; restart the machine",
        0x905 => "TPM_RC_SESSION_HANDLES: it has no room for more sessions; restart the machine",
        0x906 => "TPM_RC_OBJECT_HANDLES: it has no room for more keys; restart the machine",
        0x908 => "TPM_RC_YIELDED: it stays busy; try again",
        0x90A => "TPM_RC_TESTING: it stays busy; try again",
        0x910 => "TPM_RC_REFERENCE_H0",
        0x921 => "TPM_RC_LOCKOUT: it is locked after too many wrong passwords; clear it in the firmware's setup",
        0x922 => "TPM_RC_RETRY: it stays busy; try again",
        _ => "TPM 2.0 Library, part 2, 6.6.3",
    }
}
