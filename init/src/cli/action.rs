//! One action by hand: `slipway action NAME ...`, with a progress bar on a terminal and plain lines elsewhere.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args, Subcommand};
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};
use slipway_actions::{Done, Host, HostOptions, Next, Report};
use slipway_protocol::{
    Action, Algorithm, CaptureDisk, DetachedSignature, Digest, DiskHints, EraseDisk, EraseMode, Failure,
    FileSystemKind, KernelArgs, MakeFileSystem, NewPartition, NumberOrName, Partition, PartitionChoice, PartitionSize,
    PhoneHome, Progress, RegistryAuth, RunInTarget, Secret, SeedCloudInit, StreamImage, UnpackArchive, Verify,
    WriteFile,
};

/// How often a plain line tells the progress.
const LINE_EVERY: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct ActionArguments {
    #[command(subcommand)]
    action: ActionCommand,
    /// Print reports and the result as JSON lines
    #[arg(long, global = true)]
    json: bool,
    /// Do not ask before a disk is overwritten
    #[arg(long, global = true)]
    yes: bool,
}

#[derive(Subcommand)]
enum ActionCommand {
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
    /// Add kernel arguments to the installed system's boot entries
    KernelArgs {
        /// The disk that carries the image
        #[arg(long)]
        disk: String,
        /// An argument to have at the end of the command line; may be given several times
        #[arg(long, required = true, allow_hyphen_values = true)]
        append: Vec<String>,
    },
    /// Write a file of the installed system
    WriteFile(WriteArguments),
    /// Unpack a tar archive in the installed system
    UnpackArchive(UnpackArguments),
    /// Run a command in the installed system
    RunInTarget(RunArguments),
    /// Store a disk as an image, which only reads it
    CaptureDisk {
        /// The disk, such as /dev/nvme0n1
        #[arg(long)]
        disk: String,
        /// File the image becomes, compressed with zstd; there must be none yet
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Mode {
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
enum VerifyMode {
    /// The disk is believed
    None,
    /// Everything is read back past the page cache and compared
    Readback,
}

#[derive(Args)]
struct StreamArguments {
    /// https://, file:// or a path; http:// only with a digest; or oci://REGISTRY/REPOSITORY:TAG
    #[arg(long)]
    url: String,
    /// File with USERNAME:PASSWORD for the registry
    #[arg(long, value_name = "FILE")]
    registry_auth: Option<PathBuf>,
    /// Another place of the same bytes, for when the URL fails; may be given several times, in the order to try them
    #[arg(long, value_name = "URL")]
    mirror: Vec<String>,
    /// File with CA certificates to trust instead of the system's
    #[arg(long)]
    ca: Option<PathBuf>,
    /// SHA-256 of the stream as delivered
    #[arg(long, group = "delivered")]
    sha256: Option<String>,
    /// SHA-384 of the stream as delivered
    #[arg(long, group = "delivered")]
    sha384: Option<String>,
    /// SHA-512 of the stream as delivered
    #[arg(long, group = "delivered")]
    sha512: Option<String>,
    /// List of sums with the digest of the stream beside the file name of the URL; http:// only with a signature
    #[arg(long, value_name = "URL", group = "delivered")]
    sums: Option<String>,
    /// Detached signature of the list of sums if there is one, else of the stream
    #[arg(long, value_name = "URL", requires = "public_key")]
    signature: Option<String>,
    /// Key of minisign or Ed25519 to verify the signature with, or a file with it
    #[arg(long, value_name = "KEY|FILE", requires = "signature")]
    public_key: Option<String>,
    /// SHA-256 of the raw image
    #[arg(long, group = "raw")]
    raw_sha256: Option<String>,
    /// SHA-384 of the raw image
    #[arg(long, group = "raw")]
    raw_sha384: Option<String>,
    /// SHA-512 of the raw image
    #[arg(long, group = "raw")]
    raw_sha512: Option<String>,
    /// Check the disk too: readback reads everything again
    #[arg(long, value_enum, default_value_t = VerifyMode::None)]
    verify: VerifyMode,
    /// Block map of the raw image, as bmaptool makes it: only what it lists is written; https:// or a file
    #[arg(long, value_name = "URL")]
    bmap: Option<String>,
    /// Size of the raw image in bytes
    #[arg(long)]
    raw_size: Option<u64>,
    /// The disk, such as /dev/nvme0n1
    #[arg(long)]
    disk: String,
    /// Leave the last partition as large as it is in the image
    #[arg(long)]
    no_grow: bool,
}

#[derive(Args)]
struct MakeArguments {
    /// The disk, such as /dev/nvme0n1
    #[arg(long)]
    disk: String,
    /// Number of the partition, from 1, or its label; without it, the whole of an array or a volume
    #[arg(long)]
    partition: Option<String>,
    /// What is made
    #[arg(long, value_enum)]
    kind: Kind,
    /// Label of the file system
    #[arg(long)]
    label: Option<String>,
    /// UUID of the file system; a random one without it
    #[arg(long)]
    uuid: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
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
struct SeedArguments {
    /// The disk that carries the image
    #[arg(long)]
    disk: String,
    /// instance-id of the meta-data; a new one has cloud-init run again
    #[arg(long)]
    instance_id: String,
    /// local-hostname of the meta-data
    #[arg(long)]
    hostname: Option<String>,
    /// File with user-data
    #[arg(long)]
    user_data: Option<PathBuf>,
    /// File with vendor-data
    #[arg(long)]
    vendor_data: Option<PathBuf>,
    /// File with a network configuration
    #[arg(long)]
    network_config: Option<PathBuf>,
    /// Have the installed system report here that it is up
    #[arg(long)]
    phone_home_url: Option<String>,
}

#[derive(Args)]
#[command(group(ArgGroup::new("source").required(true).args(["content", "from"])))]
struct WriteArguments {
    /// The disk that carries the image
    #[arg(long)]
    disk: String,
    /// Number, name or label of the partition instead of the root file system
    #[arg(long)]
    partition: Option<String>,
    /// Path of the file there
    #[arg(long)]
    path: String,
    /// What it is to hold, as text
    #[arg(long, allow_hyphen_values = true)]
    content: Option<String>,
    /// Where that is fetched from: https://, file:// or a path; http:// only with a digest
    #[arg(long)]
    from: Option<String>,
    /// Digest of what is fetched, such as sha256:HEX
    #[arg(long, requires = "from")]
    digest: Option<Digest>,
    /// File with CA certificates to trust instead of the system's
    #[arg(long, requires = "from")]
    ca: Option<PathBuf>,
    /// User it belongs to, by number or by a name the installed system knows
    #[arg(long)]
    owner: Option<String>,
    /// Group it belongs to, likewise
    #[arg(long)]
    group: Option<String>,
    /// Its mode in octal digits
    #[arg(long)]
    mode: Option<String>,
    /// Mode of directories that have to be made, in octal digits
    #[arg(long)]
    dir_mode: Option<String>,
}

#[derive(Args)]
struct UnpackArguments {
    /// The disk that carries the image
    #[arg(long)]
    disk: String,
    /// Number, name or label of the partition instead of the root file system
    #[arg(long)]
    partition: Option<String>,
    /// Directory there
    #[arg(long, default_value = "/")]
    directory: String,
    /// https://, file:// or a path; http:// only with a digest
    #[arg(long)]
    url: String,
    /// Digest of the archive as delivered, such as sha256:HEX
    #[arg(long)]
    digest: Option<Digest>,
    /// File with CA certificates to trust instead of the system's
    #[arg(long)]
    ca: Option<PathBuf>,
    /// Make the device nodes the archive has
    #[arg(long)]
    devices: bool,
}

#[derive(Args)]
#[command(group(ArgGroup::new("what").required(true).args(["script", "command"])))]
struct RunArguments {
    /// The disk that carries the image
    #[arg(long)]
    disk: String,
    /// A variable of its environment; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// File with a script for the installed system's /bin/sh -e
    #[arg(long)]
    script: Option<PathBuf>,
    /// Program and arguments, after --
    #[arg(last = true)]
    command: Vec<String>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("there is no \"=\" in it")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs the action and tells how it went; exit status 0 only when it succeeded.
pub fn run(arguments: ActionArguments) -> Result<ExitCode> {
    super::log::start(None);
    let overwritten = overwritten(&arguments.action);
    let capture_to = match &arguments.action {
        ActionCommand::CaptureDisk { to, .. } => Some(to.clone()),
        _ => None,
    };
    let (action, disk, trust) = action(arguments.action)?;
    let machine = Host::new(HostOptions { trust, capture_to, ..HostOptions::default() });
    if let Some(what) = overwritten.filter(|_| !arguments.yes)
        && !confirmed(&machine, &disk, &what)?
    {
        bail!("{disk} was left as it is");
    }
    let mut display = Display::new(arguments.json);
    let result = slipway_actions::run(&action, &machine, &mut |report| display.report(&report));
    display.finish(&result);
    match result {
        Ok(Done { outcome, next }) => {
            if !arguments.json {
                for warning in &outcome.warnings {
                    super::tell(&format!("warning: {warning}"));
                }
                super::print(&format!("{}\n", outcome.summary))?;
                if next == Next::Reboot {
                    super::print("restart the machine to go on\n")?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        // Already told as JSON.
        Err(_) if arguments.json => Ok(ExitCode::FAILURE),
        Err(error) => Err(error.into()),
    }
}

/// What an action takes away, in words; nothing if it keeps what is there.
fn overwritten(action: &ActionCommand) -> Option<String> {
    match action {
        ActionCommand::EraseDisk { disk, .. } | ActionCommand::Partition { disk, .. } => Some(disk.clone()),
        ActionCommand::StreamImage(arguments) => Some(arguments.disk.clone()),
        ActionCommand::MakeFilesystem(make) => Some(match &make.partition {
            Some(partition) => format!("partition {partition} of {}", make.disk),
            None => make.disk.clone(),
        }),
        ActionCommand::SeedCloudInit(_)
        | ActionCommand::KernelArgs { .. }
        | ActionCommand::WriteFile(_)
        | ActionCommand::UnpackArchive(_)
        | ActionCommand::RunInTarget(_)
        | ActionCommand::CaptureDisk { .. } => None,
    }
}

/// The action, the disk it works on, and the CA certificates to trust.
fn action(command: ActionCommand) -> Result<(Action, String, Vec<String>)> {
    let hints = |disk: &str| DiskHints { device: Some(disk.to_owned()), ..DiskHints::default() };
    let named = |text: &Option<String>| text.as_deref().map(NumberOrName::from);
    let optional = |path: &Option<PathBuf>| path.as_ref().map(super::read_file).transpose();
    Ok(match command {
        ActionCommand::EraseDisk { disk, mode, fallback } => {
            let fallback = fallback.into_iter().map(EraseMode::from).collect();
            let erase = EraseDisk { disk: hints(&disk), mode: mode.into(), fallback };
            (Action::EraseDisk(erase), disk, Vec::new())
        }
        ActionCommand::StreamImage(a) => {
            let image = StreamImage {
                url: a.url,
                registry_auth: a.registry_auth.as_ref().map(registry_auth).transpose()?,
                mirrors: a.mirror,
                digest: digest("--sha", [a.sha256, a.sha384, a.sha512])?,
                sums: a.sums,
                signature: a.signature.zip(a.public_key).map(detached_signature).transpose()?,
                raw_digest: digest("--raw-sha", [a.raw_sha256, a.raw_sha384, a.raw_sha512])?,
                bmap: a.bmap,
                raw_size: a.raw_size,
                verify: match a.verify {
                    VerifyMode::None => Verify::None,
                    VerifyMode::Readback => Verify::Readback,
                },
                ca: None,
                disk: hints(&a.disk),
                grow: !a.no_grow,
            };
            (Action::StreamImage(image), a.disk, optional(&a.ca)?.into_iter().collect())
        }
        ActionCommand::Partition { disk, new } => {
            let partition = Partition { disk: hints(&disk), partitions: new, ..Partition::default() };
            (Action::Partition(partition), disk, Vec::new())
        }
        ActionCommand::MakeFilesystem(a) => {
            let choice = |text: String| text.parse().map_or(PartitionChoice::Label(text), PartitionChoice::Number);
            let partition = a.partition.map(choice);
            let (kind, label, uuid) = (a.kind.into(), a.label, a.uuid);
            let make = MakeFileSystem { disk: hints(&a.disk), partition, kind, label, uuid };
            (Action::MakeFileSystem(make), a.disk, Vec::new())
        }
        ActionCommand::SeedCloudInit(a) => {
            let seed = SeedCloudInit {
                disk: hints(&a.disk),
                instance_id: a.instance_id,
                hostname: a.hostname,
                user_data: optional(&a.user_data)?.unwrap_or_default(),
                vendor_data: optional(&a.vendor_data)?,
                network_config: optional(&a.network_config)?,
                phone_home: a.phone_home_url.map(|url| PhoneHome { url, tries: None }),
            };
            (Action::SeedCloudInit(seed), a.disk, Vec::new())
        }
        ActionCommand::KernelArgs { disk, append } => {
            (Action::KernelArgs(KernelArgs { disk: hints(&disk), append }), disk, Vec::new())
        }
        ActionCommand::WriteFile(a) => {
            let trust = optional(&a.ca)?.into_iter().collect();
            let file = WriteFile {
                disk: hints(&a.disk),
                partition: named(&a.partition),
                path: a.path,
                content: a.content,
                url: a.from,
                digest: a.digest,
                owner: named(&a.owner),
                group: named(&a.group),
                mode: a.mode,
                dir_mode: a.dir_mode,
                ..WriteFile::default()
            };
            (Action::WriteFile(file), a.disk, trust)
        }
        ActionCommand::UnpackArchive(a) => {
            let trust = optional(&a.ca)?.into_iter().collect();
            let archive = UnpackArchive {
                disk: hints(&a.disk),
                partition: named(&a.partition),
                directory: a.directory,
                url: a.url,
                digest: a.digest,
                ca: None,
                devices: a.devices,
            };
            (Action::UnpackArchive(archive), a.disk, trust)
        }
        ActionCommand::RunInTarget(a) => {
            let run = RunInTarget {
                disk: hints(&a.disk),
                command: a.command,
                script: optional(&a.script)?,
                environment: a.env.into_iter().collect(),
            };
            (Action::RunInTarget(run), a.disk, Vec::new())
        }
        ActionCommand::CaptureDisk { disk, to } => {
            let name = to.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (Action::CaptureDisk(CaptureDisk { disk: hints(&disk), name }), disk, Vec::new())
        }
    })
}

/// The digest given by one of three options, of which there is at most one.
fn digest(option: &str, given: [Option<String>; 3]) -> Result<Option<Digest>> {
    let algorithms = [(Algorithm::Sha256, 256), (Algorithm::Sha384, 384), (Algorithm::Sha512, 512)];
    let found = algorithms.into_iter().zip(given).find_map(|(algorithm, hex)| Some((algorithm, hex?)));
    let Some(((algorithm, bits), hex)) = found else { return Ok(None) };
    Digest::new(algorithm, &hex).map(Some).with_context(|| format!("reading {option}{bits}"))
}

/// The login in a file, which is not given as an argument so that nobody sees it there.
fn registry_auth(path: &PathBuf) -> Result<RegistryAuth> {
    let text = super::read_file(path)?;
    let login = text.trim_end_matches(['\r', '\n']).split_once(':');
    let (username, password) = login.with_context(|| format!("{} is not USERNAME:PASSWORD", path.display()))?;
    Ok(RegistryAuth { username: username.to_owned(), password: Secret::from(password.to_owned()) })
}

/// The signature given by its URL and a key, which may stand in a file.
fn detached_signature((url, key): (String, String)) -> Result<DetachedSignature> {
    let path = PathBuf::from(&key);
    let public_key = if path.exists() { super::read_file(&path)? } else { key };
    Ok(DetachedSignature { url, public_key })
}

/// Shows what the disk is and asks whether `what` may be lost. Without a terminal nobody can answer, which means no.
pub(super) fn confirmed(machine: &Host, path: &str, what: &str) -> Result<bool> {
    let found = slipway_actions::named(path, machine)?;
    let disk = &found.disk;
    let medium = found.boot_medium.map(|mark| format!("a slipway boot medium, as {mark}"));
    let known: String = found.in_use.into_iter().chain(medium).map(|what| format!(", {what}")).collect();
    eprintln!(
        "{}: {}, model {}, serial {}{known}",
        disk.path,
        HumanBytes(disk.size),
        disk.model.as_deref().unwrap_or("unknown"),
        disk.serial.as_deref().unwrap_or("unknown")
    );
    if !std::io::stdin().is_terminal() {
        bail!("asking whether to overwrite {what}: standard input is no terminal; say --yes to go on without asking");
    }
    eprint!("everything on {what} will be lost; type \"yes\" to go on: ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("reading the answer")?;
    Ok(answer.trim() == "yes")
}

/// How reports are shown.
enum Display {
    Json,
    Bar(ProgressBar),
    Lines { next: Instant },
}

impl Display {
    fn new(json: bool) -> Self {
        if json {
            return Self::Json;
        }
        if !super::log::has_audience() {
            return Self::Lines { next: Instant::now() };
        }
        let bar = ProgressBar::no_length();
        let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {msg}");
        Self::Bar(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    fn report(&mut self, report: &Report) {
        match (self, report) {
            (Self::Json, Report::Note(text)) => print_json(&serde_json::json!({ "note": text })),
            (Self::Json, Report::Progress(progress)) => print_json(&serde_json::json!({ "progress": progress })),
            (Self::Bar(bar), Report::Note(text)) => bar.suspend(|| super::tell(text)),
            (Self::Bar(bar), Report::Progress(progress)) => {
                if let Some(total) = progress.total {
                    bar.set_length(total);
                }
                bar.set_position(progress.bytes);
                bar.set_message(rate(progress));
            }
            (Self::Lines { .. }, Report::Note(text)) => super::tell(text),
            (Self::Lines { next }, Report::Progress(progress)) => {
                if Instant::now() >= *next {
                    *next = Instant::now() + LINE_EVERY;
                    let total = progress.total.map_or("?".to_owned(), |total| HumanBytes(total).to_string());
                    super::tell(&format!("{} of {total} {}", HumanBytes(progress.bytes), rate(progress)));
                }
            }
        }
    }

    fn finish(&self, result: &Result<Done, slipway_actions::Error>) {
        match (self, result) {
            (Self::Json, Ok(done)) => print_json(&serde_json::json!({ "succeeded": done.outcome })),
            (Self::Json, Err(error)) => print_json(&serde_json::json!({ "failed": Failure::of(error) })),
            (Self::Bar(bar), _) => bar.finish_and_clear(),
            (Self::Lines { .. }, _) => {}
        }
    }
}

fn rate(progress: &Progress) -> String {
    let mut text = format!("at {}/s", HumanBytes(progress.rate));
    if let Some(left) = progress.total.and_then(|total| total.checked_sub(progress.bytes))
        && let Some(seconds) = left.checked_div(progress.rate)
    {
        text.push_str(&format!(", {} left", HumanDuration(Duration::from_secs(seconds))));
    }
    if let Some(stage) = progress.waiting_for {
        text.push_str(&format!(", waiting for {stage:?}").to_lowercase());
    }
    text
}

fn print_json(value: &serde_json::Value) {
    // As with lines for people: a reader that goes away does not stop the action.
    let _ = super::print(&format!("{value}\n"));
}
