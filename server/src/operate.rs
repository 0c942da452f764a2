//! What operators do, whether on the command line or over HTTPS.

use std::io::Read;

use serde::{Deserialize, Serialize};
use slipway_protocol::identity::{meaningful, normalise_mac, normalise_uuid};
use slipway_protocol::{
    Action, ErrorCode, HOST_BOOT_LOG, Identity, Network, NodeState, NodeStatus, RunStatus, Step, ssh_key, workflow,
};
use slipway_user_data::ignition::{self, Additions};

use crate::enrol::{join, let_in};
use crate::jwt::Signer;
use crate::loose::check_known;
use crate::reporting::{PostKeys, Wish};
use crate::state::{self, Happening};
use crate::store::nodes::{self, Node};
use crate::store::run_tokens::{self, Purpose};
use crate::store::runs::{self, Run};
use crate::store::systems::{self, System};
use crate::store::{self, Connection, Store, boot_reports, images, logs, loose, settings, tokens};
use crate::time::{Millis, now};
use crate::{Error, boot_report, compose, enrol, metadata, random, reporting, run_token, status};

/// A node to register.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewNode {
    /// Name, also the installed system's host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The keys it will be recognised by; at least one.
    #[serde(default)]
    pub identity: Identity,
    /// Let it in as soon as it knocks.
    #[serde(default)]
    pub release: bool,
}

/// What changes about a node; what is not given stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    /// How its installed system is on the network; one without interfaces leaves that to the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Public keys of SSH that let into its installed system, in place of those it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_keys: Option<Vec<String>>,
}

/// What a node is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Install the operating system of this name.
    Os(String),
    /// Run these steps.
    Workflow(WorkflowFile),
}

/// A workflow as operators write it, in YAML or JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkflowFile {
    /// In the order they are run.
    pub steps: Vec<Step>,
    /// Have the installed system report, through every `seed-cloud-init` step there is.
    #[serde(default)]
    pub phone_home: bool,
    /// What it posts then: `all`, or names of keys with commas between them. Without it all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home_post: Option<PostKeys>,
    /// How often it tries, 3 s apart. Without it 10 times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home_tries: Option<u32>,
    /// Names of the loose steps that are expected. With any, reports of others are taken and flagged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_steps: Vec<String>,
}

/// A run to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRun {
    /// What the node is to do.
    pub task: Task,
    /// User-data in place of the operating system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Whether the installed system reports that it is up, whatever the operating system or the workflow says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home: Option<bool>,
    /// What it posts: `all`, or names of keys with commas between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home_post: Option<PostKeys>,
    /// How often it tries, 3 s apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home_tries: Option<u32>,
    /// Names of the loose steps that are expected, in place of the operating system's or the workflow's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_steps: Vec<String>,
    /// End a run that is still going on, as failed, instead of refusing.
    #[serde(default)]
    pub replace: bool,
}

/// The logs there are of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub enum LogType {
    /// The kernel's and slipway's, while slipway runs on the machine.
    #[default]
    #[serde(rename = "installer")]
    Installer,
    /// The installed system's, as its boot reporter sent it last.
    #[serde(rename = "host_boot")]
    HostBoot,
}

impl NewRun {
    /// A run that leaves everything to its task.
    pub fn new(task: Task) -> Self {
        Self {
            task,
            user_data: None,
            phone_home: None,
            phone_home_post: None,
            phone_home_tries: None,
            known_steps: Vec::new(),
            replace: false,
        }
    }

    fn reporting(&self) -> Wish {
        Wish { on: self.phone_home, post: self.phone_home_post.clone(), tries: self.phone_home_tries }
    }
}

/// A bootstrap token that was issued. It is shown this once and stored as its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct IssuedToken {
    /// The token.
    pub token: String,
    /// When it stops being good, in milliseconds since 1970, if ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
}

/// Where a system finds its metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MetadataUrl {
    /// Below it are `latest/` and `2009-04-04/`.
    pub url: String,
}

/// Registers a node. A machine that is already waiting with one of its keys becomes that node.
pub async fn add_node(store: &Store, new: NewNode) -> Result<NodeStatus, Error> {
    let identity = valid_identity(&new.identity)?;
    if let Some(name) = &new.name {
        check_name("node", name)?;
    }
    let mut transaction = store.write().await?;
    if let Some(name) = &new.name
        && let Some(other) = nodes::find(&mut transaction, name).await?
    {
        let message = format!("the name {name:?} already means node {}", other.id);
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let mut node = match enrol::recognise(&mut transaction, &identity).await? {
        Some(node) if node.registered => {
            let message = format!("node {} ({}) already has these keys", node.label(), node.id);
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
        Some(waiting) => waiting,
        None => Node::new(NodeState::Registered, now()),
    };
    join(&mut node.identity, identity);
    node.registered = true;
    node.name = new.name;
    if new.release {
        let_in(&mut node);
    }
    nodes::save(&mut transaction, &node).await?;
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// The keys in their one spelling. Unlike a machine, an operator is told of a key that means nothing.
fn valid_identity(given: &Identity) -> Result<Identity, Error> {
    let invalid = |message: String| Error::refused(ErrorCode::InvalidRequest, message);
    let uuid = given.uuid.as_deref().map(|text| {
        normalise_uuid(text).ok_or_else(|| invalid(format!("{text:?} is no UUID, or one that many machines share")))
    });
    let serial = given.serial.as_deref().map(|text| {
        let usable = meaningful(text).map(str::to_owned);
        usable.ok_or_else(|| invalid(format!("{text:?} is no serial number, but what vendors put in place of one")))
    });
    let macs = given.macs.iter().map(|text| {
        normalise_mac(text).ok_or_else(|| invalid(format!("{text:?} is no MAC address such as 52:54:00:12:34:56")))
    });
    let identity =
        Identity { uuid: uuid.transpose()?, serial: serial.transpose()?, macs: macs.collect::<Result<_, _>>()? };
    if nodes::keys(&identity).next().is_none() {
        return Err(invalid("a node needs at least one of UUID, serial number and MAC address".to_owned()));
    }
    Ok(enrol::normalise(&identity))
}

/// Names become host names: labels of letters, digits and hyphens, joined by dots (RFC 1123, section 2.1).
fn check_name(what: &str, name: &str) -> Result<(), Error> {
    let label = |label: &str| {
        let letters = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        letters && (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
    };
    if name.len() <= 253 && name.split('.').all(label) {
        return Ok(());
    }
    let message = format!("{name:?} cannot name a {what}: use letters, digits, hyphens and dots, as in host names");
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

/// The node meant by an id, a name or a claim code.
pub async fn show_node(store: &Store, reference: &str) -> Result<NodeStatus, Error> {
    let mut connection = store.read().await?;
    let node = known_node(&mut connection, reference).await?;
    status::one(&mut connection, node).await
}

/// Changes what is known of a node. A run that was started keeps what it was started with.
pub async fn change_node(store: &Store, reference: &str, change: NodeChange) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    if let Some(network) = change.network {
        node.network = valid_network(network)?;
    }
    if let Some(keys) = change.ssh_keys {
        check_keys(&keys)?;
        node.ssh_keys = keys;
    }
    // Who says how a machine is set up knows of it.
    node.registered = true;
    nodes::save(&mut transaction, &node).await?;
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// The network, unless it is empty.
fn valid_network(network: Network) -> Result<Option<Network>, Error> {
    if network == Network::default() {
        return Ok(None);
    }
    let problems = network.problems();
    if problems.is_empty() {
        return Ok(Some(network));
    }
    Err(Error::refused(ErrorCode::InvalidRequest, format!("the network makes no sense: {}", problems.join("; "))))
}

fn check_keys(keys: &[String]) -> Result<(), Error> {
    // By its number: what is no public key may be a private one, and this is logged.
    let problem =
        |(number, key): (usize, &String)| Some(format!("SSH key {number} cannot be used: {}", ssh_key::problem(key)?));
    (1..).zip(keys).find_map(problem).map_or(Ok(()), |message| Err(Error::refused(ErrorCode::InvalidRequest, message)))
}

/// Reads how a node is on the network from a file of an operator. Errors name line and column.
pub fn parse_network(yaml: &str) -> Result<Network, Error> {
    serde_saphyr::from_str(yaml).map_err(|error| {
        // Which ends with line and column.
        let reason = error.without_snippet();
        Error::refused(ErrorCode::InvalidRequest, format!("the network is not valid: {reason}"))
    })
}

/// Lets a node in.
pub async fn release_node(store: &Store, reference: &str) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    if node.state == NodeState::Decommissioned {
        let message = format!(
            "node {} was taken out of service for good; release its machine by the claim code it shows when it boots again",
            node.label()
        );
        return Err(Error::refused(ErrorCode::Decommissioned, message));
    }
    let_in(&mut node);
    nodes::save(&mut transaction, &node).await?;
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// Takes a node out of service: its credentials are refused from now on, its run is ended, and its machine, should it knock
/// again, is one nobody knows.
pub async fn decommission_node(store: &Store, reference: &str) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    node.released = false;
    node.claim_code = None;
    node.state = state::next(node.state, Happening::Decommissioned);
    nodes::save(&mut transaction, &node).await?;
    if let Some(mut run) = runs::newest_of(&mut transaction, &node.id).await? {
        state::end(&mut run.progress, "the node was taken out of service", now());
        runs::update(&mut transaction, &run).await?;
    }
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

async fn known_node(connection: &mut Connection, reference: &str) -> Result<Node, Error> {
    let node = nodes::find(connection, reference).await?;
    node.ok_or_else(|| {
        let message = format!("no node has the id, name or claim code {reference:?}");
        Error::refused(ErrorCode::NotFound, message)
    })
}

/// The newest log of a node.
pub async fn node_log(store: &Store, reference: &str, kind: LogType) -> Result<String, Error> {
    let mut connection = store.read().await?;
    let node = known_node(&mut connection, reference).await?;
    match kind {
        LogType::Installer => Ok(logs::text(&logs::newest_of(&mut connection, &node.id).await?)),
        LogType::HostBoot => {
            let log = boot_reports::newest_log(&mut connection, &node.id, HOST_BOOT_LOG).await?;
            log.map_or(Ok(String::new()), |log| unpacked(&log, &node))
        }
    }
}

/// The text of a log that was stored compressed. How large it is was looked at before it was stored.
fn unpacked(log: &[u8], node: &Node) -> Result<String, Error> {
    let mut text = Vec::new();
    let failed = |source| Error::Log { node: node.label().to_owned(), source };
    flate2::read::GzDecoder::new(log).read_to_end(&mut text).map_err(failed)?;
    // It is shown in terminals, which obey control characters, and whoever has the token writes it.
    let shown = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { ' ' } else { c };
    Ok(String::from_utf8_lossy(&text).chars().map(shown).collect())
}

/// Where the system that a node's newest run installs finds its metadata. Whoever has the URL can read the run's user-data.
pub async fn metadata_url(store: &Store, signer: &Signer, reference: &str) -> Result<MetadataUrl, Error> {
    let mut connection = store.read().await?;
    let node = known_node(&mut connection, reference).await?;
    let run = metadata::newest_run(&mut connection, &node).await?;
    let server = server_url(&mut connection).await?;
    Ok(MetadataUrl { url: format!("{server}/v1/metadata/{}", signer.metadata_token(&run)) })
}

/// Issues a token by which something of a node's newest run may be reported. Returns it, and the server's URL.
pub async fn add_run_token(store: &Store, reference: &str, purpose: Purpose) -> Result<(String, String), Error> {
    let mut transaction = store.write().await?;
    let node = known_node(&mut transaction, reference).await?;
    let Some(run) = &node.run else {
        let message = format!("node {} has no run to report steps of; start one with `run start`", node.label());
        return Err(Error::refused(ErrorCode::Conflict, message));
    };
    let url = server_url(&mut transaction).await?;
    let token = run_token::issue(&mut transaction, run, purpose, now()).await?;
    store::commit(transaction).await?;
    Ok((token, url))
}

/// Issues a bootstrap token. `lifetime` is in milliseconds.
pub async fn add_token(store: &Store, lifetime: Option<Millis>) -> Result<IssuedToken, Error> {
    let now = now();
    let issued = IssuedToken {
        token: random::token(),
        expires_at: lifetime.map(|lifetime| now.saturating_add(lifetime).min(i64::MAX.cast_unsigned())),
    };
    let mut transaction = store.write().await?;
    tokens::insert(&mut transaction, &random::token_hash(&issued.token), now, issued.expires_at).await?;
    store::commit(transaction).await?;
    Ok(issued)
}

/// Adds an operating system, or replaces the one of the same name.
pub async fn add_system(store: &Store, mut system: System) -> Result<System, Error> {
    check_name("operating system", &system.name)?;
    let mut transaction = store.write().await?;
    let Some(image) = images::get_by_digest(&mut transaction, &system.image).await? else {
        let message = format!("there is no image {}; add it with `image add`", system.image);
        return Err(Error::refused(ErrorCode::NotFound, message));
    };
    system.raw_size = system.raw_size.or(image.raw_size);
    system.raw_digest = system.raw_digest.or(image.raw_digest);
    for argument in &system.kernel_args {
        if let Some(problem) = workflow::kernel_argument_problem(argument) {
            let message = format!("the kernel argument {argument:?} cannot be used: {problem}");
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
    }
    system.reporting().check()?;
    check_keys(&system.ssh_keys)?;
    if let (Some(user_data), true) = (&system.user_data, system.phone_home) {
        reporting::check_user_data(user_data)?;
    }
    if let (Some(vendor_data), true) = (&system.vendor_data, system.phone_home) {
        reporting::check_vendor_data(vendor_data)?;
    }
    check_known(&system.known_steps)?;
    systems::save(&mut transaction, &system, now()).await?;
    store::commit(transaction).await?;
    Ok(system)
}

/// Starts a run on a node. The node fetches it when it next polls, at once if it is polling.
///
/// `ca` is the certificate the installed system must trust to report.
pub async fn start_run(store: &Store, ca: &str, reference: &str, new: NewRun) -> Result<RunStatus, Error> {
    let now = now();
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    if matches!(node.state, NodeState::Decommissioned | NodeState::Draining) {
        let message = format!("node {} is out of service or about to be", node.label());
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let id = random::id();
    make_room(&mut transaction, &node, &id, new.replace, now).await?;

    let known_steps = known_steps(&mut transaction, &new).await?;
    let (mut steps, wish) = steps(&mut transaction, &node, new).await?;
    give_instance_ids(&mut steps);
    wish.check()?;
    let token = wish.on.unwrap_or_default().then(random::token);
    if let Some(token) = &token {
        let url = format!("{}/v1/phone-home/{token}", server_url(&mut transaction).await?);
        reporting::ask(&mut steps, &wish.block(url), ca)?;
    } else {
        let server = settings::read(&mut transaction, settings::SERVER_URL).await?;
        reporting::do_not_ask(&mut steps, server.as_deref())?;
    }
    let boot_token = random::token();
    let reports_boots = boot_report::is_asked_for(&steps);
    if reports_boots {
        compose::ask_to_report_boots(&mut steps, &server_url(&mut transaction).await?, &boot_token, ca);
    }
    refuse_problems(&steps)?;
    check_ignition(&steps)?;
    let run = Run {
        id: id.clone(),
        node: node.id.clone(),
        progress: state::pending(&steps),
        workflow: steps,
        last_seq: 0,
        phone_home_hash: token.as_deref().map(random::token_hash),
        phone_home: std::collections::BTreeMap::new(),
        created_at: now,
        started_at: None,
        phoned_home_at: None,
        last_contact_at: None,
    };
    runs::insert(&mut transaction, &run, &instances(&run.workflow)).await?;
    loose::expect(&mut transaction, &id, &known_steps).await?;
    if reports_boots {
        run_tokens::insert(&mut transaction, &random::token_hash(&boot_token), &id, Purpose::Boot, now).await?;
    }
    node.run = Some(id);
    node.state = state::next(node.state, Happening::GivenWork);
    // Who gives a machine work knows of it.
    node.registered = true;
    nodes::save(&mut transaction, &node).await?;
    store::commit(transaction).await?;
    tracing::info!(node = node.label(), run = run.id, "run started");
    Ok(status::of_run(run))
}

/// Refuses, or ends, a run that is still going on.
async fn make_room(
    connection: &mut Connection,
    node: &Node,
    by: &str,
    replace: bool,
    now: Millis,
) -> Result<(), Error> {
    let Some(mut run) = runs::newest_of(connection, &node.id).await? else { return Ok(()) };
    if !state::is_open(run.progress.state) {
        return Ok(());
    }
    if !replace {
        let message = format!(
            "node {} still has run {} to finish; have it replaced (--replace) to end it as failed",
            node.label(),
            run.id
        );
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    state::end(&mut run.progress, &format!("replaced by run {by}"), now);
    runs::update(connection, &run).await
}

/// The steps of a task, and what is said about the reports of the installed system: the run's word before all others.
async fn steps(connection: &mut Connection, node: &Node, new: NewRun) -> Result<(Vec<Step>, Wish), Error> {
    let wish = new.reporting();
    match new.task {
        Task::Os(name) => {
            let Some(system) = systems::get_by_name(connection, &name).await? else {
                let message = format!("there is no operating system {name:?}; add it with `os add`");
                return Err(Error::refused(ErrorCode::NotFound, message));
            };
            if new.user_data.is_some() && !system.allow_override {
                let message = format!(
                    "the operating system {name:?} has allow_override false: a run brings no user-data of its own; \
                     start it without, or add the system again with --allow-override true"
                );
                return Err(Error::refused(ErrorCode::Forbidden, message));
            }
            let server = server_url(connection).await?;
            let mut steps = compose::install(&system, &server, node.name.as_deref(), new.user_data.as_deref());
            compose::set_up(&mut steps, node.network.as_ref(), &node.ssh_keys);
            Ok((steps, wish.or(system.reporting())))
        }
        Task::Workflow(_) if new.user_data.is_some() => {
            let message = "a workflow brings its own user-data, in its seed-cloud-init step";
            Err(Error::refused(ErrorCode::InvalidRequest, message))
        }
        Task::Workflow(workflow) => {
            let WorkflowFile { steps, phone_home, phone_home_post: post, phone_home_tries: tries, .. } = workflow;
            Ok((steps, wish.or(Wish { on: Some(phone_home), post, tries })))
        }
    }
}

/// Gives every seed an instance id that has none, so that cloud-init takes what it finds for a new machine.
fn give_instance_ids(steps: &mut [Step]) {
    for step in steps {
        if let Action::SeedCloudInit(seed) = &mut step.action
            && seed.instance_id.is_empty()
        {
            seed.instance_id = compose::instance_id();
        }
    }
}

/// The names of loose steps a run is to expect: its own, else those of what it is made of.
async fn known_steps(connection: &mut Connection, new: &NewRun) -> Result<Vec<String>, Error> {
    let names = match &new.task {
        _ if !new.known_steps.is_empty() => new.known_steps.clone(),
        Task::Os(name) => {
            let system = systems::get_by_name(connection, name).await?;
            system.map(|system| system.known_steps).unwrap_or_default()
        }
        Task::Workflow(workflow) => workflow.known_steps.clone(),
    };
    check_known(&names)?;
    Ok(names)
}

async fn server_url(connection: &mut Connection) -> Result<String, Error> {
    let url = settings::read(connection, settings::SERVER_URL).await?;
    url.ok_or_else(|| {
        let message = "the server's URL is not known yet; start it once with `serve --url`";
        Error::refused(ErrorCode::Conflict, message)
    })
}

/// Refuses what the node would refuse, while no disk is erased yet.
fn refuse_problems(steps: &[Step]) -> Result<(), Error> {
    let problems = workflow::problems(steps);
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::refused(ErrorCode::InvalidRequest, problems.join("; ")))
}

/// Refuses an Ignition config that the node would refuse.
fn check_ignition(steps: &[Step]) -> Result<(), Error> {
    for step in steps {
        if let Action::SeedCloudInit(seed) = &step.action
            && seed.is_for_ignition()
        {
            let additions = Additions {
                hostname: seed.hostname.as_deref(),
                ssh_keys: &seed.ssh_keys,
                phone_home: seed.phone_home.as_ref(),
                ca: seed.ca.as_deref(),
                instance_id: &seed.instance_id,
            };
            complete_config(&seed.user_data, &additions)?;
        }
    }
    Ok(())
}

pub(crate) fn complete_config(config: &str, additions: &Additions) -> Result<(), Error> {
    ignition::complete(config, additions).map(drop).map_err(|refusal| {
        let message = format!("the Ignition config cannot be used: {refusal}");
        Error::refused(ErrorCode::InvalidRequest, message)
    })
}

/// The instance ids that systems may report with: those that nobody guesses.
fn instances(steps: &[Step]) -> Vec<&str> {
    let instances = steps.iter().filter_map(|step| match &step.action {
        Action::SeedCloudInit(seed) => Some(seed.instance_id.as_str()),
        _ => None,
    });
    instances.filter(|instance| compose::is_unguessable(instance)).collect()
}

/// Reads a workflow file. Errors name line and column.
pub fn parse_workflow(yaml: &str) -> Result<WorkflowFile, Error> {
    serde_saphyr::from_str(yaml).map_err(|error| {
        // Which ends with line and column.
        let reason = error.without_snippet();
        Error::refused(ErrorCode::InvalidRequest, format!("the workflow is not valid: {reason}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_host_names() {
        for good in ["web1", "web-1.example", "debian-12"] {
            check_name("node", good).expect(good);
        }
        for bad in ["", "-a", "a-", "a b", "a..b", "ä", &"a".repeat(64)] {
            check_name("node", bad).expect_err(bad);
        }
    }

    #[test]
    fn hints_are_written_as_yaml_has_them() {
        let read = |hints: &str| {
            parse_workflow(&format!("steps:\n- name: wipe\n  action:\n    erase-disk:\n      disk: {{{hints}}}\n"))
        };
        let found = read("size: 120, rotational: false, serial: 0012, model: <in> fast, skip: [{size: \">= 400\"}]");
        let json = serde_json::to_value(&found.expect("hints").steps).expect("JSON");
        let hints = serde_json::json!({
            "size": "120", "rotational": false, "serial": "0012", "model": "<in> fast", "skip": [{"size": ">= 400"}],
        });
        assert_eq!(json[0]["action"]["erase-disk"]["disk"], hints);
        for (hints, part) in [
            ("size: \"=> 1\"", "which is no operator here"),
            ("serial: \">= 1\"", "which is no operator here"),
            ("size: big", "where whole GiB are needed"),
            ("size: 1.5", "whole GiB"),
            ("rotational: maybe", "boolean"),
        ] {
            let error = read(hints).expect_err(hints).to_string();
            assert!(error.contains(part) && error.contains("line 5"), "{error}");
        }
    }

    #[test]
    fn an_operator_is_told_of_a_key_that_means_nothing() {
        let keys = |uuid: Option<&str>, macs: &[&str]| Identity {
            uuid: uuid.map(str::to_owned),
            serial: None,
            macs: macs.iter().map(|mac| (*mac).to_owned()).collect(),
        };
        let refused = |identity: &Identity| valid_identity(identity).expect_err("refused").to_string();
        assert_eq!(refused(&keys(Some("12"), &[])), "\"12\" is no UUID, or one that many machines share");
        let expect = "\"zz\" is no MAC address such as 52:54:00:12:34:56";
        assert_eq!(refused(&keys(None, &["zz"])), expect);
        let expect = "a node needs at least one of UUID, serial number and MAC address";
        assert_eq!(refused(&keys(None, &[])), expect);
    }

    #[test]
    fn a_workflow_error_names_its_place() {
        let yaml = "steps:\n  - name: go\n    action:\n      reboot: {}\n    retrys: 2\n";
        let error = parse_workflow(yaml).expect_err("retrys is no key").to_string();
        assert!(error.starts_with("the workflow is not valid: unknown field `retrys`"), "{error}");
        assert!(error.ends_with(" at line 5, column 5"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");

        let yaml = "steps:\n  - name: go\n    action:\n      reboot: {}\n";
        let workflow = parse_workflow(yaml).expect("valid");
        assert_eq!(workflow.steps[0].action.name(), "reboot");
    }
}
