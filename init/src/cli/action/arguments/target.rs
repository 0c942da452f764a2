//! Arguments of actions that change the installed system.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{ArgGroup, Args};
use slipway_actions::HostOptions;
use slipway_protocol::shared::given::is_blank;
use slipway_protocol::{
    Action, BootPosition, BootReporter, Digest, EfiBootOrder, EncryptRoot, KernelArgReplacement, KernelArgs, Kexec,
    NumberOrName, PhoneHome, RunInTarget, Secret, SeedCloudInit, SeedPlace, UnpackArchive, WriteFile,
};

use super::source::{SourceArguments, place};
use super::{ByHand, InstalledDisk, hints, optional};
use crate::cli::{Choice, one_of, read_file};

#[derive(Args)]
pub(super) struct SeedArguments {
    #[command(flatten)]
    target: InstalledDisk,
    /// instance-id in the meta-data; a new one makes cloud-init run again
    #[arg(long)]
    instance_id: String,
    /// local-hostname in the meta-data
    #[arg(long)]
    hostname: Option<String>,
    /// File with user-data or an Ignition config, plain or compressed with gzip
    #[arg(long)]
    user_data: Option<PathBuf>,
    /// File with vendor-data, plain or compressed with gzip
    #[arg(long)]
    vendor_data: Option<PathBuf>,
    /// File with a network configuration, version 1 or 2
    #[arg(long)]
    network_config: Option<PathBuf>,
    /// Where to write the seed
    #[arg(long, value_parser = one_of(PLACES), default_value = "auto")]
    seed: SeedPlace,
    /// SSH public key, as a line of authorized_keys, that may log in; may be given several times
    #[arg(long, value_name = "LINE")]
    ssh_key: Vec<String>,
    /// URL to which the installed system reports that it has booted
    #[arg(long)]
    phone_home_url: Option<String>,
    /// File with CA certificates that a system set up by Ignition trusts for this URL
    #[arg(long, requires = "phone_home_url")]
    ca: Option<PathBuf>,
}

const PLACES: &[Choice<SeedPlace>] = &[
    ("auto", SeedPlace::Auto, "Where the installed system looks for it"),
    ("root", SeedPlace::Root, "In the root file system"),
    ("cidata", SeedPlace::Cidata, "In a partition with the label CIDATA, made in free space if there is none"),
    ("ignition", SeedPlace::Ignition, "Where Ignition looks for its config"),
];

pub(super) fn seed(given: SeedArguments) -> Result<ByHand> {
    let seed = SeedCloudInit {
        disk: hints(given.target.disk),
        seed: given.seed,
        instance_id: given.instance_id,
        hostname: given.hostname,
        user_data: user_data(&given.user_data)?.unwrap_or_default(),
        vendor_data: user_data(&given.vendor_data)?,
        network_config: optional(&given.network_config)?,
        ssh_keys: given.ssh_key,
        phone_home: given.phone_home_url.map(|url| PhoneHome { url, tries: None }),
        ca: optional(&given.ca)?,
    };
    Ok(Action::SeedCloudInit(seed).into())
}

/// Reads user-data or vendor-data from a file, and decompresses it if necessary.
fn user_data(file: &Option<PathBuf>) -> Result<Option<String>> {
    let read = |file: &PathBuf| {
        let reading = || format!("reading {}", file.display());
        let text = slipway_user_data::unpacked(&crate::cli::user_data::read(file)?).with_context(reading)?;
        ensure!(!is_blank(&text), "{}: it is empty", reading());
        anyhow::Ok(text)
    };
    file.as_ref().map(read).transpose()
}

#[derive(Args)]
#[command(group(ArgGroup::new("source").required(true).args(["content", "url"])))]
#[command(mut_arg("ca", |ca| ca.conflicts_with("content")))]
pub(super) struct WriteArguments {
    #[command(flatten)]
    target: InstalledDisk,
    /// Number, name or label of a partition to use instead of the root file system
    #[arg(long)]
    partition: Option<NumberOrName>,
    /// Path of the file in the file system
    #[arg(long)]
    path: String,
    /// Content of the file, as text
    #[arg(long, allow_hyphen_values = true)]
    content: Option<String>,
    /// Source of the content: https://, file:// or a path, or - for standard input; http:// only with a digest; or
    /// oci://REGISTRY/REPOSITORY:TAG
    #[arg(long, alias = "from", value_parser = place)]
    url: Option<String>,
    /// Digest of the source, such as sha256:HEX
    #[arg(long, requires = "url", group = "delivered")]
    digest: Option<Digest>,
    #[command(flatten)]
    source: SourceArguments,
    /// Owner of the file, by number or by a name in the installed system
    #[arg(long)]
    owner: Option<NumberOrName>,
    /// Group of the file, by number or by a name in the installed system
    #[arg(long)]
    group: Option<NumberOrName>,
    /// Mode of the file in octal digits
    #[arg(long)]
    mode: Option<String>,
    /// Mode of newly created directories, in octal digits
    #[arg(long)]
    dir_mode: Option<String>,
}

pub(super) fn write(given: WriteArguments) -> Result<ByHand> {
    let host = given.source.host()?;
    let file = WriteFile {
        disk: hints(given.target.disk),
        partition: given.partition,
        path: given.path,
        content: given.content,
        url: given.url,
        registry_auth: given.source.registry_auth()?,
        signature: given.source.signature()?,
        mirrors: given.source.mirror,
        sums: given.source.sums,
        digest: given.digest,
        owner: given.owner,
        group: given.group,
        mode: given.mode,
        dir_mode: given.dir_mode,
        ..WriteFile::default()
    };
    Ok(ByHand { host, ..Action::WriteFile(file).into() })
}

#[derive(Args)]
pub(super) struct UnpackArguments {
    #[command(flatten)]
    target: InstalledDisk,
    /// Number, name or label of a partition to use instead of the root file system
    #[arg(long)]
    partition: Option<NumberOrName>,
    /// Directory in the file system
    #[arg(long, default_value = "/")]
    directory: String,
    /// https://, file:// or a path, or - for standard input; http:// only with a digest; or
    /// oci://REGISTRY/REPOSITORY:TAG
    #[arg(long, value_parser = place)]
    url: String,
    /// Digest of the archive as delivered, such as sha256:HEX
    #[arg(long, group = "delivered")]
    digest: Option<Digest>,
    #[command(flatten)]
    source: SourceArguments,
    /// Create the device nodes in the archive
    #[arg(long)]
    devices: bool,
}

pub(super) fn unpack(given: UnpackArguments) -> Result<ByHand> {
    let host = given.source.host()?;
    let archive = UnpackArchive {
        disk: hints(given.target.disk),
        partition: given.partition,
        directory: given.directory,
        url: given.url,
        registry_auth: given.source.registry_auth()?,
        signature: given.source.signature()?,
        mirrors: given.source.mirror,
        sums: given.source.sums,
        digest: given.digest,
        ca: None,
        devices: given.devices,
    };
    Ok(ByHand { host, ..Action::UnpackArchive(archive).into() })
}

#[derive(Args)]
#[command(group(ArgGroup::new("what").required(true).args(["script", "command"])))]
pub(super) struct RunArguments {
    #[command(flatten)]
    target: InstalledDisk,
    /// An environment variable; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// File with a script for the installed system's /bin/sh -e
    #[arg(long)]
    script: Option<PathBuf>,
    /// Program and arguments, after --
    #[arg(last = true)]
    command: Vec<String>,
}

pub(super) fn run(given: RunArguments) -> Result<ByHand> {
    let (disk, script) = (hints(given.target.disk), optional(&given.script)?);
    let run = RunInTarget { disk, command: given.command, script, environment: given.env.into_iter().collect() };
    Ok(Action::RunInTarget(run).into())
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it has no \"=\"")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[derive(Args)]
pub(super) struct EncryptArguments {
    #[command(flatten)]
    target: InstalledDisk,
    /// File for the recovery key, which only root can read; it must not exist yet
    #[arg(long, value_name = "FILE")]
    recovery_key: PathBuf,
    /// PCRs that must have their current values for the TPM to release the key
    #[arg(long, value_delimiter = ',', default_value = "7")]
    pcrs: Vec<u32>,
    /// Do not enlarge the root partition
    #[arg(long)]
    no_grow: bool,
    /// TPM device
    #[arg(long, value_name = "DEVICE", default_value = "/dev/tpmrm0")]
    tpm: PathBuf,
}

pub(super) fn encrypt(given: EncryptArguments) -> Result<ByHand> {
    let encrypt = EncryptRoot { disk: hints(given.target.disk), pcrs: given.pcrs, grow: !given.no_grow };
    let (recovery_key_to, tpm) = (Some(given.recovery_key), Some(given.tpm));
    let host = HostOptions { recovery_key_to, tpm, ..HostOptions::default() };
    Ok(ByHand { host, ..Action::EncryptRoot(encrypt).into() })
}

#[derive(Args)]
#[command(group(
    ArgGroup::new("change").required(true).multiple(true).args(["delete", "replace", "append_if_missing", "append"])
))]
pub(super) struct KernelArgsArguments {
    #[command(flatten)]
    target: InstalledDisk,
    /// Argument to delete, or a key to delete with any value; may be given several times, like the other options
    #[arg(long, value_name = "ARG|KEY", allow_hyphen_values = true)]
    delete: Vec<String>,
    /// Argument, or key with any value, and its replacement
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], allow_hyphen_values = true)]
    replace: Vec<String>,
    /// Argument to append to the command line, unless it is already there
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    append_if_missing: Vec<String>,
    /// Argument to append to the command line; an existing one is moved to the end
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    append: Vec<String>,
}

pub(super) fn kernel_args(given: KernelArgsArguments) -> Result<ByHand> {
    let KernelArgsArguments { target, delete, replace, append_if_missing, append } = given;
    let replacement = |[old, new]: &[String; 2]| KernelArgReplacement { old: old.clone(), new: new.clone() };
    let replace = replace.as_chunks().0.iter().map(replacement).collect();
    let arguments = KernelArgs { disk: hints(target.disk), delete, replace, append_if_missing, append };
    Ok(Action::KernelArgs(arguments).into())
}

#[derive(Args)]
pub(super) struct ReporterArguments {
    #[command(flatten)]
    target: InstalledDisk,
    /// Base URL of the server
    #[arg(long, alias = "server")]
    url: String,
    /// File with a token for the boot reporter of a run
    #[arg(long)]
    token_file: PathBuf,
    /// File with the CA certificate that signed the server's certificate
    #[arg(long)]
    ca: PathBuf,
    /// Hours after which the reporter gives up in each boot
    #[arg(long, default_value_t = 1)]
    hours: u32,
    /// Seconds between two logs
    #[arg(long, default_value_t = 600)]
    every: u32,
}

pub(super) fn reporter(given: ReporterArguments) -> Result<ByHand> {
    let ReporterArguments { target, url, token_file, ca, hours, every } = given;
    let token = Secret::from(read_file(&token_file)?.trim().to_owned());
    // When the action is run by hand, nothing else reports a failure of the reporter, so it must be an error.
    let reporter = BootReporter {
        disk: hints(target.disk),
        url,
        token,
        ca: read_file(&ca)?,
        hours,
        every,
        agent: None,
        optional: false,
    };
    Ok(Action::BootReporter(reporter).into())
}

#[derive(Args)]
pub(super) struct BootOrderArguments {
    #[command(flatten)]
    target: InstalledDisk,
    /// Position of the disk in the boot order
    #[arg(long, value_parser = one_of(POSITIONS), default_value = "first")]
    position: BootPosition,
    /// Path of the boot loader on the EFI system partition; without it, the installed system's boot loader
    #[arg(long)]
    loader: Option<String>,
    /// Name of the boot entry; without it, the installed system's name
    #[arg(long)]
    label: Option<String>,
}

const POSITIONS: &[Choice<BootPosition>] = &[
    ("first", BootPosition::First, "Before all other entries, permanently"),
    ("next", BootPosition::Next, "Before all other entries, at the next boot only"),
];

pub(super) fn boot_order(given: BootOrderArguments) -> Result<ByHand> {
    let BootOrderArguments { target, position, loader, label } = given;
    let order = EfiBootOrder { disk: hints(target.disk), position, loader, label, optional: false };
    Ok(Action::EfiBootOrder(order).into())
}

#[derive(Args)]
pub(super) struct KexecArguments {
    #[command(flatten)]
    target: InstalledDisk,
    /// Path of the kernel in the installed system; without it, the default boot entry's kernel
    #[arg(long, requires = "cmdline")]
    kernel: Option<String>,
    /// Path of the initramfs in the installed system
    #[arg(long, requires = "kernel")]
    initrd: Option<String>,
    /// Kernel command line to use instead of the boot entry's
    #[arg(long, allow_hyphen_values = true)]
    cmdline: Option<String>,
}

pub(super) fn kexec(given: KexecArguments) -> Result<ByHand> {
    let KexecArguments { target, kernel, initrd, cmdline } = given;
    Ok(Action::Kexec(Kexec { disk: hints(target.disk), kernel, initrd, cmdline }).into())
}
