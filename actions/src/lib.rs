//! The actions of slipway: what it does to a machine's disks.
//!
//! This is the only crate that touches disks, and it knows nothing about the server. Its input is an
//! [`Action`](slipway_protocol::Action). It emits [`Report`]s while it runs, and ends with [`Done`] or an [`Error`]. It
//! runs as root, in an initramfs with nothing else in it or by hand on a running system.
//!
//! Each folder is a layer and only uses the layers before it: `error`, `sys`; `machine`; `disk`; `fetch`; `stream`;
//! `target`; `action`; `host`.

#![deny(clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests"))]

mod action;
mod disk;
mod error;
mod fetch;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod machine;
mod random;
mod report;
mod stream;
mod sys;
mod target;
mod text;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::time::Duration;

use slipway_protocol::{Stage, StreamImage};

pub use action::{Done, Next, foresee, if_stopped, in_target, names_present_disks, run};
pub use disk::choose::{Verdict, choose, named, survey};
pub use disk::expected::{Expected, expected_disks};
pub use disk::list::list_disks;
pub use disk::previous_install::FormerPartitions;
pub use disk::probe::{Place, probe, table_fault};
pub use error::{
    BootError, CaptureError, EncryptError, EraseError, Error, FetchError, ImageError, PartitionError, Refusal,
    SourceError, TargetError, certificate_verdict, is_transient,
};
pub use fetch::http_proxy;
pub use fetch::retry::back_off;
pub use host::{Host, HostOptions};
pub use machine::{Cancel, Candidate, Machine, Request, Response, Setup, Upload, UploadError};
pub use report::{Report, Tell};
pub use sys::console::redirect_kernel_messages;
pub use target::config_drive::{ConfigDrive, ConfigDriveError};

/// Loads a kernel with an initramfs and a command line into memory, for the service manager of this system to start
/// (kexec_file_load(2)).
pub fn load_kernel(kernel: &File, initrd: &File, cmdline: &CStr) -> io::Result<()> {
    sys::kexec::load(kernel, Some(initrd), cmdline)
}

/// Removes a loaded kernel from memory.
pub fn unload_kernel() -> io::Result<()> {
    sys::kexec::unload()
}

/// Measures how long one stage of `stream-image` takes by itself: the best that machine, network and image can reach.
/// `Write` needs a disk and destroys its content. The other stages do not touch any disk. See [`Stage`] for each of
/// them.
pub fn measure(stage: Stage, image: &StreamImage, machine: &dyn Machine) -> Result<Duration, Error> {
    let disk = match stage {
        Stage::Write => Some(disk::choose::open(&image.disk, disk::open::Access::Write, machine, &mut |_| {})?),
        _ => None,
    };
    stream::measure::run(stage, image, disk.as_ref(), machine)
}
