//! How machine and installed system start.

use std::io;

/// Why the machine, or the installed system on it, was not told how to start.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// A boot loader's configuration cannot be edited.
    #[error("editing /{path} of the installed system: {reason}")]
    Config {
        /// Path relative to the root of its file system.
        path: String,
        /// What is there, on which line, and what would be right.
        reason: String,
    },
    /// A kernel argument cannot be replaced.
    #[error("replacing kernel argument {argument:?}: {reason}")]
    KernelArgument {
        /// The argument as given.
        argument: String,
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// The machine has no EFI variables to say what it starts from.
    #[error(
        "changing the order in which the machine starts: it was not started by UEFI firmware ({folder} is not there); \
         start it by UEFI, or leave the step out"
    )]
    NotUefi {
        /// Where Linux would show them.
        folder: String,
    },
    /// The firmware's variables could not be read or changed.
    #[error("{operation} the EFI variable {variable}")]
    EfiVariable {
        /// What was done: "reading", "writing", "removing".
        operation: &'static str,
        /// Its name, or the folder of all.
        variable: String,
        /// The cause, and what to do.
        #[source]
        source: io::Error,
    },
    /// Nothing says which program starts the installed system.
    #[error("looking for the boot loader on {disk}: {reason}")]
    Loader {
        /// Path of the disk.
        disk: String,
        /// What is there, and what to do.
        reason: String,
    },
    /// Nothing says which kernel is to be started, or it is not there.
    #[error("looking for the kernel of the installed system on {disk}: {reason}")]
    InstalledKernel {
        /// Path of the disk.
        disk: String,
        /// What is there, and what to do.
        reason: String,
    },
    /// The kernel could not be put into memory.
    #[error("loading the kernel {kernel}: {reason}")]
    LoadKernel {
        /// Its path.
        kernel: String,
        /// Why not, and what to do.
        reason: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}
