//! The actions of a workflow, one module each.

mod boot_reporter;
mod capture_disk;
mod efi_boot_order;
mod encrypt_root;
mod enrol_secure_boot;
mod erase_disk;
mod foresee;
mod kernel_args;
mod kexec;
#[allow(clippy::indexing_slicing, reason = "it fills blocks of its own making")]
mod make_filesystem;
#[allow(clippy::indexing_slicing, reason = "it fills blocks and numbers lists of its own making")]
mod partition;
mod reboot;
mod run_in_target;
mod seed_cloud_init;
mod stopped;
mod stream_image;
#[cfg(not(feature = "fuzzing"))]
mod unpack_archive;
#[cfg(feature = "fuzzing")]
pub(crate) mod unpack_archive;
mod write_file;

use slipway_protocol::{Action, Outcome};

use crate::error::Error;
use crate::machine::Machine;
use crate::report::Tell;

pub use foresee::{foresee, names_present_disks};
pub use run_in_target::in_target;
pub use stopped::if_stopped;

/// The result of an action that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The result shown to the operator.
    pub outcome: Outcome,
    /// What the workflow does next.
    pub next: Next,
}

/// What happens after an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on with the next step.
    Continue,
    /// Reboot, once everything has been reported. Actions never reboot by themselves.
    Reboot,
    /// Start the loaded kernel, once everything has been reported.
    Kexec,
}

impl Done {
    fn go_on(summary: String, warnings: Vec<String>) -> Self {
        Self { outcome: Outcome { summary, warnings, ..Outcome::default() }, next: Next::Continue }
    }

    /// Returns the result of an optional step that could not be done.
    fn left_out(summary: &str, warnings: Vec<String>) -> Self {
        let Self { outcome, next } = Self::go_on(summary.to_owned(), warnings);
        Self { outcome: Outcome { left_out: true, ..outcome }, next }
    }
}

/// Runs one action on the calling thread until it ends. Refuses invalid inputs before anything is touched.
pub fn run(action: &Action, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let problems = action.validate();
    if !problems.is_empty() {
        return Err(Error::Inputs { action: action.name(), problems });
    }
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
        Action::EnrolSecureBoot(inputs) => enrol_secure_boot::run(inputs, machine, report),
        Action::Kexec(inputs) => kexec::run(inputs, machine, report),
        Action::Reboot(_) => Ok(reboot::run()),
    }
}
