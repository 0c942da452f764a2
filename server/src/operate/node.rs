//! Nodes: registers, changes, releases, decommissions and removes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use slipway_protocol::shared::identity::{IdentifierKind, Unusable, mac_address, serial_number, system_uuid};
use slipway_protocol::{
    DiskHints, ErrorCode, Identity, Network, NodeClass, NodeState, NodeStatus, PowerAct, PowerState, Proof,
    SiteEventKind,
};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, Type};

use super::class::change_class;
use super::network::valid_network;
use super::tpm::registered_tpm;
use super::{check_keys, check_name, did, known_node};
use crate::base::error::Error;
use crate::base::time::now;
use crate::node::reports::{decommission, node_state};
use crate::node::status;
use crate::power;
use crate::rules::state::{self, NodeEvent};
use crate::run::new_run::check_disk;
use crate::store;
use crate::store::history::NewEvent;
use crate::store::nodes::{self, Node};
use crate::store::power as power_store;
use crate::store::{Connection, Store, Transaction, attestations, claimants, recovery_keys, runs, tokens};

/// Maximum number of labels of a node, and maximum length of a key, of a value, and of the name of a site.
const MAX_LABELS: usize = 32;
const MAX_LABEL_BYTES: usize = 63;

/// A node to register.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewNode {
    /// Name of the node, and host name of the installed system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        pattern = "^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$",
        max_length = 253
    )]
    pub name: Option<String>,
    /// The identifiers of the machine. At least one is needed.
    #[serde(default)]
    pub identity: Identity,
    /// Whether the node is released at once, so that its machine need not wait to enrol.
    #[serde(default)]
    pub release: bool,
    /// Whether MAC addresses may be the only identifiers. Anybody on the network can read and use them.
    #[serde(default)]
    pub mac_only: bool,
    /// How long it and its system are meant to live.
    #[serde(default)]
    pub class: NodeClass,
    /// What its machine must prove.
    #[serde(default)]
    pub require: Proof,
    /// The endorsement keys of its TPM: SHA-256 of SubjectPublicKeyInfo in DER (RFC 5280), as `sha256:` and
    /// hexadecimal. No machine with another TPM is let in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(schema_with = key_digests, required = false)]
    pub ek: Vec<String>,
    /// Where the machine is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[A-Za-z0-9_./:@+-]{1,63}$")]
    pub site: Option<String>,
    /// Notes about the node, as keys and values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(schema_with = labels, required = false)]
    pub labels: BTreeMap<String, String>,
}

/// Returns the schema of digests of endorsement keys.
fn key_digests() -> Schema {
    let digest = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^sha256:[0-9a-fA-F]{64}$"));
    ArrayBuilder::new().items(digest).build().into()
}

/// Returns the schema of labels, as [`check_labels`] requires them.
fn labels() -> Schema {
    let text = || ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[A-Za-z0-9_./:@+-]{1,63}$"));
    let labels = ObjectBuilder::new().schema_type(Type::Object).max_properties(Some(MAX_LABELS));
    labels.property_names(Some(text())).additional_properties(Some(text())).build().into()
}

/// Changes to a node. Settings that are left out stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    /// New name of the node, and host name of the next system to be installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        pattern = "^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$",
        max_length = 253
    )]
    pub name: Option<String>,
    /// Identifiers of its machine. Each kind that is given replaces what was registered, for example after a repair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Kinds of identifiers to forget, as of one that other machines have too. At least one identifier must be left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forget: Vec<IdentifierKind>,
    /// How long it and its system are meant to live. Once the node had a run, this changes only with `force`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<NodeClass>,
    /// Whether the class may change although the node had a run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// What its machine must prove.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require: Option<Proof>,
    /// The endorsement keys of its TPM, as in `NewNode`. They replace the TPM that the node is known by. An empty list
    /// forgets it. The node is then known by the TPM of the machine with its key, once that machine enrols again, or of
    /// a machine that is released by its claim code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = key_digests, required = false)]
    pub ek: Option<Vec<String>>,
    /// Network configuration of the installed system. If it is empty, the image's own is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Public SSH keys that give access to the installed system. They replace those the node had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_keys: Option<Vec<String>>,
    /// Hints for the disk to install on, in place of the operating system's. Empty hints remove the node's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskHints>,
    /// Where the machine is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[A-Za-z0-9_./:@+-]{1,63}$")]
    pub site: Option<String>,
    /// Whether the machine is at no site any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_site: bool,
    /// Notes about the node, as keys and values. They replace those it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = labels, required = false)]
    pub labels: Option<BTreeMap<String, String>>,
}

impl NodeChange {
    /// The settings that change, for people.
    fn in_words(&self) -> String {
        let settings = [
            (self.name.is_some(), "name"),
            (self.identity.is_some() || !self.forget.is_empty(), "identifiers"),
            (self.class.is_some(), "class"),
            (self.require.is_some(), "required proof"),
            (self.ek.is_some(), "TPM"),
            (self.network.is_some(), "network"),
            (self.ssh_keys.is_some(), "SSH keys"),
            (self.disk.is_some(), "disk hints"),
            (self.site.is_some() || self.no_site, "site"),
            (self.labels.is_some(), "labels"),
        ];
        let changed = settings.iter().filter(|(is_changed, _)| *is_changed).map(|(_, name)| *name);
        changed.collect::<Vec<_>>().join(", ")
    }
}

/// Registers a node with these identifiers and no others.
pub async fn add_node(store: &Store, new: NewNode) -> Result<NodeStatus, Error> {
    let identity = valid_identity(&new.identity)?;
    check_any(&identity)?;
    check_not_mac_only(&identity, new.mac_only)?;
    let mut transaction = store.write().await?;
    if let Some(name) = &new.name {
        check_name_is_free(&mut transaction, name, None).await?;
    }
    if let Some(node) = nodes::matching(&mut transaction, &identity).await?.first() {
        return Err(known_already(node, new.name.as_deref()));
    }
    let mut node = Node::new(identity, now());
    node.name = new.name;
    check_site(new.site.as_deref())?;
    check_labels(&new.labels)?;
    (node.site, node.labels) = (new.site, new.labels);
    node.mac_only = new.mac_only;
    node.class = new.class;
    node.require = new.require;
    node.tpm = registered_tpm(&mut transaction, &node, &new.ek).await?;
    if new.release {
        node.release();
    }
    nodes::save(&mut transaction, &node).await?;
    let released = if node.released { " and released" } else { "" };
    let event = NewEvent::new(format!("the node was added{released}")).of(&node);
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// Refuses a name of a site that commands could not take as one word.
fn check_site(site: Option<&str>) -> Result<(), Error> {
    site.map_or(Ok(()), |site| check_label_text("name of a site", site))
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Error> {
    if labels.len() > MAX_LABELS {
        let message = format!("the node has {} labels, but may have at most {MAX_LABELS}", labels.len());
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    labels.iter().try_for_each(|(key, value)| {
        check_label_text("key of a label", key)?;
        check_label_text("value of a label", value)
    })
}

fn check_label_text(what: &str, text: &str) -> Result<(), Error> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@+".contains(&byte);
    if (1..=MAX_LABEL_BYTES).contains(&text.len()) && text.bytes().all(is_plain) {
        return Ok(());
    }
    let message = format!(
        "{text:?} is not a valid {what}: use 1 to {MAX_LABEL_BYTES} letters, digits and the characters - _ . / : @ +"
    );
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

fn check_not_mac_only(identity: &Identity, accepted: bool) -> Result<(), Error> {
    if accepted || identity.uuid.is_some() || identity.serial.is_some() {
        return Ok(());
    }
    let message = "a MAC address alone proves nothing, because anybody on the network can read and use it; give the \
                   UUID or the serial number of the machine too (--uuid, --serial), or accept the risk with --mac-only";
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

/// Refuses a name that is not a host name, or that is the name or id of a node other than the one with this id.
pub(super) async fn check_name_is_free(connection: &mut Connection, name: &str, id: Option<&str>) -> Result<(), Error> {
    check_name("node", name)?;
    let Some(other) = nodes::find(connection, name).await?.filter(|other| Some(&*other.id) != id) else {
        return Ok(());
    };
    let advice = match other.state {
        NodeState::Decommissioned => {
            let id = &other.id;
            format!(
                "that node is out of service: `node recommission {id}` puts it back, and `node remove {id}` frees its \
                 name"
            )
        }
        _ => "choose another name".to_owned(),
    };
    let message = format!("the name {name:?} already refers to node {}; {advice}", other.id);
    Err(Error::refused(ErrorCode::Conflict, message))
}

/// Returns the refusal to register a machine twice. The message names the command that the operator needs.
fn known_already(node: &Node, name: Option<&str>) -> Error {
    let label = node.label();
    let advice = match (node.released, name) {
        (true, Some(name)) => format!("`node set {label} --name {name}` names it"),
        (true, None) => "it is already released, so there is nothing left to do".to_owned(),
        (false, Some(name)) => format!("`node release {label} --name {name}` names it and lets it in"),
        (false, None) => format!("`node release {label}` lets it in"),
    };
    let id = node.name.as_ref().map_or_else(String::new, |_| format!(" ({})", node.id));
    let message = format!("node {label}{id} is already registered with one of these identifiers; {advice}");
    Error::refused(ErrorCode::Conflict, message)
}

/// Returns the identifiers, each in its canonical spelling. Refuses an identifier that identifies no machine, which is
/// only ignored in the request of a machine.
fn valid_identity(given: &Identity) -> Result<Identity, Error> {
    let refuse = |text: &str, why: Unusable, kind: &str, like: &str, others: &str| {
        let message = match why {
            Unusable::Malformed => format!("{text:?} is not a {kind} such as {like}"),
            Unusable::Shared => format!(
                "the {kind} {text:?} is one that many machines have, so it identifies none of them; register the \
                 machine by {others}"
            ),
        };
        Error::refused(ErrorCode::InvalidRequest, message)
    };
    let uuid = given.uuid.as_deref().map(|text| {
        let like = "4c4c4544-0042-3010-8058-b7c04f503432";
        let others = "its serial number or a MAC address (--serial, --mac)";
        system_uuid(text).map_err(|why| refuse(text, why, "UUID", like, others))
    });
    let serial = given.serial.as_deref().map(|text| {
        let others = "its UUID or a MAC address (--uuid, --mac)";
        serial_number(text).map_err(|why| refuse(text, why, "serial number", "7CZ1234", others))
    });
    let macs = given.macs.iter().map(|text| {
        let others = "the address of another network card, its UUID or its serial number (--mac, --uuid, --serial)";
        mac_address(text).map_err(|why| refuse(text, why, "MAC address", "52:54:00:12:34:56", others))
    });
    let (uuid, serial, macs) = (uuid.transpose()?, serial.transpose()?, macs.collect::<Result<_, _>>()?);
    Ok(Identity { uuid, serial, macs }.usable())
}

fn check_any(identity: &Identity) -> Result<(), Error> {
    if identity.values().next().is_some() {
        return Ok(());
    }
    let message = "a node needs at least one of UUID, serial number and MAC address";
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

/// Returns the node with this id, name or claim code, or the waiting machine with this claim code if it is not a node.
pub async fn show_node(store: &Store, reference: &str) -> Result<NodeStatus, Error> {
    let mut connection = store.read().await?;
    if nodes::find(&mut connection, reference).await?.is_none()
        && let Some(claimant) = claimants::find(&mut connection, reference).await?
        && !claimant.reason.identifiers_match()
    {
        return status::stranger(&mut connection, claimant).await;
    }
    let node = known_node(&mut connection, reference).await?;
    status::one(&mut connection, node).await
}

/// Changes a node. A run keeps the settings that it was started with.
pub async fn change_node(store: &Store, reference: &str, change: NodeChange) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    let what = change.in_words();
    if let Some(name) = change.name {
        check_name_is_free(&mut transaction, &name, Some(&node.id)).await?;
        node.name = Some(name);
    }
    if change.identity.is_some() || !change.forget.is_empty() {
        let given = change.identity.unwrap_or_default();
        node.identity = changed_identity(&mut transaction, &node, given, &change.forget).await?;
        // Nobody asked for the disks of another machine to be erased.
        node_state::forget_anew(&mut transaction, &mut node).await?;
    }
    if let Some(class) = change.class {
        change_class(&mut transaction, &mut node, class, change.force).await?;
    }
    if let Some(require) = change.require {
        node.require = require;
    }
    if let Some(ek) = &change.ek {
        node.tpm = registered_tpm(&mut transaction, &node, ek).await?;
        attestations::remove(&mut transaction, &node.id).await?;
    }
    if let Some(network) = change.network {
        node.network = valid_network(network)?;
    }
    if let Some(keys) = change.ssh_keys {
        check_keys(&keys)?;
        node.ssh_keys = keys;
    }
    if let Some(disk) = change.disk {
        check_disk(&disk)?;
        node.disk = (disk != DiskHints::default()).then_some(disk);
    }
    check_site(change.site.as_deref())?;
    if change.site.is_some() || change.no_site {
        node.site = change.site;
    }
    if let Some(labels) = change.labels {
        check_labels(&labels)?;
        node.labels = labels;
    }
    nodes::save(&mut transaction, &node).await?;
    let event = NewEvent::new(format!("settings of the node were changed: {what}")).of(&node);
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// Returns the identifiers of a node after a change. Refuses identifiers of another node.
async fn changed_identity(
    connection: &mut Connection,
    node: &Node,
    given: Identity,
    forget: &[IdentifierKind],
) -> Result<Identity, Error> {
    let given = valid_identity(&given)?;
    let mut known = node.identity.clone();
    forget.iter().for_each(|kind| known.forget(*kind));
    let identity = Identity {
        uuid: given.uuid.or(known.uuid),
        serial: given.serial.or(known.serial),
        macs: if given.macs.is_empty() { known.macs } else { given.macs },
    };
    check_any(&identity)?;
    if !forget.is_empty() {
        check_not_mac_only(&identity, node.mac_only)?;
    }
    match nodes::matching(connection, &identity).await?.iter().find(|other| other.id != node.id) {
        Some(other) => {
            let message = format!("node {} is already registered with one of these identifiers", other.label());
            Err(Error::refused(ErrorCode::Conflict, message))
        }
        None => Ok(identity),
    }
}

/// Takes a node out of service. Its credentials are refused from now on, and its run is ended. If its machine connects
/// again, the machine is unknown.
pub async fn decommission_node(store: &Store, reference: &str) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let node = decommission(&mut transaction, reference).await?;
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// Takes a node out of service like [`decommission_node`], and has its machine switched off. Does nothing if nothing
/// can switch it.
pub async fn decommission_node_and_switch_off(store: &Store, reference: &str) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let node = decommission(&mut transaction, reference).await?;
    power::ask::ask(&mut transaction, &node, PowerAct::Off).await?;
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

async fn decommission(transaction: &mut Transaction, reference: &str) -> Result<Node, Error> {
    let mut node = known_node(transaction, reference).await?;
    decommission::decommission(transaction, &mut node).await?;
    let event = NewEvent::new("the node was taken out of service").of(&node);
    did(transaction, SiteEventKind::Operator, event).await?;
    Ok(node)
}

/// Puts a node that is out of service back into service, with its name, settings and history. Its machine enrols again,
/// as that of a node that was just registered. With `release`, the first machine that has its identifiers is let in.
pub async fn recommission_node(store: &Store, reference: &str, release: bool) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    let conflict = |message: String| Err(Error::refused(ErrorCode::Conflict, message));
    if node.state != NodeState::Decommissioned {
        return conflict(format!("node {} is not out of service", node.label()));
    }
    // Its machine may have been let in as another node since then.
    if let Some(other) = nodes::matching(&mut transaction, &node.identity).await?.first() {
        let (label, other) = (node.label(), other.label());
        return conflict(format!(
            "node {other} is registered with an identifier of node {label} by now; remove {other} first \
             (`node decommission {other}`, then `node remove {other}`), or give it other identifiers (`node set \
             {other}`)"
        ));
    }
    for ek in node.tpm.iter().flat_map(|tpm| &tpm.ek) {
        if let Some(other) = nodes::other_with_ek(&mut transaction, &node.id, ek).await? {
            return conflict(format!(
                "node {} is known by the TPM of node {} by now; forget it there first (`node set {0} --no-ek`)",
                other.label(),
                node.label()
            ));
        }
    }
    // Tokens from before it went out of service end here: they neither let a machine in nor report.
    for token in tokens::all(&mut transaction).await? {
        if token.made_for.as_ref() == Some(&node.id) {
            tokens::remove(&mut transaction, &token.hash).await?;
        }
    }
    runs::revoke_tokens_of_node(&mut transaction, &node.id).await?;
    node.state = state::next(node.state, NodeEvent::Recommissioned);
    node.key = None;
    node.key_left = false;
    // Its earlier runs are history.
    node.run = None;
    if let Some(mut power) = power_store::get_by_node(&mut transaction, &node.id).await? {
        (power.act, power.failed, power.state, power.state_at) = (None, None, None, None);
        power_store::save(&mut transaction, &power).await?;
    }
    if release {
        node.release();
    }
    nodes::save(&mut transaction, &node).await?;
    let how = if release { ", and released for the first machine that has its identifiers" } else { "" };
    let event = NewEvent::new(format!("the node was put back into service{how}")).of(&node);
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// Removes a node that is out of service or was never in service, with its runs and logs. If `reference` is the claim
/// code of a waiting machine, forgets that machine until it asks again.
pub async fn remove_node(store: &Store, reference: &str) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    if nodes::find(&mut transaction, reference).await?.is_none()
        && let Some(claimant) = claimants::find(&mut transaction, reference).await?
    {
        claimants::remove(&mut transaction, &claimant.key).await?;
        let message =
            format!("the waiting machine at {} with the claim code {} was forgotten", claimant.address, claimant.code);
        did(&mut transaction, SiteEventKind::Operator, NewEvent::new(message)).await?;
        return store::commit(transaction).await;
    }
    let node = known_node(&mut transaction, reference).await?;
    let label = node.label();
    let conflict = |message: String| Err(Error::refused(ErrorCode::Conflict, message));
    if !matches!(node.state, NodeState::Registered | NodeState::Held | NodeState::Decommissioned) {
        return conflict(format!(
            "node {label} is in service; take it out of service first (`node decommission {label}`)"
        ));
    }
    let power = power_store::get_by_node(&mut transaction, &node.id).await?;
    if power.is_some_and(|power| power.is_virtual() && power.state == Some(PowerState::On)) {
        return conflict(format!(
            "the virtual machine of node {label} is on, and nobody could switch it off any more; do that first (`node \
             power off {label}`)"
        ));
    }
    if !recovery_keys::of_node(&mut transaction, &node.id).await?.is_empty() {
        return conflict(format!(
            "recovery keys of disks are stored for node {label}; print and forget them first \
             (`node recovery-key {label} --list`, then `--forget VOLUME`)"
        ));
    }
    did(&mut transaction, SiteEventKind::Operator, NewEvent::new("the node was removed").of(&node)).await?;
    nodes::remove(&mut transaction, &node.id).await?;
    store::commit(transaction).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_told_of_an_identifier_that_identifies_nothing() {
        let keys = |uuid: Option<&str>, serial: Option<&str>, macs: &[&str]| Identity {
            uuid: uuid.map(str::to_owned),
            serial: serial.map(str::to_owned),
            macs: macs.iter().map(|mac| (*mac).to_owned()).collect(),
        };
        let refused = |identity: &Identity| {
            let judged = valid_identity(identity).and_then(|identity| check_any(&identity));
            judged.expect_err("refused").to_string()
        };
        let expect = "\"12\" is not a UUID such as 4c4c4544-0042-3010-8058-b7c04f503432";
        assert_eq!(refused(&keys(Some("12"), None, &[])), expect);
        let uuid = "00020003-0004-0005-0006-000700080009";
        let expect = format!(
            "the UUID {uuid:?} is one that many machines have, so it identifies none of them; register the machine by \
             its serial number or a MAC address (--serial, --mac)"
        );
        assert_eq!(refused(&keys(Some(uuid), None, &[])), expect);
        let expect = "the serial number \"Enter Serial\" is one that many machines have, so it identifies none of \
                      them; register the machine by its UUID or a MAC address (--uuid, --mac)";
        assert_eq!(refused(&keys(None, Some("Enter Serial"), &[])), expect);
        assert_eq!(refused(&keys(None, None, &["zz"])), "\"zz\" is not a MAC address such as 52:54:00:12:34:56");
        let expect = "a node needs at least one of UUID, serial number and MAC address";
        assert_eq!(refused(&keys(None, None, &[])), expect);
    }
}
