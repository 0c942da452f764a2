//! Machines that take the place of a node's machine, after a repair.

use slipway_protocol::{
    ClaimReason, EkCertificate, ErrorCode, Identity, NodeState, NodeStatus, NodeTpm, Proof, SiteEventKind, TpmOrigin,
};

use super::release::{bind, claimed_tpm, obstacle};
use super::{did, known_node};
use crate::base::error::Error;
use crate::node::status;
use crate::node::tasks;
use crate::power::ask;
use crate::rules::state;
use crate::store::claimants::Claimant;
use crate::store::history::NewEvent;
use crate::store::nodes::{self, Node};
use crate::store::{self, Connection, Store, claimants, power, runs};

/// What it means that a waiting machine takes the place of a node's machine, to be said before.
#[derive(Clone, Debug, PartialEq)]
pub struct Replacement {
    /// The node, as it is now.
    pub node: NodeStatus,
    /// The identifiers of the waiting machine.
    pub identity: Identity,
    /// The endorsement key that it says it has, if any.
    pub ek: Option<String>,
    /// Its claim code.
    pub code: String,
    /// The address it was last heard from.
    pub address: String,
}

impl Replacement {
    fn of(node: NodeStatus, claimant: &Claimant) -> Self {
        let Claimant { identity, code, address, .. } = claimant.clone();
        Self { node, identity, ek: claimed(claimant).cloned(), code, address }
    }

    /// What the operator agreed to: the same only for the same machines.
    pub fn agreed(&self) -> (&str, &Identity, Option<&NodeTpm>, &Identity, Option<&str>) {
        (&self.node.id, &self.node.identity, self.node.tpm.as_ref(), &self.identity, self.ek.as_deref())
    }

    /// Says what takes the place of what, and what that means.
    pub fn in_words(&self) -> Vec<String> {
        let Self { node, identity, ek, code, address } = self;
        let (new, old) = (identity.in_words(), node.identity.in_words());
        let takes = format!(
            "the machine at {address} with the claim code {code} takes the place of the node's machine: {new} instead \
             of {old}"
        );
        let refuses = "the server refuses the key of its earlier machine from now on".to_owned();
        let tpm = match (&node.tpm, ek) {
            (Some(tpm), Some(ek)) if tpm.ek.contains(ek) => None,
            (_, Some(ek)) => Some(format!("the server knows the node by the TPM {ek} from now on")),
            (Some(_), None) => Some("the server forgets the TPM of the node, because that machine has none".to_owned()),
            (None, None) => None,
        };
        let is_mac_only = identity.uuid.is_none() && identity.serial.is_none();
        let macs = is_mac_only.then(|| {
            "the server knows the node by MAC addresses alone, which anybody on the network can read and use".to_owned()
        });
        [takes, refuses].into_iter().chain(tpm).chain(macs).collect()
    }
}

/// Returns what [`replace_machine`] would do. Fails as that would.
pub async fn plan_replacement(store: &Store, reference: &str, code: &str) -> Result<Replacement, Error> {
    let mut connection = store.read().await?;
    let (claimant, node) = ready(&mut connection, reference, code).await?;
    let node = status::one(&mut connection, node).await?;
    Ok(Replacement::of(node, &claimant))
}

/// Makes a waiting machine the machine of a node, whose own was replaced or repaired: the machine's identifiers and TPM
/// take the place of the node's. `code` is the claim code. Fails if an operator agreed to something else.
pub async fn replace_machine(
    store: &Store,
    reference: &str,
    code: &str,
    agreed: Option<&Replacement>,
) -> Result<NodeStatus, Error> {
    let mut transaction = store.write().await?;
    let (claimant, mut node) = ready(&mut transaction, reference, code).await?;
    let replacement = Replacement::of(status::one(&mut transaction, node.clone()).await?, &claimant);
    if agreed.is_some_and(|agreed| agreed.agreed() != replacement.agreed()) {
        let message = "nothing was done: the node or the machine is another by now; look at both, and try again";
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    // It is of the machine that was there before.
    tasks::remove_agent(&mut transaction, &mut node, "the machine was replaced").await?;
    node.identity = claimant.identity.clone();
    node.mac_only = node.identity.uuid.is_none() && node.identity.serial.is_none();
    if !has_its_tpm(&claimant, &node) {
        node.tpm = None;
    }
    node.release();
    if let Some(mut power) = power::get_by_node(&mut transaction, &node.id).await? {
        // It is of the machine that was there before.
        ask::withdraw(&mut transaction, &mut power, "the machine was replaced").await?;
        (power.failed, power.state, power.state_at) = (None, None, None);
        power::save(&mut transaction, &power).await?;
    }
    bind(&mut transaction, &mut node, claimant).await?;
    let what = replacement.in_words().join("; ");
    did(&mut transaction, SiteEventKind::Released, NewEvent::new(what).of(&node)).await?;
    let status = status::one(&mut transaction, node).await?;
    store::commit(transaction).await?;
    Ok(status)
}

/// Returns a waiting machine and the node whose machine it replaces. Refuses a machine that is another node's, or that
/// does not prove what the node requires. What the site requires is asked when the machine enrols.
async fn ready(connection: &mut Connection, reference: &str, code: &str) -> Result<(Claimant, Node), Error> {
    let conflict = |message: String| Err(Error::refused(ErrorCode::Conflict, message));
    let Some(claimant) = claimants::find(connection, code).await? else {
        let message = format!("no waiting machine shows the claim code {code:?}; `status` lists those that wait");
        return Err(Error::refused(ErrorCode::NotFound, message));
    };
    let node = known_node(connection, reference).await?;
    let (code, label) = (&claimant.code, node.label());
    if node.state == NodeState::Decommissioned {
        return conflict(format!("node {label} is out of service; put it back first (`node recommission {label}`)"));
    }
    // It was started for the disks of another machine.
    let run = runs::newest_of(connection, &node.id).await?.filter(|run| state::is_open(run.progress.state));
    if let Some(run) = run {
        let id = &run.id;
        return conflict(format!("run {id} of node {label} is not over; cancel it first (`run cancel {id}`)"));
    }
    if claimant.identity == node.identity {
        return conflict(format!(
            "the machine with the code {code} has all identifiers of node {label}; let it in with `node release {code}`"
        ));
    }
    let others = nodes::matching(connection, &claimant.identity).await?;
    if let Some(other) = others.iter().find(|other| other.id != node.id) {
        return conflict(format!(
            "the machine with the code {code} has an identifier of node {}; a machine is one node, so take that node \
             out of service or change its identifiers first",
            other.label()
        ));
    }
    if has_its_tpm(&claimant, &node) {
        return Ok((claimant, node));
    }
    if node.tpm.as_ref().is_some_and(|tpm| tpm.origin == TpmOrigin::Registered) {
        return conflict(format!(
            "the machine with the code {code} does not have the TPM that was registered for node {label}; if it was \
             replaced, register its endorsement key (`node set {label} --ek DIGEST`), or forget the old one (`node set \
             {label} --no-ek`), and try again"
        ));
    }
    let claimed = claimant.report.tpm.as_ref();
    let is_bad = claimed.is_some_and(|tpm| tpm.certificate == Some(EkCertificate::Bad));
    let reasons = [
        Some(claimant.reason),
        is_bad.then_some(ClaimReason::EkCertificateBad),
        // What the node requires was not asked of a machine that was not known to be it.
        (node.require == Proof::Attested).then_some(ClaimReason::ProofMissing),
    ];
    for reason in reasons.into_iter().flatten() {
        if let Some(obstacle) = obstacle(&Claimant { reason, ..claimant.clone() }, &node) {
            return conflict(format!("the machine with the code {code} {obstacle}"));
        }
    }
    claimed_tpm(connection, &node, claimed.and_then(|tpm| tpm.ek.clone())).await?;
    Ok((claimant, node))
}

/// Whether a waiting machine says that it has the TPM that a node is known by. It has to prove that when it enrols.
fn has_its_tpm(claimant: &Claimant, node: &Node) -> bool {
    node.tpm.as_ref().zip(claimed(claimant)).is_some_and(|(tpm, claimed)| tpm.ek.contains(claimed))
}

/// The endorsement key that a waiting machine says it has.
fn claimed(claimant: &Claimant) -> Option<&String> {
    claimant.report.tpm.as_ref().and_then(|tpm| tpm.ek.as_ref())
}
