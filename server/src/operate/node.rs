//! Nodes: registers, changes, releases, decommissions and removes them.

use serde::{Deserialize, Serialize};
use slipway_protocol::identity::{meaningful, normalise_mac, normalise_uuid};
use slipway_protocol::{DiskHints, ErrorCode, Identity, Network, NodeState, NodeStatus};

use super::network::valid_network;
use super::{check_disk, check_keys, check_name, known_node};
use crate::enrol::{join, let_in};
use crate::error::Error;
use crate::state::{self, NodeEvent};
use crate::store::nodes::{self, Node};
use crate::store::{self, Connection, Store, recovery_keys, runs};
use crate::time::now;
use crate::{enrol, status};

/// A node to register.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewNode {
    /// Name of the node, and host name of the installed system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$", max_length = 253)]
    pub name: Option<String>,
    /// The identifiers of the machine. At least one is needed.
    #[serde(default)]
    pub identity: Identity,
    /// Whether the node is released at once, so that its machine need not wait to enrol.
    #[serde(default)]
    pub release: bool,
}

/// Changes to a node. Settings that are left out stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    /// New name of the node, and host name of the next system to be installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$", max_length = 253)]
    pub name: Option<String>,
    /// Network configuration of the installed system. If it is empty, the image's own is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Public SSH keys that give access to the installed system. They replace those the node had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_keys: Option<Vec<String>>,
    /// Hints for the disk to install on, in place of the operating system's. Empty hints remove the node's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskHints>,
}

/// Registers a node. A waiting machine that has one of its keys becomes that node.
pub async fn add_node(store: &Store, new: NewNode) -> Result<NodeStatus, Error> {
    let identity = valid_identity(&new.identity)?;
    let mut transaction = store.write().await?;
    if let Some(name) = &new.name {
        check_name_is_free(&mut transaction, name, None).await?;
    }
    let mut node = match enrol::recognise(&mut transaction, &identity).await? {
        Some(node) if node.registered => return Err(known_already(&node, new.name.as_deref())),
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

/// Refuses a name that is not a host name, or that refers to a node other than the one with this id.
async fn check_name_is_free(connection: &mut Connection, name: &str, id: Option<&str>) -> Result<(), Error> {
    check_name("node", name)?;
    let Some(other) = nodes::find(connection, name).await?.filter(|other| Some(&*other.id) != id) else {
        return Ok(());
    };
    let advice = match other.state {
        NodeState::Decommissioned => {
            format!("that node is out of service, and `node remove {}` frees its name", other.id)
        }
        _ => "choose another name".to_owned(),
    };
    let message = format!("the name {name:?} already refers to node {}; {advice}", other.id);
    Err(Error::refused(ErrorCode::Conflict, message))
}

/// The refusal to register a machine twice. It names the command that the operator needs.
fn known_already(node: &Node, name: Option<&str>) -> Error {
    let label = node.label();
    let advice = match (node.released, name) {
        (true, Some(name)) => format!("`node set {label} --name {name}` names it"),
        (true, None) => "it is already released, so there is nothing left to do".to_owned(),
        (false, Some(name)) => format!("`node release {label} --name {name}` names it and lets it in"),
        (false, None) => format!("`node release {label}` lets it in"),
    };
    let id = node.name.as_ref().map_or_else(String::new, |_| format!(" ({})", node.id));
    let message = format!("node {label}{id} already has these keys; {advice}");
    Error::refused(ErrorCode::Conflict, message)
}

/// Normalises the keys. Unlike a machine, an operator gets an error for a meaningless key.
fn valid_identity(given: &Identity) -> Result<Identity, Error> {
    let invalid = |message: String| Error::refused(ErrorCode::InvalidRequest, message);
    let uuid = given.uuid.as_deref().map(|text| {
        normalise_uuid(text)
            .ok_or_else(|| invalid(format!("{text:?} is not a UUID, or is one that many machines share")))
    });
    let serial = given.serial.as_deref().map(|text| {
        let usable = meaningful(text).map(str::to_owned);
        usable.ok_or_else(|| invalid(format!("{text:?} is not a serial number but a placeholder that vendors use")))
    });
    let macs = given.macs.iter().map(|text| {
        normalise_mac(text).ok_or_else(|| invalid(format!("{text:?} is not a MAC address such as 52:54:00:12:34:56")))
    });
    let identity =
        Identity { uuid: uuid.transpose()?, serial: serial.transpose()?, macs: macs.collect::<Result<_, _>>()? };
    if nodes::keys(&identity).next().is_none() {
        return Err(invalid("a node needs at least one of UUID, serial number and MAC address".to_owned()));
    }
    Ok(enrol::normalise(&identity))
}

/// The node with this id, name or claim code.
pub async fn show_node(store: &Store, reference: &str) -> Result<NodeStatus, Error> {
    let mut connection = store.read().await?;
    let node = known_node(&mut connection, reference).await?;
    status::one(&mut connection, node).await
}

/// Changes a node. A run keeps the settings it was started with.
pub async fn change_node(store: &Store, reference: &str, change: NodeChange) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    if let Some(name) = change.name {
        check_name_is_free(&mut transaction, &name, Some(&node.id)).await?;
        node.name = Some(name);
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
    // An operator who sets up a machine knows it.
    node.registered = true;
    nodes::save(&mut transaction, &node).await?;
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// Lets a node in, under another name if one is given.
pub async fn release_node(store: &Store, reference: &str, name: Option<String>) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    if node.state == NodeState::Decommissioned {
        let message = format!(
            "node {} was taken out of service for good; to let its machine in again, boot it and release it with the \
             claim code it shows",
            node.label()
        );
        return Err(Error::refused(ErrorCode::Decommissioned, message));
    }
    if let Some(name) = name {
        check_name_is_free(&mut transaction, &name, Some(&node.id)).await?;
        node.name = Some(name);
    }
    let_in(&mut node);
    nodes::save(&mut transaction, &node).await?;
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// Takes a node out of service. Its credentials are refused from now on, and its run is ended. If its machine connects
/// again, it is unknown.
pub async fn decommission_node(store: &Store, reference: &str) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    node.released = false;
    node.claim_code = None;
    node.state = state::next(node.state, NodeEvent::Decommissioned);
    nodes::save(&mut transaction, &node).await?;
    if let Some(mut run) = runs::newest_of(&mut transaction, &node.id).await? {
        state::end(&mut run.progress, "the node was taken out of service", now());
        runs::update(&mut transaction, &run).await?;
    }
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// Removes a node that is out of service or was never in service, with its runs and logs.
pub async fn remove_node(store: &Store, reference: &str) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    let node = known_node(&mut transaction, reference).await?;
    let label = node.label();
    let conflict = |message: String| Err(Error::refused(ErrorCode::Conflict, message));
    if !matches!(node.state, NodeState::Registered | NodeState::Held | NodeState::Decommissioned) {
        return conflict(format!(
            "node {label} is in service; take it out of service first (`node decommission {label}`)"
        ));
    }
    if !recovery_keys::of_node(&mut transaction, &node.id).await?.is_empty() {
        return conflict(format!(
            "recovery keys of disks are stored for node {label}; print and forget them first \
             (`node recovery-key {label} --list`, then `--forget VOLUME`)"
        ));
    }
    nodes::remove(&mut transaction, &node.id).await?;
    store::commit(transaction).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_told_of_a_key_that_means_nothing() {
        let keys = |uuid: Option<&str>, macs: &[&str]| Identity {
            uuid: uuid.map(str::to_owned),
            serial: None,
            macs: macs.iter().map(|mac| (*mac).to_owned()).collect(),
        };
        let refused = |identity: &Identity| valid_identity(identity).expect_err("refused").to_string();
        assert_eq!(refused(&keys(Some("12"), &[])), "\"12\" is not a UUID, or is one that many machines share");
        let expect = "\"zz\" is not a MAC address such as 52:54:00:12:34:56";
        assert_eq!(refused(&keys(None, &["zz"])), expect);
        let expect = "a node needs at least one of UUID, serial number and MAC address";
        assert_eq!(refused(&keys(None, &[])), expect);
    }
}
