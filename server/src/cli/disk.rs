//! Options that choose a disk.

use clap::{Args, ValueEnum};
use slipway_protocol::{DiskChoice, DiskHints, TextHint};

/// Names of the options, for argument groups that include them.
pub const DISK_OPTIONS: [&str; 6] =
    ["disk_device", "disk_serial", "disk_wwn", "disk_model", "disk_min_size", "disk_choose"];

/// The options, and a group with all of them.
#[derive(Args)]
#[group(id = "disk_hints", multiple = true)]
pub struct DiskOptions {
    /// The disk's kernel path, or a link to it.
    #[arg(long)]
    disk_device: Option<String>,
    /// The disk's serial number.
    #[arg(long)]
    disk_serial: Option<TextHint>,
    /// The disk's World Wide Name.
    #[arg(long)]
    disk_wwn: Option<TextHint>,
    /// The disk's model.
    #[arg(long)]
    disk_model: Option<TextHint>,
    /// The disk's minimum size in bytes.
    #[arg(long)]
    disk_min_size: Option<u64>,
    /// Which disk to use if several match. By default, several matches are an error.
    #[arg(long, value_enum)]
    disk_choose: Option<Choose>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Choose {
    Only,
    Smallest,
    Largest,
}

impl DiskOptions {
    /// The hints, or `None` if none was given.
    pub fn hints(self) -> Option<DiskHints> {
        let choose = match self.disk_choose {
            None | Some(Choose::Only) => DiskChoice::Only,
            Some(Choose::Smallest) => DiskChoice::Smallest,
            Some(Choose::Largest) => DiskChoice::Largest,
        };
        let hints = DiskHints {
            device: self.disk_device,
            serial: self.disk_serial,
            wwn: self.disk_wwn,
            model: self.disk_model,
            min_size: self.disk_min_size,
            choose,
            ..DiskHints::default()
        };
        (hints != DiskHints::default()).then_some(hints)
    }
}
