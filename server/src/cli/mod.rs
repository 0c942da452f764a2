//! The command line. Commands work on the data folder itself, whether a server runs on it or not.

mod host_keys;
mod recovery_key;
mod reports;
mod serve;
mod status;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use slipway_protocol::{Digest, DiskChoice, DiskHints, HOST_BOOT_LOG, Identity, Network, NodeStatus, TextHint};
use slipway_server::ca::Authority;
use slipway_server::data::DataDir;
use slipway_server::jwt::Signer;
use slipway_server::operate::{self, LogType, NewNode, NewRun, NodeChange, Task};
use slipway_server::reporting::PostKeys;
use slipway_server::store::run_tokens::Purpose;
use slipway_server::store::systems::{self, System};
use slipway_server::store::{Store, images};
use slipway_server::{image, status as node_status};
use slipway_user_data::Post;

/// slipway's server, and the commands of its operators.
#[derive(Parser)]
#[command(name = "slipway-server", version)]
pub struct Arguments {
    /// Folder the server keeps everything in; made if it is not there.
    #[arg(long, global = true, env = "SLIPWAY_DATA", default_value = "/var/lib/slipway")]
    data: PathBuf,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the server.
    Serve(serve::Options),
    /// Register, release and look at machines.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Issue tokens, such as those that let one unknown machine in.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Take in images.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Say how operating systems are installed.
    #[command(subcommand)]
    Os(OsCommand),
    /// Give machines work.
    #[command(subcommand)]
    Run(RunCommand),
    /// Show where each machine stands.
    Status(status::Options),
    /// Print a piece of shell by which anything reports loose steps of a machine's newest run. It holds a new token.
    Snippet(reports::SnippetOptions),
    /// Print the token of the operators' HTTPS API.
    OperatorToken,
    /// Print the certificate of the certificate authority, in PEM.
    Ca,
}

impl Command {
    /// What is logged when the environment says nothing: the server tells what happens, commands only what goes wrong.
    pub fn default_log(&self) -> &'static str {
        match self {
            Command::Serve(_) => "info",
            _ => "warn",
        }
    }
}

#[derive(Subcommand)]
pub enum NodeCommand {
    /// Register a machine; prints its id.
    Add(NodeAdd),
    /// List the machines.
    List {
        /// One JSON array instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Show all that is known of a machine, as JSON.
    Show {
        /// Id, name or claim code.
        node: String,
    },
    /// Say how the system to be installed on a machine is set up; what is not said stays as it is.
    Set(NodeSet),
    /// Let a machine in.
    Release {
        /// Id, name, or the claim code on its console.
        node: String,
    },
    /// Take a machine out of service: its credentials are refused and its run is ended. If it knocks again it is unknown.
    Decommission {
        /// Id or name.
        node: String,
    },
    /// Print the URL of the metadata of a machine's newest run. Whoever has it can read the run's user-data.
    MetadataUrl {
        /// Id, name or claim code.
        node: String,
    },
    /// Print the log of a machine's newest boot.
    Log {
        /// Id, name or claim code.
        node: String,
        /// Whose log.
        #[arg(long = "type", value_enum, default_value_t)]
        kind: LogKind,
    },
    /// Print what opens a machine's encrypted disks when its TPM does not: volume and key, the newest first. This is logged.
    RecoveryKey(recovery_key::Options),
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub enum LogKind {
    /// The kernel's and slipway's, while slipway runs on the machine.
    #[default]
    Installer,
    /// The installed system's, as its boot reporter sent it last.
    #[value(name = HOST_BOOT_LOG)]
    HostBoot,
}

impl From<LogKind> for LogType {
    fn from(kind: LogKind) -> Self {
        match kind {
            LogKind::Installer => Self::Installer,
            LogKind::HostBoot => Self::HostBoot,
        }
    }
}

#[derive(Args)]
pub struct NodeAdd {
    /// Name, also the installed system's host name.
    #[arg(long)]
    name: Option<String>,
    /// SMBIOS system UUID.
    #[arg(long)]
    uuid: Option<String>,
    /// SMBIOS system serial number.
    #[arg(long)]
    serial: Option<String>,
    /// MAC address; may be given several times.
    #[arg(long = "mac")]
    macs: Vec<String>,
    /// Let it in as soon as it knocks.
    #[arg(long)]
    release: bool,
}

#[derive(Args)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true)))]
pub struct NodeSet {
    /// Id, name or claim code.
    node: String,
    /// YAML file that says how it is on the network.
    #[arg(long, value_name = "FILE", group = "what")]
    network: Option<PathBuf>,
    /// Leave the network to the image.
    #[arg(long, conflicts_with = "network", group = "what")]
    no_network: bool,
    /// Public key that may log in, as a line of an id_ed25519.pub; may be given several times, and replaces those there were.
    #[arg(long = "ssh-key", value_name = "LINE", group = "what")]
    ssh_keys: Vec<String>,
    /// Let no further key in than the operating system's.
    #[arg(long, conflicts_with = "ssh_keys", group = "what")]
    no_ssh_keys: bool,
}

#[derive(Subcommand)]
pub enum TokenCommand {
    /// Issue a token good for one machine; prints it, this once.
    Add {
        /// How long it is good, such as 90s, 30m, 1h or 7d; without it, until it is used.
        #[arg(long, value_parser = parse_duration)]
        expires: Option<u64>,
    },
    /// Issue a token for a boot reporter that is put into a system by hand; prints it, this once.
    BootReporter {
        /// Id, name or claim code of the machine whose newest run it reports to.
        node: String,
    },
}

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Copy an image into the data folder; prints its digest.
    Add {
        /// The image, compressed or not.
        file: PathBuf,
        /// Digest of the raw image, after decompression.
        #[arg(long)]
        raw_digest: Option<Digest>,
        /// Size of the raw image in bytes, after decompression.
        #[arg(long)]
        raw_size: Option<u64>,
    },
    /// List the images, as JSON.
    List,
}

#[derive(Subcommand)]
pub enum OsCommand {
    /// Add an operating system, or replace the one of the same name.
    Add(Box<OsAdd>),
    /// List the operating systems, as JSON.
    List,
}

#[derive(Args)]
pub struct OsAdd {
    /// What it is called.
    name: String,
    /// The image, by the digest `image add` printed.
    #[arg(long)]
    image: Digest,
    /// Size of the raw image in bytes.
    #[arg(long)]
    raw_size: Option<u64>,
    /// Digest of the raw image.
    #[arg(long)]
    raw_digest: Option<Digest>,
    /// File with the user-data of runs that bring none.
    #[arg(long)]
    user_data: Option<PathBuf>,
    /// File with vendor-data.
    #[arg(long)]
    vendor_data: Option<PathBuf>,
    /// Argument for the installed system's kernel; may be given several times.
    #[arg(long = "kernel-arg", allow_hyphen_values = true)]
    kernel_args: Vec<String>,
    /// Public key that may log in, as a line of an id_ed25519.pub; may be given several times.
    #[arg(long = "ssh-key", value_name = "LINE")]
    ssh_keys: Vec<String>,
    /// Have the installed system report that it is up; a run may say otherwise.
    #[arg(long)]
    phone_home: bool,
    #[command(flatten)]
    reports: Reports,
    /// Whether a run may bring user-data in place of the system's.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    allow_override: bool,
    /// Have the installed system report its boots until it runs.
    #[arg(long)]
    boot_reporter: bool,
    /// Name of a loose step that is expected; others are taken and flagged. May be given several times.
    #[arg(long = "known-step", value_name = "NAME")]
    known_steps: Vec<String>,
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
    /// The disk's smallest acceptable size in bytes.
    #[arg(long)]
    disk_min_size: Option<u64>,
    /// Which disk to take when several match.
    #[arg(long, value_enum, default_value_t)]
    disk_choose: Choose,
}

/// How an installed system reports.
#[derive(Args)]
struct Reports {
    /// What the installed system posts: all, or some of pub_key_rsa, pub_key_ecdsa, pub_key_ed25519, instance_id, hostname,
    /// fqdn. All unless given.
    #[arg(long, value_name = "all|KEY,KEY")]
    phone_home_post: Option<Post>,
    /// How often it tries, 3 s apart; 10 times unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    phone_home_tries: Option<u32>,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Choose {
    #[default]
    Only,
    Smallest,
    Largest,
}

#[derive(Subcommand)]
pub enum RunCommand {
    /// Start a run on a machine; prints the run's id.
    Start(RunStart),
}

#[derive(Args)]
pub struct RunStart {
    /// Id, name or claim code of the machine.
    node: String,
    /// Install this operating system.
    #[arg(long, conflicts_with = "workflow", required_unless_present = "workflow")]
    os: Option<String>,
    /// Run the steps in this YAML file.
    #[arg(long)]
    workflow: Option<PathBuf>,
    /// File with user-data in place of the operating system's.
    #[arg(long, conflicts_with = "workflow")]
    user_data: Option<PathBuf>,
    /// Whether the installed system reports that it is up, whatever the operating system or the workflow says.
    #[arg(long, value_name = "BOOL")]
    phone_home: Option<bool>,
    #[command(flatten)]
    reports: Reports,
    /// Name of a loose step that is expected, in place of the operating system's or the workflow's; may be given several times.
    #[arg(long = "known-step", value_name = "NAME")]
    known_steps: Vec<String>,
    /// End a run that is still going on, as failed.
    #[arg(long)]
    replace: bool,
}

/// Runs the command.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let command = match arguments.command {
        Command::Serve(options) => return serve::run(arguments.data, options).await,
        command => command,
    };
    let data = DataDir::open(&arguments.data)?;
    match command {
        Command::OperatorToken => print_line(&data.operator_token()?)?,
        Command::Ca => print(Authority::open(&data)?.pem())?,
        command => {
            let store = Store::open(&data.database()).await?;
            let done = on_store(&store, &data, command).await;
            store.close().await;
            done?;
        }
    }
    Ok(())
}

async fn on_store(store: &Store, data: &DataDir, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Node(command) => node(store, data, command).await,
        Command::Token(TokenCommand::Add { expires }) => print_line(&operate::add_token(store, expires).await?.token),
        Command::Token(TokenCommand::BootReporter { node }) => {
            print_line(&operate::add_run_token(store, &node, Purpose::Boot).await?.0)
        }
        Command::Image(ImageCommand::Add { file, raw_digest, raw_size }) => {
            let added = image::add(store, data, &file, image::Known { raw_digest, raw_size }).await?;
            print_line(&added.digest.to_string())
        }
        Command::Image(ImageCommand::List) => print_json(&images::all(&mut *store.read().await?).await?),
        Command::Os(OsCommand::Add(add)) => print_line(&operate::add_system(store, system(*add)?).await?.name),
        Command::Os(OsCommand::List) => print_json(&systems::all(&mut *store.read().await?).await?),
        Command::Run(RunCommand::Start(start)) => start_run(store, data, start).await,
        Command::Status(options) => status::run(store, options).await,
        Command::Snippet(options) => reports::snippet(store, data, options).await,
        Command::Serve(_) | Command::OperatorToken | Command::Ca => bail!("this command needs no database"),
    }
}

async fn node(store: &Store, data: &DataDir, command: NodeCommand) -> anyhow::Result<()> {
    match command {
        NodeCommand::Add(add) => {
            let identity = Identity { uuid: add.uuid, serial: add.serial, macs: add.macs };
            let added = operate::add_node(store, NewNode { name: add.name, identity, release: add.release }).await?;
            print_line(&added.id)
        }
        NodeCommand::List { json: true } => print_json(&node_status::all(store).await?),
        NodeCommand::List { json: false } => print(&node_table(&node_status::all(store).await?)),
        NodeCommand::Show { node } => print_json(&operate::show_node(store, &node).await?),
        NodeCommand::Set(set) => {
            let node = set.node.clone();
            let changed = operate::change_node(store, &node, node_change(set)?).await?;
            print_line(&format!("{} is changed for its next run", label(&changed)))
        }
        NodeCommand::Release { node } => {
            let released = operate::release_node(store, &node).await?;
            print_line(&format!("{} is released", label(&released)))
        }
        NodeCommand::Decommission { node } => {
            let decommissioned = operate::decommission_node(store, &node).await?;
            print_line(&format!("{} is out of service", label(&decommissioned)))
        }
        NodeCommand::MetadataUrl { node } => {
            print_line(&operate::metadata_url(store, &Signer::open(data)?, &node).await?.url)
        }
        NodeCommand::RecoveryKey(options) => recovery_key::run(store, options).await,
        NodeCommand::Log { node, kind } => print(&operate::node_log(store, &node, kind.into()).await?),
    }
}

fn node_change(set: NodeSet) -> anyhow::Result<NodeChange> {
    let network = match &set.network {
        Some(file) => Some(operate::parse_network(&read(file)?).with_context(|| format!("reading {file:?}"))?),
        None => set.no_network.then(Network::default),
    };
    let ssh_keys = (set.no_ssh_keys || !set.ssh_keys.is_empty()).then_some(set.ssh_keys);
    Ok(NodeChange { network, ssh_keys })
}

fn label(node: &NodeStatus) -> &str {
    node.name.as_deref().unwrap_or(&node.id)
}

fn node_table(nodes: &[NodeStatus]) -> String {
    let header = ["Id", "Name", "State", "Released", "Claim code", "UUID", "Serial", "MACs"];
    let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let rows = nodes.iter().map(|node| {
        vec![
            node.id.clone(),
            dash(&node.name),
            status::word(&node.state),
            if node.released { "yes" } else { "no" }.to_owned(),
            dash(&node.claim_code),
            dash(&node.identity.uuid),
            dash(&node.identity.serial),
            node.identity.macs.join(" "),
        ]
    });
    status::table(&header, rows.collect())
}

fn system(add: OsAdd) -> anyhow::Result<System> {
    let choose = match add.disk_choose {
        Choose::Only => DiskChoice::Only,
        Choose::Smallest => DiskChoice::Smallest,
        Choose::Largest => DiskChoice::Largest,
    };
    Ok(System {
        name: add.name,
        image: add.image,
        raw_size: add.raw_size,
        raw_digest: add.raw_digest,
        user_data: read_optional(add.user_data.as_deref())?,
        vendor_data: read_optional(add.vendor_data.as_deref())?,
        kernel_args: add.kernel_args,
        ssh_keys: add.ssh_keys,
        phone_home: add.phone_home,
        phone_home_post: add.reports.phone_home_post.map(PostKeys),
        phone_home_tries: add.reports.phone_home_tries,
        allow_override: add.allow_override,
        boot_reporter: add.boot_reporter,
        known_steps: add.known_steps,
        disk: DiskHints {
            device: add.disk_device,
            serial: add.disk_serial,
            wwn: add.disk_wwn,
            model: add.disk_model,
            min_size: add.disk_min_size,
            choose,
            ..DiskHints::default()
        },
    })
}

async fn start_run(store: &Store, data: &DataDir, start: RunStart) -> anyhow::Result<()> {
    let task = match (start.os, start.workflow) {
        (Some(os), None) => Task::Os(os),
        (None, Some(file)) => {
            let yaml = read(&file)?;
            Task::Workflow(operate::parse_workflow(&yaml).with_context(|| format!("reading {file:?}"))?)
        }
        _ => bail!("either --os or --workflow says what to do"),
    };
    let authority = Authority::open(data)?;
    let new = NewRun {
        user_data: read_optional(start.user_data.as_deref())?,
        phone_home: start.phone_home,
        phone_home_post: start.reports.phone_home_post.map(PostKeys),
        phone_home_tries: start.reports.phone_home_tries,
        known_steps: start.known_steps,
        replace: start.replace,
        ..NewRun::new(task)
    };
    print_line(&operate::start_run(store, authority.pem(), &start.node, new).await?.id)
}

fn read_optional(file: Option<&Path>) -> anyhow::Result<Option<String>> {
    file.map(read).transpose()
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("reading {file:?}"))
}

fn print_json<T: serde::Serialize>(value: &T) -> anyhow::Result<()> {
    print_line(&serde_json::to_string_pretty(value)?)
}

fn print_line(line: &str) -> anyhow::Result<()> {
    print(&format!("{line}\n"))
}

/// Writes to standard output. Unlike `print!` this does not panic when nobody reads it any more.
fn print(text: &str) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).context("writing to standard output")
}

/// Milliseconds of a number with a unit: s, m, h or d.
fn parse_duration(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a number followed by s, m, h or d");
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 60 * 60,
        Some('d') => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let number: u64 = text.get(..text.len() - 1).and_then(|number| number.parse().ok()).ok_or_else(wrong)?;
    number.checked_mul(unit * 1000).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(parse_duration("90s"), Ok(90_000));
        assert_eq!(parse_duration("1h"), Ok(3_600_000));
        for bad in ["", "h", "1", "1w", "-1s", "99999999999999999d"] {
            parse_duration(bad).expect_err(bad);
        }
    }
}
