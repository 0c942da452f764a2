//! The command line of each action.

mod disk;
mod source;
mod target;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use slipway_protocol::NewPartition;

use disk::{MakeArguments, Mode, StreamArguments, new_partition};
use target::{
    BootReporterArguments, EncryptArguments, KernelArgsArguments, Position, RunArguments, SeedArguments,
    UnpackArguments, WriteArguments,
};

pub(super) use disk::VerifyMode;

#[derive(Args)]
pub struct ActionArguments {
    #[command(subcommand)]
    pub(super) action: ActionCommand,
    /// Print reports and the result as JSON lines
    #[arg(long, global = true)]
    pub(super) json: bool,
}

/// Argument of actions that overwrite a disk.
#[derive(Args)]
pub(super) struct Overwriting {
    /// Do not ask before the disk is overwritten
    #[arg(long)]
    pub(super) yes: bool,
}

#[derive(Subcommand)]
pub(super) enum ActionCommand {
    /// Erase a disk
    EraseDisk {
        /// The disk, such as /dev/nvme0n1
        #[arg(long)]
        disk: String,
        /// How thoroughly
        #[arg(long, value_enum, default_value_t = Mode::Metadata)]
        mode: Mode,
        /// Modes to try, in order, if the disk does not support that mode
        #[arg(long, value_enum, value_delimiter = ',')]
        fallback: Vec<Mode>,
        #[command(flatten)]
        overwriting: Overwriting,
    },
    /// Write a verified image to a disk
    StreamImage(Box<StreamArguments>),
    /// Give a disk a new partition table
    Partition {
        /// The disk, such as /dev/nvme0n1
        #[arg(long)]
        disk: String,
        /// A partition as TYPE:SIZE or TYPE:SIZE:LABEL, such as esp:512MiB or root:rest:system; may be given several
        /// times
        #[arg(long, required = true, value_parser = new_partition)]
        new: Vec<NewPartition>,
        #[command(flatten)]
        overwriting: Overwriting,
    },
    /// Make a file system in a partition
    MakeFilesystem(MakeArguments),
    /// Give the installed system its user-data
    SeedCloudInit(SeedArguments),
    /// Change the kernel arguments of the installed system's boot entries
    KernelArgs(KernelArgsArguments),
    /// Write a file of the installed system
    WriteFile(WriteArguments),
    /// Unpack a tar archive in the installed system
    UnpackArchive(UnpackArguments),
    /// Run a command in the installed system
    RunInTarget(RunArguments),
    /// Make the installed system report its boots until it runs
    BootReporter(BootReporterArguments),
    /// Encrypt the root file system of the installed system, with a key in the TPM
    EncryptRoot(EncryptArguments),
    /// Store a disk as an image; the disk is only read
    CaptureDisk {
        /// The disk, such as /dev/nvme0n1
        #[arg(long)]
        disk: String,
        /// Image file, compressed with zstd; it must not exist yet
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
    /// Make the firmware start the installed system
    EfiBootOrder {
        /// The disk that carries the image
        #[arg(long)]
        disk: String,
        /// Position of the disk in the boot order
        #[arg(long, value_enum, default_value_t = Position::First)]
        position: Position,
        /// Path of the boot loader on the EFI system partition; without it, the one of the installed system
        #[arg(long)]
        loader: Option<String>,
        /// Name of the boot entry; without it, the name of the installed system
        #[arg(long)]
        label: Option<String>,
    },
    /// Load the installed kernel for a start without the firmware
    Kexec {
        /// The disk that carries the image
        #[arg(long)]
        disk: String,
        /// Path of the kernel in the installed system; without it, that of the default boot entry
        #[arg(long, requires = "cmdline")]
        kernel: Option<String>,
        /// Path of its initramfs in the installed system
        #[arg(long, requires = "kernel")]
        initrd: Option<String>,
        /// Command line instead of the boot entry's
        #[arg(long, allow_hyphen_values = true)]
        cmdline: Option<String>,
    },
}
