//! Lets machines in: a node by its name, for the first machine that has its identifiers; or one machine by its claim
//! code.

use slipway_protocol::{
    ClaimReason, EkCertificate, ErrorCode, KeyOrigin, NodeKey, NodeState, NodeStatus, NodeTpm, Proof, SiteEventKind,
    TpmOrigin,
};

use super::did;
use super::node::check_name_is_free;
use crate::base::error::Error;
use crate::base::time::now;
use crate::node::admission;
use crate::node::enrol::apply;
use crate::node::reports::node_state;
use crate::node::status;
use crate::rules::state::{self, NodeEvent};
use crate::rules::trouble::WAITS;
use crate::store;
use crate::store::claimants::{self, Claimant};
use crate::store::history::NewEvent;
use crate::store::nodes::{self, Node};
use crate::store::{Connection, Store, attestations, node_contacts};

/// Lets a node in, under another name if one is given. `reference` is the id or name of the node, or the claim code of
/// a waiting machine. With a claim code, that machine is the node from now on, and no other.
pub async fn release_node(store: &Store, reference: &str, name: Option<String>) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let claimant = match nodes::find(&mut transaction, reference).await? {
        Some(node) => Err(node),
        None => match claimants::find(&mut transaction, reference).await? {
            Some(claimant) => Ok(claimant),
            None => {
                let message = format!(
                    "no node has the id or name {reference:?}, and no waiting machine shows this claim code; \
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
            "node {0} is out of service: `node recommission {0}` puts it back; to let its machine in as another node, \
             boot it and release it with the claim code it shows",
            node.label()
        );
        return Err(Error::refused(ErrorCode::Decommissioned, message));
    }
    if let Some(name) = name {
        check_name_is_free(&mut transaction, &name, Some(&node.id)).await?;
        node.name = Some(name);
    }
    node.release();
    let how = match &claimant {
        Ok(claimant) => {
            format!("the machine at {} with the claim code {} was released", claimant.address, claimant.code)
        }
        Err(_) => "the node was released for the first machine that has its identifiers".to_owned(),
    };
    match claimant {
        Ok(claimant) => bind(&mut transaction, &mut node, claimant).await?,
        Err(_) => nodes::save(&mut transaction, &node).await?,
    }
    did(&mut transaction, SiteEventKind::Released, NewEvent::new(how).of(&node)).await?;
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// Returns the node that a waiting machine becomes: the one whose identifiers it has, or a new one.
async fn node_of(connection: &mut Connection, claimant: &Claimant) -> Result<Node, Error> {
    let conflict = |message: String| Err(Error::refused(ErrorCode::Conflict, message));
    let code = &claimant.code;
    let nodes = nodes::matching(connection, &claimant.identity).await?;
    let (all, some) = admission::candidates(&nodes, &claimant.identity);
    let labels = |nodes: &[&Node]| nodes.iter().map(|node| node.label()).collect::<Vec<_>>().join(" and ");
    match all.as_slice() {
        &[node] => {
            if let Some(obstacle) = obstacle(claimant, node) {
                return conflict(format!("the machine with the code {code} {obstacle}"));
            }
            Ok(node.clone())
        }
        [] if some.is_empty() => {
            let node = Node::new(claimant.identity.clone(), now());
            let state = state::next(node.state, NodeEvent::ToldToWait);
            let mac_only = claimant.identity.uuid.is_none() && claimant.identity.serial.is_none();
            Ok(Node { id: claimant.id.clone(), state, mac_only, ..node })
        }
        [] => match some.as_slice() {
            [node] => conflict(format!(
                "the machine with the code {code} has some identifiers of {0}, but not all; if it is that node after a \
                 repair, say so (`node replace {0} --by {code}`); if it is another machine, register it by its own \
                 identifiers (`node add`)",
                node.label()
            )),
            several => conflict(format!(
                "the machine with the code {code} has identifiers of {}; remove or change all but one of these nodes",
                labels(several)
            )),
        },
        several => conflict(format!(
            "the machine with the code {code} has the identifiers of {}; remove or change all but one of these nodes",
            labels(several)
        )),
    }
}

/// Returns why a release would not let the machine in, and what would. `None` if a release lets it in.
pub(super) fn obstacle(claimant: &Claimant, node: &Node) -> Option<String> {
    let label = node.label();
    let tpm = claimant.report.tpm.as_ref();
    let problem = tpm.and_then(|tpm| tpm.problem.as_deref()).map(|problem| format!(": {problem}")).unwrap_or_default();
    let usable = tpm.is_some_and(|tpm| tpm.ek.is_some() && tpm.certificate != Some(EkCertificate::Bad));
    let is_registered = node.tpm.as_ref().is_some_and(|tpm| tpm.origin == TpmOrigin::Registered);
    let register = format!("register its endorsement key (`node set {label} --ek DIGEST`)");
    match claimant.reason {
        // When an operator lets a machine in, its TPM becomes the node's TPM and is the proof.
        ClaimReason::ProofMissing if !usable => Some(format!(
            "did not prove what node {label} requires, and has no TPM that it can use{problem}; give it a token made \
             for the node (`token add --node {label}`), or require less (`node set {label} --require registered`)"
        )),
        ClaimReason::BootFilesUnknown => Some(format!(
            "has not started boot files of this site{problem}; let it start slipway.efi, a stick or a disc of \
             `media build`, or require less (`media require any`)"
        )),
        ClaimReason::EkCertificateBad => {
            Some(format!("has a TPM that cannot be trusted{problem}; if you know the TPM, {register}"))
        }
        ClaimReason::TpmRefused => Some(format!(
            "reports something about its TPM or its boot that differs from what the TPM signed{problem}; look at the \
             machine, and if it must do without, require less (`node set {label} --no-ek --require registered`)"
        )),
        // Anyone can claim to have another TPM or none, so a release does not replace a TPM that was registered.
        ClaimReason::TpmReplaced | ClaimReason::TpmMissing if is_registered => Some(format!(
            "does not have the TPM that was registered for node {label}{problem}; if it was replaced, {register}; if \
             the machine has none any more, forget it (`node set {label} --no-ek`)"
        )),
        ClaimReason::TpmMissing if node.require == Proof::Attested => Some(format!(
            "has no TPM that it can use{problem}, and node {label} must have one; if it must do without, say so first \
             (`node set {label} --no-ek --require registered`)"
        )),
        _ => None,
    }
}

/// Refuses to release a node if several machines claim to be it, because the first to ask would get it.
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

/// Makes the key of a waiting machine the node's key.
pub(super) async fn bind(connection: &mut Connection, node: &mut Node, claimant: Claimant) -> Result<(), Error> {
    let claimed = claimant.report.tpm.clone().and_then(|tpm| tpm.ek);
    apply::learn(node, claimant.report);
    if let Some(tpm) = node.tpm.take() {
        node.tpm = accepted(tpm, claimant.reason, node.label());
    }
    if node.tpm.is_none() {
        attestations::remove(connection, &node.id).await?;
        node.tpm = claimed_tpm(connection, node, claimed).await?;
    }
    let key = NodeKey {
        fingerprint: claimant.key.clone(),
        proof: Proof::Registered,
        origin: KeyOrigin::Operator,
        since: now(),
        address: claimant.address,
    };
    // An operator who lets a machine in by hand did not ask for its disks to be erased.
    node_state::forget_anew(connection, node).await?;
    // A new node must be stored before its key.
    apply::give_key(connection, node, key).await?;
    node.last_seen = Some(claimant.last_asked);
    node_contacts::seen(connection, &node.id, claimant.last_asked).await?;
    claimants::remove(connection, &claimant.key).await
}

/// Returns the TPM that a machine says it has. The operator saw its digest, so the machine must prove just this TPM.
pub(super) async fn claimed_tpm(
    connection: &mut Connection,
    node: &Node,
    ek: Option<String>,
) -> Result<Option<NodeTpm>, Error> {
    let Some(ek) = ek else { return Ok(None) };
    if let Some(other) = nodes::other_with_ek(connection, &node.id, &ek).await? {
        let message = format!(
            "the machine says that it has the TPM of node {0}; a TPM is in one machine, so if this machine took its \
             place, forget the TPM there first (`node set {0} --no-ek`)",
            other.label()
        );
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    Ok(Some(NodeTpm::unproved(vec![ek], TpmOrigin::Release)))
}

/// Returns the TPM that a node is known by after an operator lets in a machine whose TPM has changed. What a waiting
/// machine reports about its TPM is not proved. If it claims the node's TPM, it must still prove that.
fn accepted(tpm: NodeTpm, reason: ClaimReason, node: &str) -> Option<NodeTpm> {
    match reason {
        ClaimReason::TpmMissing | ClaimReason::TpmReplaced => {
            tracing::warn!(
                node,
                reason = store::to_word(&reason),
                ek = tpm.ek.join(" "),
                "the node's TPM is forgotten"
            );
            None
        }
        ClaimReason::TpmCleared => Some(NodeTpm { ak: None, ..tpm }),
        ClaimReason::EventLogMissing => Some(NodeTpm { has_event_log: false, ..tpm }),
        _ => Some(tpm),
    }
}
