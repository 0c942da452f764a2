//! What can go wrong in an action.

mod boot;
mod capture;
mod encrypt;
mod erase;
mod fetch;
mod image;
mod partition;
mod source;
mod target;
mod tpm;

use std::io;

pub(crate) use self::fetch::refused_certificate;
pub use boot::BootError;
pub use capture::CaptureError;
pub use encrypt::EncryptError;
pub use erase::EraseError;
pub use fetch::{FetchError, Refusal};
pub use image::ImageError;
pub use partition::PartitionError;
pub use source::SourceError;
pub use target::TargetError;
pub use tpm::TpmError;

/// Why an action failed. Messages name operation and object; the cause is the source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// sysfs or procfs could not be read.
    #[error("listing the disks of this machine")]
    ListDisks {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The hints do not lead to exactly one disk.
    #[error("choosing a disk: {reason}")]
    ChooseDisk {
        /// What was asked for, and each disk with what stands against it.
        reason: String,
    },
    /// The disk could not be opened.
    #[error("opening {disk}")]
    OpenDisk {
        /// Path of the disk.
        disk: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A read from the disk failed.
    #[error("reading {disk} at byte {offset}")]
    ReadDisk {
        /// Path of the disk.
        disk: String,
        /// Byte offset of the read.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A write to the disk failed.
    #[error("writing {disk} at byte {offset}")]
    WriteDisk {
        /// Path of the disk.
        disk: String,
        /// Byte offset of the write.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The disk did not confirm that it has everything.
    #[error("flushing {disk}")]
    FlushDisk {
        /// Path of the disk.
        disk: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The disk failed because it is not there any more.
    #[error(
        "using {disk}: the disk vanished: it was pulled out, or it lost power or its connection; check slot, cable and controller"
    )]
    Vanished {
        /// Path the disk had.
        disk: String,
        /// What was done to it, and what the kernel said.
        #[source]
        source: Box<Error>,
    },
    /// What was read from the disk is not what was written to it.
    #[error(
        "reading {disk} back: the {len} bytes from byte {offset} on are not those that were written; the disk or its cable is \
         bad, or it has less room than it says: replace it"
    )]
    ReadBack {
        /// Path of the disk.
        disk: String,
        /// Where what was read begins, in bytes.
        offset: u64,
        /// How many bytes were read at once.
        len: u64,
    },
    /// The kernel gives no random numbers.
    #[error("asking the kernel for random numbers")]
    Random,
    /// Something that sits on the disk did not go.
    #[error("taking down what sits on {disk}: {what}")]
    TakeDown {
        /// Path of the disk.
        disk: String,
        /// What was done: "unmounting /mnt".
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Something that sits on the disk cannot be taken down.
    #[error("taking down what sits on {disk}: {holder} cannot be taken down; end it by hand, or choose another disk")]
    Held {
        /// Path of the disk.
        disk: String,
        /// What it is.
        holder: String,
    },
    /// The inputs of an action cannot be right.
    #[error("reading the inputs of {action}: it {}", problems.join("; it "))]
    Inputs {
        /// Name of the action.
        action: &'static str,
        /// What is wrong with them.
        problems: Vec<String>,
    },
    /// Partitions, what is made of them, or their table.
    #[error(transparent)]
    Partitions(#[from] PartitionError),
    /// Fetching, and what is said of the source.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The image itself.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Erasing.
    #[error(transparent)]
    Erase(#[from] EraseError),
    /// Encrypting the root file system.
    #[error(transparent)]
    Encrypt(#[from] EncryptError),
    /// The installed system and its files.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// How machine and installed system start.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// Capturing a disk.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Something asked the action to stop, such as the end of its time.
    #[error("stopping on request")]
    Cancelled,
}

/// Whether the same action may succeed if it is run again: true for faults of the network and for a disk in use, false
/// for a wrong digest, a missing disk, a damaged image or a disk that fails or vanishes.
pub fn is_transient(error: &Error) -> bool {
    match error {
        Error::OpenDisk { source, .. } | Error::TakeDown { source, .. } => {
            source.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error())
        }
        Error::Source(error) => error.is_transient(),
        Error::Target(error) => error.is_transient(),
        Error::Encrypt(EncryptError::Escrow { is_transient, .. }) => *is_transient,
        Error::Capture(error) => error.is_transient(),
        _ => false,
    }
}
