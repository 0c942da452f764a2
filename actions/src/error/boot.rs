//! How the machine and the installed system start.

use std::io;

/// Why the start of the machine or of the installed system could not be configured.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum BootError {
    /// A boot loader's configuration cannot be edited.
    #[error("editing /{path} of the installed system: {reason}")]
    Config {
        /// Path relative to the root of its file system.
        path: String,
        /// What was found, on which line, and what would be right.
        reason: String,
    },
    /// A kernel argument cannot be replaced or added.
    #[error("{operation} kernel argument {argument:?}: {reason}")]
    KernelArgument {
        /// What was to be done: "replacing", "adding".
        operation: &'static str,
        argument: String,
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// The machine has no EFI variables for its boot order.
    #[error(
        "changing the boot order: the machine was not started by UEFI firmware ({folder} does not exist); start it \
         with UEFI, or leave the step out"
    )]
    NotUefi {
        /// The folder in which Linux would present the firmware's data.
        folder: String,
    },
    /// The firmware's variables could not be read or changed.
    #[error("{operation} the EFI variable {variable}")]
    EfiVariable {
        /// What was done: "reading", "writing", "removing".
        operation: &'static str,
        /// Name of the variable, or the folder of all variables.
        variable: String,
        /// The cause, and what to do.
        source: io::Error,
    },
    /// The firmware cannot be given keys for Secure Boot.
    #[error("giving the firmware keys for Secure Boot: {reason}")]
    SecureBoot {
        /// What was found, and what to do.
        reason: String,
    },
    /// The firmware did not take one of the variables of Secure Boot.
    #[error("writing the EFI variable {variable}: {state}")]
    SecureBootVariable {
        variable: String,
        /// What was written before, and what the firmware starts now.
        state: String,
        /// The cause, and what to do.
        source: io::Error,
    },
    /// The program that starts the installed system cannot be determined.
    #[error("looking for the boot loader on {disk}: {reason}")]
    Loader {
        disk: String,
        /// What was found, and what to do.
        reason: String,
    },
    /// The kernel to start cannot be determined, or does not exist.
    #[error("looking for the kernel of the installed system on {disk}: {reason}")]
    InstalledKernel {
        disk: String,
        /// What was found, and what to do.
        reason: String,
    },
    /// The kernel could not be loaded into memory.
    #[error("loading the kernel {kernel}: {reason}")]
    LoadKernel {
        kernel: String,
        /// Why not, and what to do.
        reason: String,
        source: io::Error,
    },
}
