//! What slipway does to a machine's disks, one file an action.
//!
//! This is the only crate that touches disks, and it knows nothing of the server: an [`Action`] goes in, [`Report`]s come
//! out while it runs, and [`Done`] or an [`Error`] at the end. It runs as root in an initramfs with nothing else in it, and
//! by hand on a running system.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests"))]

mod boot_config;
mod boot_entry;
mod boot_reporter;
mod capture_disk;
mod capture_file;
mod choose;
mod crc32;
pub mod disks;
mod efi;
mod efi_boot_order;
mod encrypt_root;
mod erase_disk;
mod error;
mod fetch;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod grow;
mod host;
mod kernel_args;
mod kexec;
mod machine;
mod make_filesystem;
mod mount;
mod open_disk;
mod os_release;
mod partition;
mod partitions;
mod pe;
mod probe;
mod random;
mod reboot;
mod run_in_target;
mod seal;
mod seed_cloud_init;
#[cfg(not(feature = "fuzzing"))]
mod signature;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod signature;
mod stream;
mod stream_image;
#[cfg(not(feature = "fuzzing"))]
mod sums;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod sums;
mod sys;
mod take_down;
mod target;
mod target_root;
mod text;
mod unpack_archive;
mod volume;
mod write_file;

use std::time::Duration;

use slipway_protocol::{Action, Outcome, Progress, Stage, StreamImage};

pub use choose::{Verdict, choose, named, survey};
pub use disks::list_disks;
pub use efi::former::FormerPartitions;
pub use encrypt_root::TpmError;
pub use error::{
    BootError, CaptureError, EncryptError, EraseError, Error, ImageError, PartitionError, SourceError, TargetError,
    is_retryable,
};
pub use fetch::{FetchError, Refusal, Request};
pub use host::{Host, HostOptions};
pub use machine::{Cancel, Candidate, Machine, Response, Upload, UploadError};
pub use probe::{Place, probe};
pub use run_in_target::in_target;
pub use signature::Error as SignatureError;
pub use stream::bmap::Error as BmapError;
pub use sums::Error as SumsError;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use stream::bmap;
#[doc(hidden)]
pub use stream::qcow2;

/// What an action says while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Something worth keeping, such as the disk chosen and why.
    Note(String),
    /// How far it is; only the newest matters.
    Progress(Progress),
}

/// What an action that succeeded leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// For the operator.
    pub outcome: Outcome,
    /// For the workflow.
    pub next: Next,
}

/// What follows an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next step.
    Continue,
    /// A reboot, once everything has been reported. Actions never reboot by themselves.
    Reboot,
    /// The start of the kernel that is loaded, once everything has been reported.
    Kexec,
}

impl Done {
    fn go_on(summary: String, warnings: Vec<String>) -> Self {
        Self { outcome: Outcome { summary, warnings, ..Outcome::default() }, next: Next::Continue }
    }
}

/// How long one stage of `stream-image` takes by itself: what a machine, a network and an image can reach at best. `Write` needs
/// a disk, whose content is lost; the others leave every disk alone. See [`Stage`] for what each is.
pub fn measure(stage: Stage, image: &StreamImage, machine: &dyn Machine) -> Result<Duration, Error> {
    let disk = match stage {
        Stage::Write => Some(choose::open(&image.disk, open_disk::Access::Write, machine, &mut |_| {})?),
        _ => None,
    };
    stream::measure::run(stage, image, disk.as_ref(), machine)
}

/// Runs one action to its end on the calling thread.
pub fn run(action: &Action, machine: &dyn Machine, report: &mut dyn FnMut(Report)) -> Result<Done, Error> {
    match action {
        Action::EraseDisk(inputs) => erase_disk::run(inputs, machine, report),
        Action::StreamImage(inputs) => stream_image::run(inputs, machine, report),
        Action::Partition(inputs) => partition::run(inputs, machine, report),
        Action::MakeFileSystem(inputs) => make_filesystem::run(inputs, machine, report),
        Action::SeedCloudInit(inputs) => seed_cloud_init::run(inputs, machine, report),
        Action::KernelArgs(inputs) => kernel_args::run(inputs, machine, report),
        Action::WriteFile(inputs) => write_file::run(inputs, machine, report),
        Action::UnpackArchive(inputs) => unpack_archive::run(inputs, machine, report),
        Action::RunInTarget(inputs) => run_in_target::run(inputs, machine, report),
        Action::EncryptRoot(inputs) => encrypt_root::run(inputs, machine, report),
        Action::CaptureDisk(inputs) => capture_disk::run(inputs, machine, report),
        Action::BootReporter(inputs) => boot_reporter::run(inputs, machine, report),
        Action::EfiBootOrder(inputs) => efi_boot_order::run(inputs, machine, report),
        Action::Kexec(inputs) => kexec::run(inputs, machine, report),
        Action::Reboot(_) => Ok(reboot::run()),
    }
}
