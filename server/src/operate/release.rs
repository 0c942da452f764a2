//! Lets machines in: a node by its name, for the first machine that has its identifiers; or one machine by its claim code.

use slipway_protocol::{ClaimReason, ErrorCode, KeyOrigin, NodeKey, NodeState, NodeStatus, Proof};

use super::node::check_name_is_free;
use crate::admission::WAITS;
use crate::error::Error;
use crate::state::{self, NodeEvent};
use crate::store::claimants::{self, Claimant};
use crate::store::nodes::{self, Node};
use crate::store::{self, Connection, Store};
use crate::time::now;
use crate::{enrol, status};

/// Lets a node in, under another name if one is given. `reference` is its id or name, or a claim code: then the machine
/// that shows the code is the node from now on, and no other.
pub async fn release_node(store: &Store, reference: &str, name: Option<String>) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let claimant = match nodes::find(&mut transaction, reference).await? {
        Some(node) => Err(node),
        None => match claimants::find(&mut transaction, reference).await? {
            Some(claimant) => Ok(claimant),
            None => {
                let message = format!(
                    "no node has the id or name {reference:?}, and no machine that waits shows this claim code; \
                     `status` lists both"
                );
                return Err(Error::refused(ErrorCode::NotFound, message));
            }
        },
    };
    let mut node = match &claimant {
        Ok(claimant) => node_of(&mut transaction, claimant).await?,
        Err(node) => {
            check_one_machine(&mut transaction, node).await?;
            node.clone()
        }
    };
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
    node.release();
    match claimant {
        Ok(claimant) => bind(&mut transaction, &mut node, claimant).await?,
        Err(_) => nodes::save(&mut transaction, &node).await?,
    }
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// The node that a waiting machine becomes: the one whose identifiers it has, or a new one.
async fn node_of(connection: &mut Connection, claimant: &Claimant) -> Result<Node, Error> {
    let conflict = |message: String| Err(Error::refused(ErrorCode::Conflict, message));
    let code = &claimant.code;
    let found = enrol::candidates(connection, &claimant.identity).await?;
    let labels = |nodes: &[Node]| nodes.iter().map(Node::label).collect::<Vec<_>>().join(" and ");
    if claimant.reason == ClaimReason::ProofMissing {
        return conflict(format!(
            "the machine with the code {code} did not prove what node {} requires; give it a token made for the node \
             (`token add --node NODE`), or require less (`node set NODE --require registered`)",
            labels(&found.full)
        ));
    }
    match found.full.as_slice() {
        [node] => Ok(node.clone()),
        [] if found.partial.is_empty() => {
            let node = Node::new(claimant.identity.clone(), now());
            let state = state::next(node.state, NodeEvent::ToldToWait);
            let mac_only = claimant.identity.uuid.is_none() && claimant.identity.serial.is_none();
            Ok(Node { id: claimant.id.clone(), state, mac_only, ..node })
        }
        [] => conflict(format!(
            "the machine with the code {code} has some identifiers of {}, but not all; if it is that node after a \
             repair, register what changed (`node set NODE --uuid UUID`), and release it then; if it is another \
             machine, register it by its own identifiers (`node add`)",
            labels(&found.partial)
        )),
        several => conflict(format!(
            "the machine with the code {code} has the identifiers of {}; remove or change all but one of these nodes",
            labels(several)
        )),
    }
}

/// Refuses to release a node for whoever comes first, if several machines wait to be it.
async fn check_one_machine(connection: &mut Connection, node: &Node) -> Result<(), Error> {
    let since = now().saturating_sub(WAITS);
    let waiting = claimants::of_node(connection, &node.id).await?.into_iter();
    let waiting: Vec<String> = waiting
        .filter(|claimant| claimant.reason.identifiers_match() && claimant.last_asked >= since)
        .map(|claimant| format!("{} from {}", claimant.code, claimant.address))
        .collect();
    if waiting.len() < 2 {
        return Ok(());
    }
    let message = format!(
        "{} machines claim to be node {}: {}; release the right one by the claim code on its console",
        waiting.len(),
        node.label(),
        waiting.join(", ")
    );
    Err(Error::refused(ErrorCode::Conflict, message))
}

/// Makes the key of a waiting machine that of the node.
async fn bind(connection: &mut Connection, node: &mut Node, claimant: Claimant) -> Result<(), Error> {
    enrol::learn(node, claimant.report, claimant.last_asked);
    let key = NodeKey {
        fingerprint: claimant.key.clone(),
        proof: Proof::Registered,
        origin: KeyOrigin::Operator,
        since: now(),
        address: claimant.address,
    };
    // A new node must be stored before its key is.
    enrol::give_key(connection, node, key).await?;
    claimants::remove(connection, &claimant.key).await
}
