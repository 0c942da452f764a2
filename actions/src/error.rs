//! Errors of actions.

mod advice;
mod boot;
mod capture;
mod certificate;
mod encrypt;
mod erase;
mod fetch;
mod image;
mod partition;
mod source;
mod target;

use std::io;

pub(crate) use self::advice::{Tried, advised};
pub(crate) use self::fetch::is_cut_off;
pub use boot::BootError;
pub use capture::CaptureError;
pub use certificate::certificate_verdict;
pub use encrypt::EncryptError;
pub use erase::EraseError;
pub use fetch::{FetchError, Refusal};
pub use image::ImageError;
pub use partition::PartitionError;
pub use source::SourceError;
pub use target::TargetError;

/// Why an action failed. Messages name the operation and its object; the cause is the source.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// sysfs or procfs could not be read.
    #[error("listing the disks of this machine")]
    ListDisks { source: io::Error },
    /// The hints do not select exactly one disk.
    #[error("choosing a disk: {reason}")]
    ChooseDisk {
        /// The hints, and for each disk why it was not chosen.
        reason: String,
    },
    /// The disk could not be opened.
    #[error("opening {disk}")]
    OpenDisk { disk: String, source: io::Error },
    /// A read from the disk failed.
    #[error("reading {disk} at byte {offset}")]
    ReadDisk { disk: String, offset: u64, source: io::Error },
    /// A write to the disk failed.
    #[error("writing {disk} at byte {offset}")]
    WriteDisk { disk: String, offset: u64, source: io::Error },
    /// The disk did not confirm that all data is stored.
    #[error("flushing {disk}")]
    FlushDisk { disk: String, source: io::Error },
    /// The disk failed because it disappeared.
    #[error(
        "using {disk}: the disk vanished: it was pulled out, or it lost power or its connection; check slot, cable and \
         controller"
    )]
    Vanished {
        disk: String,
        /// The operation that failed, with the error of the kernel.
        source: Box<Error>,
    },
    /// Data read back from the disk differs from the data written.
    #[error(
        "reading {disk} back: the {len} bytes from byte {offset} differ from what was written; the disk or its cable \
         is bad, or the disk has less room than it reports: replace it"
    )]
    ReadBack {
        disk: String,
        offset: u64,
        /// Length of the read in bytes.
        len: u64,
    },
    /// The kernel provided no random numbers.
    #[error("asking the kernel for random numbers")]
    Random,
    /// Something on the disk could not be taken down.
    #[error("releasing {disk}: {what}")]
    TakeDown { disk: String, what: String, source: io::Error },
    /// Something on the disk is of a kind that cannot be taken down.
    #[error("releasing {disk}: {holder} cannot be taken down; release it by hand, or choose another disk")]
    Held { disk: String, holder: String },
    /// The inputs of an action are invalid.
    #[error("reading the inputs of {action}: it {}", problems.join("; it "))]
    Inputs { action: &'static str, problems: Vec<String> },
    /// An error about partitions, their contents or the partition table.
    #[error(transparent)]
    Partitions(#[from] PartitionError),
    /// An error in fetching, or about the source that the step names.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// An error about the image itself.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// An error in erasing.
    #[error(transparent)]
    Erase(#[from] EraseError),
    /// An error in encrypting the root file system.
    #[error(transparent)]
    Encrypt(#[from] EncryptError),
    /// An error about the installed system and its files.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// An error about how the machine and the installed system start.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// An error in capturing a disk.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The action was asked to stop, for example because its time was up.
    #[error("stopping on request")]
    Cancelled,
}

/// Whether the same action may succeed if it is run again. True for network errors and for a disk in use. False for a
/// wrong digest, a missing disk, a damaged image, and a disk that fails or disappears.
pub fn is_transient(error: &Error) -> bool {
    match error {
        Error::OpenDisk { source, .. } | Error::TakeDown { source, .. } => source.kind() == io::ErrorKind::ResourceBusy,
        Error::Source(error) => error.is_transient(),
        Error::Target(error) => error.is_transient(),
        Error::Encrypt(EncryptError::NotStored { is_transient, .. }) => *is_transient,
        Error::Capture(error) => error.is_transient(),
        _ => false,
    }
}
