//! `slipway-server node`.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use slipway_protocol::shared::identity::IdentifierKind;
use slipway_protocol::shared::printable::size;
use slipway_protocol::{Afterwards, DiskHints, EraseMode, Identity, Network, NodeClass, NodeStatus, Proof};
use slipway_server::base::data::DataDir;
use slipway_server::base::time::utc;
use slipway_server::keys::ca;
use slipway_server::keys::jwt::Signer;
use slipway_server::node::status::{self as node_status, is_stranger};
use slipway_server::operate::{self, LogType, NewNode, NewRun, NodeChange};
use slipway_server::store::Store;
use slipway_server::store::logs::LoggedBoot;

use super::ask::{self, Yes};
use super::disk::{DISK_OPTIONS, DiskOptions};
use super::power::{self, PowerCommand};
use super::words::{self, label};
use super::{agent, print, print_json, print_line, read, recovery_key};

#[derive(Subcommand)]
pub enum NodeCommand {
    /// Register a machine; prints its id.
    Add(NodeAdd),
    /// List the machines.
    List {
        /// Print a JSON array instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Show everything known about a machine, as JSON.
    Show {
        /// Id, name or claim code.
        node: String,
    },
    /// Change what is known about a machine, and the settings of the system to be installed on it.
    Set(Box<NodeSet>),
    /// Let in the machine that shows this claim code, or the first machine with this node's identifiers.
    #[command(after_help = "\
Examples:
  slipway-server node release KQWXRT --name web1
  slipway-server node release web1")]
    Release {
        /// Id, name, or the claim code on its console.
        node: String,
        /// Name, also the installed system's host name.
        #[arg(long)]
        name: Option<String>,
    },
    /// Let a waiting machine take the place of a node's machine, after a repair. The node keeps its name, settings and
    /// history.
    #[command(after_help = "\
Examples:
  slipway-server node replace web1 --by KQWXRT")]
    Replace {
        /// Id or name of the node.
        node: String,
        /// The claim code on the console of the machine.
        #[arg(long, value_name = "CODE")]
        by: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// Take a machine out of service: its credentials are refused and its run is ended. When it connects again, it is
    /// unknown.
    #[command(after_help = "\
Examples:
  slipway-server node decommission web1
  slipway-server node decommission web1 --erase --power-off
  slipway-server node decommission web1 --erase=discard")]
    Decommission {
        /// Id or name.
        node: String,
        /// Erase all disks of the machine first; it goes out of service when that succeeded. A disk that cannot do the
        /// mode is overwritten with zeros. Without MODE: secure.
        #[arg(long, value_enum, value_name = "MODE", num_args = 0..=1, require_equals = true,
            default_missing_value = "secure")]
        erase: Option<EraseMode>,
        /// Leave the disks of an ephemeral machine as they are, for example because it is broken or gone.
        #[arg(long, conflicts_with = "erase")]
        keep_disks: bool,
        /// Switch the machine off, without telling its operating system.
        #[arg(long)]
        power_off: bool,
        #[command(flatten)]
        yes: Yes,
    },
    /// Put a machine that is out of service back into service, with its name, settings and history. It enrols again.
    Recommission {
        /// Id or name.
        node: String,
        /// Let the machine in as soon as it enrols.
        #[arg(long)]
        release: bool,
    },
    /// Switch the power of machines, and set what switches it.
    #[command(subcommand)]
    Power(PowerCommand),
    /// Show the agent of a machine's system and what it did, or remove it.
    Agent(agent::AgentArguments),
    /// Take the work away from a running machine, by the drain command of its operating system.
    Drain(agent::DrainArguments),
    /// Reboot a machine into its installed system: by its agent if the system runs, or else by its power.
    Reboot(agent::RebootArguments),
    /// Have the agent of a machine do a task that its operating system names.
    Task(agent::TaskArguments),
    /// Remove a machine that is out of service or was never in service, with its runs and logs.
    Remove {
        /// Id, name or claim code.
        node: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// Print the URL of the metadata of a machine's newest run. Anyone who has it can read the run's user-data.
    MetadataUrl {
        /// Id, name or claim code.
        node: String,
    },
    /// Print what a machine last proved with its TPM, as JSON: keys, quote, register values and event log.
    Attestation {
        /// Id, name or claim code.
        node: String,
    },
    /// Print a log of a machine: of its newest boot, or of an earlier one.
    Log {
        /// Id, name or claim code.
        node: String,
        /// Which log to print.
        #[arg(long, alias = "type", value_enum, default_value_t)]
        kind: LogType,
        /// Boot to print the log of: its number in the list of boots, where 1 is the newest, or its id.
        #[arg(long, value_name = "N")]
        boot: Option<String>,
        /// List the boots whose logs are kept, newest first.
        #[arg(long, conflicts_with = "boot")]
        list: bool,
    },
    /// Print the recovery keys that open a machine's encrypted disks when its TPM does not: volume and key, newest
    /// first. This is logged.
    RecoveryKey(recovery_key::Options),
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server node add --name web1 --uuid 4c4c4544-0042-3010-8058-b7c04f503432 --release
  slipway-server node add --name web2 --serial 7CZ1234 --mac 52:54:00:12:34:56
  slipway-server node add --name web3 --serial 7CZ1235 --require attested --release \
      --ek sha256:b4fe9c1ab3a0d22ae21a0eb86b3a5ef3b27a8e6ab2b6f8fa8f8a4d2fe9a7c6d1")]
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
    /// Where the machine is.
    #[arg(long, value_name = "NAME")]
    site: Option<String>,
    /// Note about the machine; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = words::label_pair)]
    labels: Vec<(String, String)>,
    /// Let the machine in as soon as it enrols.
    #[arg(long)]
    release: bool,
    /// Accept MAC addresses as the only identifiers. Anybody on the network can read and use them.
    #[arg(long)]
    mac_only: bool,
    /// How long the machine's system is meant to live.
    #[arg(long, value_enum, value_name = "CLASS", default_value_t)]
    class: NodeClass,
    /// What the machine must prove before it is let in.
    #[arg(long, value_enum, value_name = "PROOF", default_value_t)]
    require: Proof,
    /// Endorsement key of its TPM, as sha256: and the SHA-256 of the public key in DER. May be given several times,
    /// because a TPM may have one for each algorithm. Machines with another TPM are not let in.
    #[arg(long, value_name = "DIGEST")]
    ek: Vec<String>,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server node set web1 --network web1.yaml --ssh-key \"$(cat id_ed25519.pub)\"
  slipway-server node set web1 --disk-serial S4EVNF0M
  slipway-server node set web1 --site fra --label role=web --label rack=12
  slipway-server node set web1 --name db1")]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(DISK_OPTIONS)))]
pub struct NodeSet {
    /// Id, name or claim code.
    node: String,
    /// New name, also the host name of the next installed system.
    #[arg(long, group = "what")]
    name: Option<String>,
    /// SMBIOS system UUID, if it changed in a repair.
    #[arg(long, group = "what")]
    uuid: Option<String>,
    /// SMBIOS system serial number, if it changed in a repair.
    #[arg(long, group = "what")]
    serial: Option<String>,
    /// MAC address, if they changed in a repair; may be given several times, and replaces those that were registered.
    #[arg(long = "mac", group = "what")]
    macs: Vec<String>,
    /// Remove its UUID, for example because other machines have the same.
    #[arg(long, conflicts_with = "uuid", group = "what")]
    no_uuid: bool,
    /// Remove its serial number, for example because other machines have the same.
    #[arg(long, conflicts_with = "serial", group = "what")]
    no_serial: bool,
    /// Remove its MAC addresses, for example because cards were moved.
    #[arg(long, conflicts_with = "macs", group = "what")]
    no_mac: bool,
    /// Where the machine is.
    #[arg(long, value_name = "NAME", group = "what")]
    site: Option<String>,
    /// Remove the name of the place where the machine is.
    #[arg(long, conflicts_with = "site", group = "what")]
    no_site: bool,
    /// Note about the machine; may be given several times, and replaces the machine's current labels.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = words::label_pair, group = "what")]
    labels: Vec<(String, String)>,
    /// Remove the machine's labels.
    #[arg(long, conflicts_with = "labels", group = "what")]
    no_labels: bool,
    /// How long the machine's system is meant to live. Once the machine had a run, this needs --force.
    #[arg(long, value_enum, value_name = "CLASS", group = "what")]
    class: Option<NodeClass>,
    /// Change the class although the machine had a run.
    #[arg(long, requires = "class")]
    force: bool,
    /// What the machine must prove before it is let in.
    #[arg(long, value_enum, value_name = "PROOF", group = "what")]
    require: Option<Proof>,
    /// Endorsement key of its TPM, if it was replaced in a repair; may be given several times.
    #[arg(long, value_name = "DIGEST", group = "what")]
    ek: Vec<String>,
    /// Remove its TPM. Another TPM is recorded when it is registered, or when a machine is released by its claim code.
    #[arg(long, conflicts_with = "ek", group = "what")]
    no_ek: bool,
    /// YAML file with its network configuration.
    #[arg(long, value_name = "FILE", group = "what")]
    network: Option<PathBuf>,
    /// Remove the machine's network configuration; the image's own configuration is used.
    #[arg(long, conflicts_with = "network", group = "what")]
    no_network: bool,
    /// Public key that may log in, as a line of an id_ed25519.pub; may be given several times, and replaces the
    /// machine's current keys.
    #[arg(long = "ssh-key", value_name = "LINE", group = "what")]
    ssh_keys: Vec<String>,
    /// Remove the machine's keys; only the operating system's keys may log in.
    #[arg(long, conflicts_with = "ssh_keys", group = "what")]
    no_ssh_keys: bool,
    #[command(flatten)]
    disk: DiskOptions,
    /// Remove the machine's disk hints; the operating system's are used.
    #[arg(long, conflicts_with = "disk_hints", group = "what")]
    no_disk: bool,
}

/// Runs a command about machines.
pub async fn run(store: &Store, data: &DataDir, command: NodeCommand) -> anyhow::Result<()> {
    match command {
        NodeCommand::Add(add) => {
            let identity = Identity { uuid: add.uuid, serial: add.serial, macs: add.macs };
            let NodeAdd { name, release, mac_only, class, require, ek, site, .. } = add;
            let labels = add.labels.into_iter().collect();
            let new = NewNode { name, identity, release, mac_only, class, require, ek, site, labels };
            let added = operate::add_node(store, new).await?;
            print_line(&added.id)
        }
        NodeCommand::List { json: true } => print_json(&node_status::all(store).await?),
        NodeCommand::List { json: false } => print(&node_table(&node_status::all(store).await?)),
        NodeCommand::Show { node } => print_json(&operate::show_node(store, &node).await?),
        NodeCommand::Set(set) => {
            let node = set.node.clone();
            let changed = operate::change_node(store, &node, node_change(*set)?).await?;
            print_line(&format!("{} is changed; runs that were started keep their settings", label(&changed)))
        }
        NodeCommand::Release { node, name } => {
            let released = operate::release_node(store, &node, name).await?;
            print_line(&format!("{} is released", label(&released)))
        }
        NodeCommand::Replace { node, by, yes } => {
            let plan = operate::plan_replacement(store, &node, &by).await?;
            let means: Vec<String> = [ask::machine(&plan.node)].into_iter().chain(plan.in_words()).collect();
            yes.ask("replacing the machine", &means)?;
            let node = operate::replace_machine(store, &plan.node.id, &plan.code, Some(&plan)).await?;
            print_line(&format!("the machine with the claim code {by} is {} from now on", label(&node)))
        }
        NodeCommand::Decommission { node, erase, keep_disks, power_off, yes } => {
            let known = operate::show_node(store, &node).await?;
            match operate::erasure(&known, erase, keep_disks) {
                Some(mode) => erase_and_decommission(store, data, &known, mode, power_off, yes).await,
                None => decommission(store, &node, &known, power_off, yes).await,
            }
        }
        NodeCommand::Recommission { node, release } => {
            let node = operate::recommission_node(store, &node, release).await?;
            let then = if release { "is let in" } else { "waits to be released" };
            print_line(&format!("{} is back in service: its machine {then} when it boots slipway", label(&node)))
        }
        NodeCommand::Remove { node, yes } => {
            let known = operate::show_node(store, &node).await?;
            yes.ask("removing the machine", &ask::remove(&known))?;
            operate::remove_node(store, if is_stranger(&known) { &node } else { &known.id }).await?;
            print_line(&format!("{node} is removed"))
        }
        NodeCommand::Agent(arguments) => agent::agent(store, arguments).await,
        NodeCommand::Drain(arguments) => agent::drain(store, arguments).await,
        NodeCommand::Reboot(arguments) => agent::reboot(store, arguments).await,
        NodeCommand::Task(arguments) => agent::task(store, arguments).await,
        NodeCommand::Power(command) => power::run(store, command).await,
        NodeCommand::MetadataUrl { node } => {
            print_line(&operate::metadata_url(store, &Signer::open(data)?, &node).await?.url)
        }
        NodeCommand::Attestation { node } => print_json(&operate::node_attestation(store, &node).await?),
        NodeCommand::RecoveryKey(options) => recovery_key::run(store, options).await,
        NodeCommand::Log { node, kind, list: true, .. } => {
            print(&boot_table(&operate::list_boots(store, &node, kind).await?))
        }
        NodeCommand::Log { node, kind, boot, list: false } => {
            let log = operate::node_log(store, &node, kind, boot.as_deref()).await?;
            if log.is_empty() {
                eprintln!("nothing was logged yet");
            }
            print(&log)
        }
    }
}

fn node_change(set: NodeSet) -> anyhow::Result<NodeChange> {
    let network = match &set.network {
        Some(file) => {
            let network = operate::parse_network(&read(file)?).with_context(|| format!("reading {file:?}"))?;
            // An empty network would remove the setting, so a file that lost its interfaces is refused.
            ensure!(
                network != Network::default(),
                "reading {file:?}: the network has no interfaces; to remove the network of a node, use --no-network"
            );
            Some(network)
        }
        None => set.no_network.then(Network::default),
    };
    let ssh_keys = (set.no_ssh_keys || !set.ssh_keys.is_empty()).then_some(set.ssh_keys);
    let disk = set.disk.hints().or_else(|| set.no_disk.then(DiskHints::default));
    let identity = Identity { uuid: set.uuid, serial: set.serial, macs: set.macs };
    let identity = (identity != Identity::default()).then_some(identity);
    let forget = [
        (set.no_uuid, IdentifierKind::Uuid),
        (set.no_serial, IdentifierKind::Serial),
        (set.no_mac, IdentifierKind::Macs),
    ];
    let forget = forget.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, kind)| kind).collect();
    let ek = (set.no_ek || !set.ek.is_empty()).then_some(set.ek);
    let labels = (set.no_labels || !set.labels.is_empty()).then(|| set.labels.into_iter().collect());
    let NodeSet { name, class, force, require, site, no_site, .. } = set;
    Ok(NodeChange { name, identity, forget, class, force, require, ek, network, ssh_keys, disk, site, no_site, labels })
}

/// Erases all disks of a machine by a run, which then takes the machine out of service.
async fn erase_and_decommission(
    store: &Store,
    data: &DataDir,
    known: &NodeStatus,
    mode: EraseMode,
    power_off: bool,
    yes: Yes,
) -> anyhow::Result<()> {
    let (then, ca) = (Afterwards::decommission(power_off), ca::anchors(data)?);
    let (id, node) = (&known.id, label(known));
    let new = NewRun { replace: true, ..NewRun::erasing(mode, then) };
    let plan = async || operate::plan_run(store, &ca, id, new.clone()).await;
    yes.ask_for_run("erasing the machine and taking it out of service", plan).await?;
    let run = operate::start_run(store, &ca, id, new).await?;
    print_line(&format!(
        "run {} erases {node}; when it succeeded, {}: `status {node}` says how far that is",
        run.id,
        then.in_words()
    ))
}

/// Takes a machine out of service with its disks as they are.
async fn decommission(store: &Store, node: &str, known: &NodeStatus, power_off: bool, yes: Yes) -> anyhow::Result<()> {
    yes.ask("taking the machine out of service", &ask::decommission(known, power_off))?;
    let reference = if is_stranger(known) { node } else { &known.id };
    if power_off {
        let node = operate::decommission_node_and_switch_off(store, reference).await?;
        let name = label(&node);
        return print_line(&format!(
            "{name} is out of service, and is being switched off: `node power show {name}` says how far that is"
        ));
    }
    let decommissioned = operate::decommission_node(store, reference).await?;
    print_line(&format!("{} is out of service", label(&decommissioned)))
}

fn boot_table(boots: &[LoggedBoot]) -> String {
    let row = |(number, boot): (usize, &LoggedBoot)| {
        let LoggedBoot { boot_id, first_at, last_at, bytes } = boot;
        vec![number.to_string(), utc(*first_at), utc(*last_at), size(*bytes), boot_id.clone()]
    };
    words::table(&["Boot", "First line", "Last line", "Size", "Id"], (1..).zip(boots).map(row).collect())
}

fn node_table(nodes: &[NodeStatus]) -> String {
    let header = ["Id", "Name", "State", "Released", "Claim code", "TPM", "UUID", "Serial", "MACs"];
    let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let rows = nodes.iter().map(|node| {
        vec![
            node.id.clone(),
            dash(&node.name),
            words::word(&node.state),
            if node.released { "yes" } else { "no" }.to_owned(),
            dash(&node.claim_code),
            node.tpm.as_ref().map_or_else(words::dash, |tpm| words::word(&tpm.origin)),
            dash(&node.identity.uuid),
            dash(&node.identity.serial),
            node.identity.macs.join(" "),
        ]
    });
    words::table(&header, rows.collect())
}
