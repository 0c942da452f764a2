//! Nodes: registered, changed, let in, taken out of service.

use serde::{Deserialize, Serialize};
use slipway_protocol::identity::{meaningful, normalise_mac, normalise_uuid};
use slipway_protocol::{DiskHints, ErrorCode, Identity, Network, NodeState, NodeStatus};

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
    /// Name, also the installed system's host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$", max_length = 253)]
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
    /// Another name, which is also the host name of what is installed next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$", max_length = 253)]
    pub name: Option<String>,
    /// How its installed system is on the network; one without interfaces leaves that to the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Public keys of SSH that let into its installed system, in place of those it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_keys: Option<Vec<String>>,
    /// Which disk its operating systems go to, in place of their own hints; empty hints leave that to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskHints>,
}

/// Registers a node. A machine that is already waiting with one of its keys becomes that node.
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

/// Refuses a name that is no host name, and one that means another node than the one with this id.
async fn check_name_is_free(connection: &mut Connection, name: &str, id: Option<&str>) -> Result<(), Error> {
    check_name("node", name)?;
    let Some(other) = nodes::find(connection, name).await?.filter(|other| Some(&*other.id) != id) else {
        return Ok(());
    };
    let advice = match other.state {
        NodeState::Decommissioned => format!("it is out of service, and `node remove {}` frees its name", other.id),
        _ => "choose another".to_owned(),
    };
    let message = format!("the name {name:?} already means node {}; {advice}", other.id);
    Err(Error::refused(ErrorCode::Conflict, message))
}

/// Refuses to register a machine a second time, and says what would do what was meant.
fn known_already(node: &Node, name: Option<&str>) -> Error {
    let label = node.label();
    let advice = match (node.released, name) {
        (true, Some(name)) => format!("`node set {label} --name {name}` names it"),
        (true, None) => "it is released, and nothing is left to do".to_owned(),
        (false, Some(name)) => format!("`node release {label} --name {name}` names it and lets it in"),
        (false, None) => format!("`node release {label}` lets it in"),
    };
    let id = node.name.as_ref().map_or_else(String::new, |_| format!(" ({})", node.id));
    let message = format!("node {label}{id} already has these keys; {advice}");
    Error::refused(ErrorCode::Conflict, message)
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
    let problems = network.validate();
    if problems.is_empty() {
        return Ok(Some(network));
    }
    Err(Error::refused(ErrorCode::InvalidRequest, format!("the network makes no sense: {}", problems.join("; "))))
}

/// Reads how a node is on the network from a file of an operator. Errors name line and column.
pub fn parse_network(yaml: &str) -> Result<Network, Error> {
    serde_saphyr::from_str(yaml).map_err(|error| {
        // Which ends with line and column.
        let reason = error.without_snippet();
        Error::refused(ErrorCode::InvalidRequest, format!("the network is not valid: {reason}"))
    })
}

/// Lets a node in, under another name if one is given.
pub async fn release_node(store: &Store, reference: &str, name: Option<String>) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    if node.state == NodeState::Decommissioned {
        let message = format!(
            "node {} was taken out of service for good; release its machine by the claim code it shows when it boots again",
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

/// Takes a node out of service: its credentials are refused from now on, its run is ended, and its machine, should it knock
/// again, is one nobody knows.
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

/// Removes a node that is out of service or never came into it, with its runs and logs.
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
            "recovery keys of disks are stored for node {label}; have them printed and forgotten first \
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
        assert_eq!(refused(&keys(Some("12"), &[])), "\"12\" is no UUID, or one that many machines share");
        let expect = "\"zz\" is no MAC address such as 52:54:00:12:34:56";
        assert_eq!(refused(&keys(None, &["zz"])), expect);
        let expect = "a node needs at least one of UUID, serial number and MAC address";
        assert_eq!(refused(&keys(None, &[])), expect);
    }
}
