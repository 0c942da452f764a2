//! Sealing a secret to a TPM 2.0.

/// Why a secret was not sealed.
#[derive(Debug, thiserror::Error)]
pub enum TpmError {
    /// There is no TPM, or its driver is not loaded.
    #[error(
        "{path} does not exist; switch on the TPM (2.0, also called PTT or fTPM) in the firmware's setup, or leave \
         this step out"
    )]
    Missing {
        /// Path of its device.
        path: String,
    },
    /// Communication with the TPM failed.
    #[error("{operation} {path}")]
    Device {
        /// What was done: "opening", "writing to", "reading from".
        operation: &'static str,
        /// Path of its device.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The TPM refused a command.
    #[error("{command}: the TPM answered {code:#x}{}", meaning(*code))]
    Refused {
        /// Name of the command in the specification.
        command: &'static str,
        /// Response code (part 2, 6.6).
        code: u32,
    },
    /// A response does not have the fields that belong to its command.
    #[error("{command}: the TPM's answer is truncated or malformed; its firmware may need an update")]
    Malformed {
        /// Name of the command in the specification.
        command: &'static str,
    },
    /// The PCR bank in use does not have this register.
    #[error(
        "the TPM has no PCR {pcr} in its SHA-256 bank; switch on that bank in the firmware's setup, or leave the PCR \
         out"
    )]
    NoRegister {
        /// Number of the register.
        pcr: u32,
    },
    /// Unsealing returned another secret than was sealed.
    #[error("the TPM returned a different secret from the one it sealed; it cannot be used")]
    OtherSecret,
}

/// What a response code means and what to do, if known; printed after the code. Codes of the second format also name
/// the parameter that is wrong (part 2, 6.6.3).
fn meaning(code: u32) -> &'static str {
    const SECOND_FORMAT: u32 = 0x80;
    match if code & SECOND_FORMAT == 0 { code } else { code & 0xBF } {
        0x100 => ": the firmware has not started it; enable the TPM in the firmware's setup and restart the machine",
        0x101 => ": it is in failure mode; restart the machine",
        0x120 | 0x085 => ": the owner hierarchy is disabled; enable it in the firmware's setup",
        0x921 => ": it is locked after too many wrong passwords; clear it in the firmware's setup",
        0x902..=0x904 => ": it has no room for more keys or sessions; restart the machine",
        0x08E | 0x0A2 => ": the owner hierarchy has a password; clear the TPM in the firmware's setup",
        0x09D | 0x128 => ": a PCR has changed in the meantime",
        0x908 | 0x90A | 0x922 => ": it is busy; try again",
        0x143 => ": it does not support the command",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_that_names_a_parameter_means_the_same_without_it() {
        for code in [0x8E, 0x98E, 0x9A2, 0x1A2] {
            assert!(meaning(code).contains("has a password"), "{code:#x}");
        }
        assert_eq!(meaning(0x1C4), "");
        assert!(meaning(0x921).contains("locked"));
    }
}
