//! The command line of each action. Each type of arguments becomes an action in the file that declares it.

mod disk;
mod source;
mod target;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use slipway_actions::HostOptions;
use slipway_protocol::shared::duration;
use slipway_protocol::{Action, DiskHints};

use crate::cli::read_file;

#[derive(Args)]
pub struct ActionArguments {
    #[command(subcommand)]
    action: ActionCommand,
    /// Print reports and the result as JSON lines
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Time limit: seconds, or a number with s, m, h or d; then the action is stopped as by Ctrl-C
    #[arg(long, global = true, value_name = "DURATION", value_parser = time_limit)]
    pub(super) timeout: Option<Duration>,
}

#[derive(Subcommand)]
enum ActionCommand {
    /// Erase a disk
    EraseDisk(disk::EraseArguments),
    /// Write a verified image to a disk
    StreamImage(Box<disk::StreamArguments>),
    /// Write a new partition table to a disk
    Partition(disk::PartitionArguments),
    /// Make a file system in a partition
    MakeFilesystem(disk::MakeArguments),
    /// Write user-data for the installed system
    SeedCloudInit(target::SeedArguments),
    /// Change the kernel arguments of the installed system's boot entries
    KernelArgs(target::KernelArgsArguments),
    /// Write a file of the installed system
    WriteFile(target::WriteArguments),
    /// Unpack a tar archive in the installed system
    UnpackArchive(target::UnpackArguments),
    /// Run a command in the installed system
    RunInTarget(target::RunArguments),
    /// Make the installed system report its boots until it runs
    BootReporter(target::ReporterArguments),
    /// Encrypt the root file system of the installed system, with a key in the TPM
    EncryptRoot(target::EncryptArguments),
    /// Store a disk as an image; the disk is only read
    CaptureDisk(disk::CaptureArguments),
    /// Make the firmware boot the installed system
    EfiBootOrder(target::BootOrderArguments),
    /// Load the installed kernel, to boot it without the firmware
    Kexec(target::KexecArguments),
}

impl ActionArguments {
    /// Returns the action. Reads the files that the arguments name.
    pub(super) fn by_hand(self) -> Result<ByHand> {
        match self.action {
            ActionCommand::EraseDisk(given) => disk::erase(given),
            ActionCommand::StreamImage(given) => disk::stream(*given),
            ActionCommand::Partition(given) => disk::partition(given),
            ActionCommand::MakeFilesystem(given) => disk::make(given),
            ActionCommand::SeedCloudInit(given) => target::seed(given),
            ActionCommand::KernelArgs(given) => target::kernel_args(given),
            ActionCommand::WriteFile(given) => target::write(given),
            ActionCommand::UnpackArchive(given) => target::unpack(given),
            ActionCommand::RunInTarget(given) => target::run(given),
            ActionCommand::BootReporter(given) => target::reporter(given),
            ActionCommand::EncryptRoot(given) => target::encrypt(given),
            ActionCommand::CaptureDisk(given) => disk::capture(given),
            ActionCommand::EfiBootOrder(given) => target::boot_order(given),
            ActionCommand::Kexec(given) => target::kexec(given),
        }
    }
}

/// An action to run by hand.
pub(super) struct ByHand {
    /// The action with its options.
    pub(super) action: Action,
    /// What the action overwrites, if the user has to confirm it.
    pub(super) overwritten: Option<Overwritten>,
    /// What the action needs from this machine: trusted certificates, output files, the TPM.
    pub(super) host: HostOptions,
}

impl From<Action> for ByHand {
    fn from(action: Action) -> Self {
        Self { action, overwritten: None, host: HostOptions::default() }
    }
}

/// What an action overwrites, for the question to the user.
pub(super) struct Overwritten {
    /// The path of the disk.
    pub(super) disk: String,
    /// The disk or its partition, in words.
    pub(super) what: String,
}

/// Argument of actions that overwrite a disk.
#[derive(Args)]
struct Overwriting {
    /// Do not ask before the disk is overwritten
    #[arg(long)]
    yes: bool,
}

impl Overwriting {
    /// Returns what is overwritten (the partition, or the whole disk). `None` with --yes, which the user need not
    /// confirm.
    fn of(&self, disk: String, partition: Option<&str>) -> Option<Overwritten> {
        let what = partition.map_or_else(|| disk.clone(), |partition| format!("partition {partition} of {disk}"));
        (!self.yes).then_some(Overwritten { disk, what })
    }
}

/// Argument of actions that need no installed system.
#[derive(Args)]
struct AnyDisk {
    /// Disk, such as /dev/nvme0n1
    #[arg(long)]
    disk: String,
}

/// Argument of actions that need an installed system.
#[derive(Args)]
struct InstalledDisk {
    /// Disk with the installed system
    #[arg(long)]
    disk: String,
}

/// Makes hints that select the disk with this path.
fn hints(disk: String) -> DiskHints {
    DiskHints { device: Some(disk), ..DiskHints::default() }
}

fn time_limit(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("0 is not a time limit; leave the option out for no limit".to_owned()),
        limit => Ok(limit),
    }
}

/// Reads a file if there is a path.
fn optional(path: &Option<PathBuf>) -> Result<Option<String>> {
    path.as_ref().map(read_file).transpose()
}
