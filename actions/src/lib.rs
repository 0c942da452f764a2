//! What slipway does to a machine's disks.
//!
//! This is the only crate that touches disks, and it knows nothing of the server: an [`Action`](slipway_protocol::Action) goes in,
//! [`Report`]s come out while it runs, and [`Done`] or an [`Error`] at the end. It runs as root in an initramfs with nothing else in
//! it, and by hand on a running system.
//!
//! Each folder is a layer, and uses only those before it: `error`, `sys`; `machine`; `disk`; `fetch`; `stream`; `target`; `action`; `host`.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests"))]

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

use std::time::Duration;

use slipway_protocol::{Stage, StreamImage};

pub use action::{Done, Next, in_target, run};
pub use disk::choose::{Verdict, choose, named, survey};
pub use disk::list::list_disks;
pub use disk::previous_install::FormerPartitions;
pub use disk::probe::{Place, probe};
pub use error::{
    BootError, CaptureError, EncryptError, EraseError, Error, FetchError, ImageError, PartitionError, Refusal,
    SourceError, TargetError, TpmError, is_transient,
};
pub use host::{Host, HostOptions};
pub use machine::{Cancel, Candidate, Machine, Request, Response, Setup, Upload, UploadError};
pub use report::Report;

/// How long one stage of `stream-image` takes by itself: what a machine, a network and an image can reach at best. `Write` needs
/// a disk, whose content is lost; the others leave every disk alone. See [`Stage`] for what each is.
pub fn measure(stage: Stage, image: &StreamImage, machine: &dyn Machine) -> Result<Duration, Error> {
    let disk = match stage {
        Stage::Write => Some(disk::choose::open(&image.disk, disk::open::Access::Write, machine, &mut |_| {})?),
        _ => None,
    };
    stream::measure::run(stage, image, disk.as_ref(), machine)
}
