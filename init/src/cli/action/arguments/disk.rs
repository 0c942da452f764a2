//! Arguments of actions that fill or erase a disk.

use std::path::PathBuf;

use clap::Args;
use slipway_protocol::{EraseMode, FileSystemKind, NewPartition, PartitionSize};

use super::Overwriting;
use super::source::{SourceArguments, place};

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Mode {
    /// Head, tail and every signature
    Metadata,
    /// Discard every block
    Discard,
    /// Every byte
    Zero,
    /// The disk's own erase command for all its media
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
pub(crate) enum VerifyMode {
    /// Do not read back
    None,
    /// Read everything back past the page cache and compare it
    Readback,
}

#[derive(Args)]
pub(crate) struct StreamArguments {
    /// https://, file:// or a path; http:// only with a digest; or oci://REGISTRY/REPOSITORY:TAG
    #[arg(long, value_parser = place)]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// File with CA certificates to trust instead of the system's
    #[arg(long)]
    pub(crate) ca: Option<PathBuf>,
    /// SHA-256 of the stream as delivered
    #[arg(long, group = "delivered")]
    pub(crate) sha256: Option<String>,
    /// SHA-384 of the stream as delivered
    #[arg(long, group = "delivered")]
    pub(crate) sha384: Option<String>,
    /// SHA-512 of the stream as delivered
    #[arg(long, group = "delivered")]
    pub(crate) sha512: Option<String>,
    /// SHA-256 of the raw image
    #[arg(long, group = "raw")]
    pub(crate) raw_sha256: Option<String>,
    /// SHA-384 of the raw image
    #[arg(long, group = "raw")]
    pub(crate) raw_sha384: Option<String>,
    /// SHA-512 of the raw image
    #[arg(long, group = "raw")]
    pub(crate) raw_sha512: Option<String>,
    /// How to check the disk after writing
    #[arg(long, value_enum, default_value_t = VerifyMode::None)]
    pub(crate) verify: VerifyMode,
    /// Block map of the raw image, as bmaptool makes it: only what it lists is written; https:// or a file
    #[arg(long, value_name = "URL", value_parser = place)]
    pub(crate) bmap: Option<String>,
    /// Size of the raw image in bytes
    #[arg(long)]
    pub(crate) raw_size: Option<u64>,
    /// The disk, such as /dev/nvme0n1
    #[arg(long)]
    pub(crate) disk: String,
    /// Leave the last partition as large as it is in the image
    #[arg(long)]
    pub(crate) no_grow: bool,
    #[command(flatten)]
    pub(crate) overwriting: Overwriting,
}

#[derive(Args)]
pub(crate) struct MakeArguments {
    /// The disk, such as /dev/nvme0n1
    #[arg(long)]
    pub(crate) disk: String,
    /// Number of the partition, from 1, or its label; without it, the whole of an array or a volume
    #[arg(long)]
    pub(crate) partition: Option<String>,
    /// What is made
    #[arg(long, value_enum)]
    pub(crate) kind: Kind,
    /// Label of the file system
    #[arg(long)]
    pub(crate) label: Option<String>,
    /// UUID of the file system; without it, a random one
    #[arg(long)]
    pub(crate) uuid: Option<String>,
    #[command(flatten)]
    pub(crate) overwriting: Overwriting,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Kind {
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
pub(super) fn new_partition(text: &str) -> Result<NewPartition, String> {
    let mut parts = text.splitn(3, ':').map(str::to_owned);
    let (Some(r#type), Some(size)) = (parts.next(), parts.next()) else {
        return Err("give TYPE:SIZE or TYPE:SIZE:LABEL".to_owned());
    };
    Ok(NewPartition { r#type, size: PartitionSize::Text(size), label: parts.next(), uuid: None })
}
