//! Arguments of actions that erase, fill or read a disk.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use slipway_actions::HostOptions;
use slipway_protocol::shared::given::is_blank;
use slipway_protocol::{
    Action, Algorithm, CaptureDisk, Digest, EraseDisk, EraseMode, FileSystemKind, MakeFileSystem, NewPartition,
    Partition, PartitionChoice, PartitionSize, StreamImage, Verify,
};

use super::source::{SourceArguments, place};
use super::{AnyDisk, ByHand, Overwriting, hints};
use crate::cli::{Choice, one_of};

#[derive(Args)]
pub(super) struct EraseArguments {
    #[command(flatten)]
    target: AnyDisk,
    /// How thoroughly to erase
    #[arg(long, value_parser = one_of(MODES), default_value = "metadata")]
    mode: EraseMode,
    /// Modes to try, in order, if the disk does not support the first
    #[arg(long, value_parser = one_of(MODES), value_delimiter = ',')]
    fallback: Vec<EraseMode>,
    #[command(flatten)]
    overwriting: Overwriting,
}

const MODES: &[Choice<EraseMode>] = &[
    ("metadata", EraseMode::Metadata, "Overwrite start, end and every known signature"),
    ("discard", EraseMode::Discard, "Discard every block"),
    ("zero", EraseMode::Zero, "Overwrite every byte with zeros"),
    ("secure", EraseMode::Secure, "Use the disk's own erase command"),
];

pub(super) fn erase(given: EraseArguments) -> Result<ByHand> {
    let disk = given.target.disk;
    let (disk_hints, mode, fallback) = (hints(disk.clone()), given.mode, given.fallback);
    let erase = EraseDisk { disk: disk_hints, mode, fallback, ..EraseDisk::default() };
    Ok(ByHand { overwritten: given.overwriting.of(disk, None), ..Action::EraseDisk(erase).into() })
}

#[derive(Args)]
pub(super) struct StreamArguments {
    /// https://, file:// or a path, or - for standard input; http:// only with a digest; or
    /// oci://REGISTRY/REPOSITORY:TAG
    #[arg(long, value_parser = place)]
    url: String,
    #[command(flatten)]
    source: SourceArguments,
    /// Digest of the stream as delivered, such as sha256:HEX
    #[arg(long, group = "delivered")]
    digest: Option<Digest>,
    /// SHA-256 of the stream as delivered
    #[arg(long, hide = true, group = "delivered")]
    sha256: Option<String>,
    /// SHA-384 of the stream as delivered
    #[arg(long, hide = true, group = "delivered")]
    sha384: Option<String>,
    /// SHA-512 of the stream as delivered
    #[arg(long, hide = true, group = "delivered")]
    sha512: Option<String>,
    /// Digest of the raw image, such as sha256:HEX
    #[arg(long, group = "raw")]
    raw_digest: Option<Digest>,
    /// SHA-256 of the raw image
    #[arg(long, hide = true, group = "raw")]
    raw_sha256: Option<String>,
    /// SHA-384 of the raw image
    #[arg(long, hide = true, group = "raw")]
    raw_sha384: Option<String>,
    /// SHA-512 of the raw image
    #[arg(long, hide = true, group = "raw")]
    raw_sha512: Option<String>,
    /// How to check the disk after writing
    #[arg(long, value_parser = one_of(CHECKS), default_value = "none")]
    verify: Verify,
    /// Block map of the raw image, as bmaptool makes it: only blocks in the map are written; https:// or a file
    #[arg(long, value_name = "URL", value_parser = place)]
    bmap: Option<String>,
    /// Size of the raw image in bytes
    #[arg(long)]
    raw_size: Option<u64>,
    #[command(flatten)]
    target: AnyDisk,
    /// Do not enlarge the last partition to the end of the disk
    #[arg(long)]
    no_grow: bool,
    #[command(flatten)]
    overwriting: Overwriting,
}

const CHECKS: &[Choice<Verify>] = &[
    ("none", Verify::None, "Do not read back"),
    ("readback", Verify::Readback, "Read everything back, bypassing the page cache, and compare it"),
];

pub(super) fn stream(given: StreamArguments) -> Result<ByHand> {
    let (host, disk) = (given.source.host()?, given.target.disk);
    let image = StreamImage {
        url: given.url,
        registry_auth: given.source.registry_auth()?,
        signature: given.source.signature()?,
        mirrors: given.source.mirror,
        sums: given.source.sums,
        digest: digest(given.digest, "--sha", [given.sha256, given.sha384, given.sha512])?,
        raw_digest: digest(given.raw_digest, "--raw-sha", [given.raw_sha256, given.raw_sha384, given.raw_sha512])?,
        bmap: given.bmap,
        raw_size: given.raw_size,
        verify: given.verify,
        ca: None,
        disk: hints(disk.clone()),
        grow: !given.no_grow,
    };
    let overwritten = given.overwriting.of(disk, None);
    Ok(ByHand { action: Action::StreamImage(image), overwritten, host })
}

/// Returns `digest`, or the digest from one of three options of an older spelling. At most one of the four is set.
fn digest(digest: Option<Digest>, option: &str, given: [Option<String>; 3]) -> Result<Option<Digest>> {
    let algorithms = [(Algorithm::Sha256, 256), (Algorithm::Sha384, 384), (Algorithm::Sha512, 512)];
    let found = algorithms.into_iter().zip(given).find_map(|(algorithm, hex)| Some((algorithm, hex?)));
    let Some(((algorithm, bits), hex)) = found else { return Ok(digest) };
    Digest::new(algorithm, &hex).map(Some).with_context(|| format!("reading {option}{bits}"))
}

#[derive(Args)]
pub(super) struct PartitionArguments {
    #[command(flatten)]
    target: AnyDisk,
    /// A partition as TYPE:SIZE or TYPE:SIZE:LABEL, such as esp:512MiB or root:rest:system; may be given several
    /// times
    #[arg(long, required = true, value_parser = new_partition)]
    new: Vec<NewPartition>,
    #[command(flatten)]
    overwriting: Overwriting,
}

pub(super) fn partition(given: PartitionArguments) -> Result<ByHand> {
    let disk = given.target.disk;
    let partition = Partition { disk: hints(disk.clone()), partitions: given.new, ..Partition::default() };
    Ok(ByHand { overwritten: given.overwriting.of(disk, None), ..Action::Partition(partition).into() })
}

/// Reads TYPE:SIZE or TYPE:SIZE:LABEL.
fn new_partition(text: &str) -> Result<NewPartition, String> {
    let mut parts = text.splitn(3, ':').map(str::to_owned);
    let (Some(r#type), Some(size)) = (parts.next(), parts.next()) else {
        return Err("give TYPE:SIZE or TYPE:SIZE:LABEL".to_owned());
    };
    let label = parts.next();
    if label.as_deref().is_some_and(is_blank) {
        return Err("the label is empty: give TYPE:SIZE without the second colon, or a label".to_owned());
    }
    Ok(NewPartition { r#type, size: PartitionSize::Text(size), label, uuid: None })
}

#[derive(Args)]
pub(super) struct MakeArguments {
    #[command(flatten)]
    target: AnyDisk,
    /// Number of the partition, from 1, or its label; without it, the whole array or volume
    #[arg(long)]
    partition: Option<String>,
    /// Type of the file system
    #[arg(long, value_parser = one_of(KINDS))]
    kind: FileSystemKind,
    /// Label of the file system
    #[arg(long)]
    label: Option<String>,
    /// UUID of the file system; without it, a random one
    #[arg(long)]
    uuid: Option<String>,
    #[command(flatten)]
    overwriting: Overwriting,
}

const KINDS: &[Choice<FileSystemKind>] = &[
    ("ext4", FileSystemKind::Ext4, "Made by mke2fs of e2fsprogs"),
    ("vfat", FileSystemKind::Vfat, "FAT32"),
    ("swap", FileSystemKind::Swap, "Swap space"),
    ("xfs", FileSystemKind::Xfs, "Made by mkfs.xfs of xfsprogs"),
];

pub(super) fn make(given: MakeArguments) -> Result<ByHand> {
    let MakeArguments { target: AnyDisk { disk }, partition, kind, label, uuid, overwriting } = given;
    let overwritten = overwriting.of(disk.clone(), partition.as_deref());
    let choice = |text: String| text.parse().map_or(PartitionChoice::Label(text), PartitionChoice::Number);
    let make = MakeFileSystem { disk: hints(disk), partition: partition.map(choice), kind, label, uuid };
    Ok(ByHand { overwritten, ..Action::MakeFileSystem(make).into() })
}

#[derive(Args)]
pub(super) struct CaptureArguments {
    #[command(flatten)]
    target: AnyDisk,
    /// Image file, compressed with zstd; it must not exist yet
    #[arg(long, alias = "to", value_name = "FILE")]
    out: PathBuf,
}

pub(super) fn capture(given: CaptureArguments) -> Result<ByHand> {
    let name = given.out.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let capture = CaptureDisk { disk: hints(given.target.disk), name };
    let host = HostOptions { capture_to: Some(given.out), ..HostOptions::default() };
    Ok(ByHand { host, ..Action::CaptureDisk(capture).into() })
}
