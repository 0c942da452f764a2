//! The command line of each action.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use slipway_protocol::{BootPosition, Digest, EraseMode, FileSystemKind, NewPartition, PartitionSize, SeedPlace};

#[derive(Args)]
pub struct ActionArguments {
    #[command(subcommand)]
    pub(super) action: ActionCommand,
    /// Print reports and the result as JSON lines
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Do not ask before a disk is overwritten
    #[arg(long, global = true)]
    pub(super) yes: bool,
}

#[derive(Subcommand)]
pub(super) enum ActionCommand {
    /// Take away what is on a disk
    EraseDisk {
        /// The disk, such as /dev/nvme0n1
        #[arg(long)]
        disk: String,
        /// How thoroughly
        #[arg(long, value_enum, default_value_t = Mode::Metadata)]
        mode: Mode,
        /// What to do instead where the disk cannot do that; several are tried in their order
        #[arg(long, value_enum, value_delimiter = ',')]
        fallback: Vec<Mode>,
    },
    /// Put an image on a disk, verified
    StreamImage(Box<StreamArguments>),
    /// Give a disk a new partition table
    Partition {
        /// The disk, such as /dev/nvme0n1
        #[arg(long)]
        disk: String,
        /// A partition as TYPE:SIZE or TYPE:SIZE:LABEL, such as esp:512MiB or root:rest:system; may be given several times
        #[arg(long, required = true, value_parser = new_partition)]
        new: Vec<NewPartition>,
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
    /// Have the installed system report its boots until it runs
    BootReporter(BootReporterArguments),
    /// Encrypt the root file system of the installed system, with a key that the TPM keeps
    EncryptRoot(EncryptArguments),
    /// Store a disk as an image, which only reads it
    CaptureDisk {
        /// The disk, such as /dev/nvme0n1
        #[arg(long)]
        disk: String,
        /// File the image becomes, compressed with zstd; there must be none yet
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
    /// Have the firmware start the installed system
    EfiBootOrder {
        /// The disk that carries the image
        #[arg(long)]
        disk: String,
        /// Where the disk comes in the order
        #[arg(long, value_enum, default_value_t = Position::First)]
        position: Position,
        /// Path of the boot loader on the EFI system partition; without it the one the system brought
        #[arg(long)]
        loader: Option<String>,
        /// What the firmware calls the entry; without it the name of the installed system
        #[arg(long)]
        label: Option<String>,
    },
    /// Load the installed kernel, to be started without the firmware
    Kexec {
        /// The disk that carries the image
        #[arg(long)]
        disk: String,
        /// Path of the kernel in the installed system; without it that of the default boot entry
        #[arg(long, requires = "cmdline")]
        kernel: Option<String>,
        /// Path of its initramfs
        #[arg(long, requires = "kernel")]
        initrd: Option<String>,
        /// Command line in place of the entry's
        #[arg(long, allow_hyphen_values = true)]
        cmdline: Option<String>,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum Position {
    /// Before all others, from now on
    First,
    /// Before all others the next time only
    Next,
}

impl From<Position> for BootPosition {
    fn from(position: Position) -> Self {
        match position {
            Position::First => Self::First,
            Position::Next => Self::Next,
        }
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum Mode {
    /// Head, tail and every signature
    Metadata,
    /// Every block is given back to the disk
    Discard,
    /// Every byte
    Zero,
    /// The disk's own erase of all its media
    Secure,
}

impl From<Mode> for EraseMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Metadata => Self::Metadata,
            Mode::Discard => Self::Discard,
            Mode::Zero => Self::Zero,
            Mode::Secure => Self::Secure,
        }
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum VerifyMode {
    /// The disk is believed
    None,
    /// Everything is read back past the page cache and compared
    Readback,
}

#[derive(Args)]
pub(super) struct StreamArguments {
    /// https://, file:// or a path; http:// only with a digest; or oci://REGISTRY/REPOSITORY:TAG
    #[arg(long)]
    pub(super) url: String,
    /// File with USERNAME:PASSWORD for the registry
    #[arg(long, value_name = "FILE")]
    pub(super) registry_auth: Option<PathBuf>,
    /// Another place of the same bytes, for when the URL fails; may be given several times, in the order to try them
    #[arg(long, value_name = "URL")]
    pub(super) mirror: Vec<String>,
    /// File with CA certificates to trust instead of the system's
    #[arg(long)]
    pub(super) ca: Option<PathBuf>,
    /// SHA-256 of the stream as delivered
    #[arg(long, group = "delivered")]
    pub(super) sha256: Option<String>,
    /// SHA-384 of the stream as delivered
    #[arg(long, group = "delivered")]
    pub(super) sha384: Option<String>,
    /// SHA-512 of the stream as delivered
    #[arg(long, group = "delivered")]
    pub(super) sha512: Option<String>,
    /// List of sums with the digest of the stream beside the file name of the URL; http:// only with a signature
    #[arg(long, value_name = "URL", group = "delivered")]
    pub(super) sums: Option<String>,
    /// Detached signature of the list of sums if there is one, else of the stream
    #[arg(long, value_name = "URL", requires = "public_key")]
    pub(super) signature: Option<String>,
    /// Key of minisign or Ed25519 to verify the signature with, or a file with it
    #[arg(long, value_name = "KEY|FILE", requires = "signature")]
    pub(super) public_key: Option<String>,
    /// SHA-256 of the raw image
    #[arg(long, group = "raw")]
    pub(super) raw_sha256: Option<String>,
    /// SHA-384 of the raw image
    #[arg(long, group = "raw")]
    pub(super) raw_sha384: Option<String>,
    /// SHA-512 of the raw image
    #[arg(long, group = "raw")]
    pub(super) raw_sha512: Option<String>,
    /// Check the disk too: readback reads everything again
    #[arg(long, value_enum, default_value_t = VerifyMode::None)]
    pub(super) verify: VerifyMode,
    /// Block map of the raw image, as bmaptool makes it: only what it lists is written; https:// or a file
    #[arg(long, value_name = "URL")]
    pub(super) bmap: Option<String>,
    /// Size of the raw image in bytes
    #[arg(long)]
    pub(super) raw_size: Option<u64>,
    /// The disk, such as /dev/nvme0n1
    #[arg(long)]
    pub(super) disk: String,
    /// Leave the last partition as large as it is in the image
    #[arg(long)]
    pub(super) no_grow: bool,
}

#[derive(Args)]
pub(super) struct MakeArguments {
    /// The disk, such as /dev/nvme0n1
    #[arg(long)]
    pub(super) disk: String,
    /// Number of the partition, from 1, or its label; without it, the whole of an array or a volume
    #[arg(long)]
    pub(super) partition: Option<String>,
    /// What is made
    #[arg(long, value_enum)]
    pub(super) kind: Kind,
    /// Label of the file system
    #[arg(long)]
    pub(super) label: Option<String>,
    /// UUID of the file system; a random one without it
    #[arg(long)]
    pub(super) uuid: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum Kind {
    /// Made by mke2fs of e2fsprogs
    Ext4,
    /// FAT32
    Vfat,
    /// Swap space
    Swap,
    /// Made by mkfs.xfs of xfsprogs
    Xfs,
}

impl From<Kind> for FileSystemKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Ext4 => Self::Ext4,
            Kind::Vfat => Self::Vfat,
            Kind::Swap => Self::Swap,
            Kind::Xfs => Self::Xfs,
        }
    }
}

/// Reads TYPE:SIZE or TYPE:SIZE:LABEL.
fn new_partition(text: &str) -> Result<NewPartition, String> {
    let mut parts = text.splitn(3, ':').map(str::to_owned);
    let (Some(r#type), Some(size)) = (parts.next(), parts.next()) else {
        return Err("give TYPE:SIZE or TYPE:SIZE:LABEL".to_owned());
    };
    Ok(NewPartition { r#type, size: PartitionSize::Text(size), label: parts.next(), uuid: None })
}

#[derive(Args)]
pub(super) struct SeedArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(super) disk: String,
    /// instance-id of the meta-data; a new one has cloud-init run again
    #[arg(long)]
    pub(super) instance_id: String,
    /// local-hostname of the meta-data
    #[arg(long)]
    pub(super) hostname: Option<String>,
    /// File with user-data
    #[arg(long)]
    pub(super) user_data: Option<PathBuf>,
    /// File with vendor-data
    #[arg(long)]
    pub(super) vendor_data: Option<PathBuf>,
    /// File with a network configuration
    #[arg(long)]
    pub(super) network_config: Option<PathBuf>,
    /// Where it is put
    #[arg(long, value_enum, default_value_t = SeedPlaceArgument::Auto)]
    pub(super) seed: SeedPlaceArgument,
    /// Public key of SSH that may log in, a line; may be given several times
    #[arg(long, value_name = "LINE")]
    pub(super) ssh_key: Vec<String>,
    /// Have the installed system report here that it is up
    #[arg(long)]
    pub(super) phone_home_url: Option<String>,
    /// File with CA certificates a system that Ignition sets up is to trust there
    #[arg(long, requires = "phone_home_url")]
    pub(super) ca: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(super) enum SeedPlaceArgument {
    /// Where the installed system looks for it
    Auto,
    /// In the root file system
    Root,
    /// In a partition with the label CIDATA, made in free space if there is none
    Cidata,
    /// Where Ignition looks for its config
    Ignition,
}

impl From<SeedPlaceArgument> for SeedPlace {
    fn from(place: SeedPlaceArgument) -> Self {
        match place {
            SeedPlaceArgument::Auto => Self::Auto,
            SeedPlaceArgument::Root => Self::Root,
            SeedPlaceArgument::Cidata => Self::Cidata,
            SeedPlaceArgument::Ignition => Self::Ignition,
        }
    }
}

#[derive(Args)]
#[command(group(ArgGroup::new("change").required(true).multiple(true).args(["delete", "replace", "append_if_missing", "append"])))]
pub(super) struct KernelArgsArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(super) disk: String,
    /// An argument to take away, or a key to take away with whatever value; may be given several times, as may the others
    #[arg(long, value_name = "ARG|KEY", allow_hyphen_values = true)]
    pub(super) delete: Vec<String>,
    /// An argument, or a key with whatever value, and the argument to have in its place
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], allow_hyphen_values = true)]
    pub(super) replace: Vec<String>,
    /// An argument to add at the end of the command line, except where it is there already
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(super) append_if_missing: Vec<String>,
    /// An argument to have at the end of the command line; one that is there already is moved
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(super) append: Vec<String>,
}

#[derive(Args)]
#[command(group(ArgGroup::new("source").required(true).args(["content", "from"])))]
pub(super) struct WriteArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(super) disk: String,
    /// Number, name or label of the partition instead of the root file system
    #[arg(long)]
    pub(super) partition: Option<String>,
    /// Path of the file there
    #[arg(long)]
    pub(super) path: String,
    /// What it is to hold, as text
    #[arg(long, allow_hyphen_values = true)]
    pub(super) content: Option<String>,
    /// Where that is fetched from: https://, file:// or a path; http:// only with a digest
    #[arg(long)]
    pub(super) from: Option<String>,
    /// Digest of what is fetched, such as sha256:HEX
    #[arg(long, requires = "from")]
    pub(super) digest: Option<Digest>,
    /// File with CA certificates to trust instead of the system's
    #[arg(long, requires = "from")]
    pub(super) ca: Option<PathBuf>,
    /// User it belongs to, by number or by a name the installed system knows
    #[arg(long)]
    pub(super) owner: Option<String>,
    /// Group it belongs to, likewise
    #[arg(long)]
    pub(super) group: Option<String>,
    /// Its mode in octal digits
    #[arg(long)]
    pub(super) mode: Option<String>,
    /// Mode of directories that have to be made, in octal digits
    #[arg(long)]
    pub(super) dir_mode: Option<String>,
}

#[derive(Args)]
pub(super) struct UnpackArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(super) disk: String,
    /// Number, name or label of the partition instead of the root file system
    #[arg(long)]
    pub(super) partition: Option<String>,
    /// Directory there
    #[arg(long, default_value = "/")]
    pub(super) directory: String,
    /// https://, file:// or a path; http:// only with a digest
    #[arg(long)]
    pub(super) url: String,
    /// Digest of the archive as delivered, such as sha256:HEX
    #[arg(long)]
    pub(super) digest: Option<Digest>,
    /// File with CA certificates to trust instead of the system's
    #[arg(long)]
    pub(super) ca: Option<PathBuf>,
    /// Make the device nodes the archive has
    #[arg(long)]
    pub(super) devices: bool,
}

#[derive(Args)]
#[command(group(ArgGroup::new("what").required(true).args(["script", "command"])))]
pub(super) struct RunArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(super) disk: String,
    /// A variable of its environment; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(super) env: Vec<(String, String)>,
    /// File with a script for the installed system's /bin/sh -e
    #[arg(long)]
    pub(super) script: Option<PathBuf>,
    /// Program and arguments, after --
    #[arg(last = true)]
    pub(super) command: Vec<String>,
}

#[derive(Args)]
pub(super) struct BootReporterArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(super) disk: String,
    /// Base URL of the server
    #[arg(long)]
    pub(super) server: String,
    /// File with the token of a run, good for its boot reporter
    #[arg(long)]
    pub(super) token_file: PathBuf,
    /// File with the CA certificate that signed the server's
    #[arg(long)]
    pub(super) ca: PathBuf,
    /// Hours of a boot after which it gives up
    #[arg(long, default_value_t = 1)]
    pub(super) hours: u32,
    /// Seconds between two logs
    #[arg(long, default_value_t = 600)]
    pub(super) every: u32,
}

#[derive(Args)]
pub(super) struct EncryptArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(super) disk: String,
    /// File the recovery key is written to, for root alone; there must be none yet
    #[arg(long, value_name = "FILE")]
    pub(super) recovery_key: PathBuf,
    /// Registers that must be as they are now for the TPM to give out the key
    #[arg(long, value_delimiter = ',', default_value = "7")]
    pub(super) pcrs: Vec<u32>,
    /// Leave the root partition as large as it is
    #[arg(long)]
    pub(super) no_grow: bool,
    /// The TPM
    #[arg(long, value_name = "DEVICE", default_value = "/dev/tpmrm0")]
    pub(super) tpm: PathBuf,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("there is no \"=\" in it")?;
    Ok((name.to_owned(), value.to_owned()))
}
