//! Stores what was decided about a machine that asked to enrol.

use slipway_protocol::shared::printable;
use slipway_protocol::{ClaimReason, EkCertificate, ErrorCode, NodeKey, NodeTpm, SiteEventKind, Tpm, TpmOrigin};

use super::applicant::{Applicant, MAX_CHARS};
use crate::base::error::Error;
use crate::base::random;
use crate::base::rate::Origin;
use crate::base::time::Millis;
use crate::keys::jwt::Signer;
use crate::node::admission::{Facts, LetIn, ShownTpm, TpmAnswer};
use crate::rules::state::{self, NodeEvent};
use crate::rules::trouble::WAITS;
use crate::store::attestations::{self, Attestation};
use crate::store::claimants::{self, Claimant, Report};
use crate::store::history::{self, NewEvent};
use crate::store::nodes::{self, Node};
use crate::store::{Connection, boot_fetches, node_contacts, to_word, tokens};

/// Maximum number of machines that wait at a time, and of those from one network. A machine keeps its place while it
/// asks.
const MAX_CLAIMANTS: u64 = 1000;
const MAX_CLAIMANTS_OF_A_NETWORK: u64 = 250;
/// Maximum number of machines that wait to be the same node. They are counted apart, so that strangers do not keep them
/// out.
const MAX_CLAIMANTS_OF_A_NODE: usize = 20;
/// Milliseconds after which a machine that no longer waits is forgotten.
const FORGOTTEN: Millis = 24 * 60 * 60 * 1000;

/// Stores the node with its machine's key and report, and marks the token, if there is one, as used. Returns the node's
/// id.
pub(super) async fn let_in(
    connection: &mut Connection,
    applicant: &Applicant<'_>,
    facts: &Facts,
    how: LetIn,
    now: Millis,
) -> Result<String, Error> {
    let LetIn { origin, proof, keep_tpm, token } = how;
    let mut node = facts.node().cloned().unwrap_or_else(|| Node::new(applicant.identity.clone(), now));
    if token.is_some() && !node.released {
        node.release();
    }
    node.state = state::next(node.state, NodeEvent::Enrolled);
    learn(&mut node, applicant.report(None));
    node.key_left = false;
    node.enrolled_at.get_or_insert(now);
    if let Some(key) = &mut node.key
        && origin.is_none()
    {
        key.proof = key.proof.max(proof);
    }
    let origin_word = origin.map_or_else(|| "known".to_owned(), |origin| to_word(&origin));
    tracing::info!(
        node = node.label(), boot = node.boot_id, key = origin_word, address = %applicant.address, "node enrolled"
    );
    let version = node.agent_version.as_deref().unwrap_or("of unknown version");
    let message = format!("the machine enrolled from {} with slipway {version}", applicant.address);
    let enrolled = NewEvent::new(message);
    if let Some(fault) = applicant.tpm.fault() {
        let reason = printable::short_line(fault, MAX_CHARS);
        tracing::warn!(node = node.label(), reason, "node enrolled without the TPM that its machine has");
    }
    let address = applicant.address.to_string();
    match origin {
        None => nodes::save(connection, &node).await?,
        Some(origin) => {
            let (fingerprint, address) = (applicant.key.clone(), address.clone());
            give_key(connection, &mut node, NodeKey { fingerprint, proof, origin, since: now, address }).await?;
        }
    }
    if keep_tpm {
        // A new node must be stored before its proof.
        keep_proof(connection, &mut node, applicant, facts, now).await?;
        nodes::save(connection, &node).await?;
    }
    history::record(connection, SiteEventKind::Enrolled, enrolled.of(&node), now).await?;
    node_contacts::seen(connection, &node.id, now).await?;
    claimants::remove(connection, &applicant.key).await?;
    boot_fetches::met(connection, &node.id, applicant.address, now).await?;
    if let Some(token) = token {
        tokens::consume(connection, &token, &node.id, &address, now).await?;
    }
    Ok(node.id)
}

/// Stores the TPM by which the node is known from now on, and what it proved, if anything.
async fn keep_proof(
    connection: &mut Connection,
    node: &mut Node,
    applicant: &Applicant<'_>,
    facts: &Facts,
    now: Millis,
) -> Result<(), Error> {
    let Some(Tpm::Present { keys, proof: Some(proof) }) = &applicant.request.tpm else { return Ok(()) };
    let Some(ShownTpm { ek, ak, certificate, answer: TpmAnswer::Right { has_event_log, .. } }) = &facts.tpm else {
        return Ok(());
    };
    let verified = *certificate == EkCertificate::Verified;
    let origin = if verified { TpmOrigin::Certificate } else { TpmOrigin::Release };
    let known = node.tpm.take().unwrap_or_else(|| {
        let origin_word = to_word(&origin);
        tracing::info!(node = node.label(), ek, origin = origin_word, "the node is known by its TPM from now on");
        NodeTpm::unproved(vec![ek.clone()], origin)
    });
    node.tpm = Some(NodeTpm {
        ak: Some(ak.clone()),
        certificate: Some(*certificate),
        has_event_log: *has_event_log,
        proved_at: Some(now),
        ..known
    });
    let attestation = Attestation { at: now, keys: keys.clone(), proof: proof.clone() };
    attestations::save(connection, &node.id, &attestation).await
}

/// Makes a key the node's key, and stores the node. Credentials for the previous key are refused from now on.
pub async fn give_key(connection: &mut Connection, node: &mut Node, key: NodeKey) -> Result<(), Error> {
    if let Some(before) = &node.key {
        tracing::warn!(
            node = node.label(),
            before = before.fingerprint,
            now = key.fingerprint,
            origin = to_word(&key.origin),
            address = key.address,
            "the node has a new key"
        );
        let message = format!("the node has a new key, from {}: {}", key.address, to_word(&key.origin));
        history::record(connection, SiteEventKind::KeyChanged, NewEvent::new(message).of(node), key.since).await?;
    }
    node.key_left = false;
    node.key = Some(key.clone());
    nodes::save(connection, node).await?;
    nodes::remember_key(connection, &node.id, &key).await
}

/// Updates a node with what its machine reports about itself. Its identifiers stay those that an operator knows.
pub fn learn(node: &mut Node, report: Report) {
    if node.boot_id.as_deref() != Some(&report.boot_id) {
        node.enrolled_at = None;
    }
    node.boot_id = Some(report.boot_id);
    node.inventory = Some(report.inventory);
    node.timing = report.timing;
    node.agent_version = Some(report.agent_version);
}

/// Stores that a machine waits, and returns its claim code.
pub(super) async fn hold(
    connection: &mut Connection,
    signer: &Signer,
    applicant: &Applicant<'_>,
    facts: &Facts,
    reason: ClaimReason,
    now: Millis,
) -> Result<String, Error> {
    let network = Origin::of(applicant.address).to_string();
    let (known, node) = (facts.claimant.as_ref(), facts.node());
    // Logged once for each reason, because the machine asks every two seconds.
    let is_new = known.is_none_or(|known| known.reason != reason);
    let (id, code, first_asked) = match known {
        Some(known) => (known.id.clone(), known.code.clone(), known.first_asked),
        None => {
            let of_node = node.filter(|_| reason.identifiers_match()).map(|node| node.id.as_str());
            make_room(connection, &network, of_node, now).await?;
            (random::id(), free_code(connection, signer, &applicant.key).await?, now)
        }
    };
    let claimant = Claimant {
        key: applicant.key.clone(),
        id,
        code,
        reason,
        node: node.map(|node| node.id.clone()),
        address: applicant.address.to_string(),
        network,
        identity: applicant.identity.clone(),
        report: applicant.report(applicant.tpm.claimed(facts.boot_problem())),
        first_asked,
        last_asked: now,
    };
    claimants::save(connection, &claimant).await?;
    if let Some(node) = node.filter(|_| reason == ClaimReason::NotReleased) {
        let state = state::next(node.state, NodeEvent::ToldToWait);
        nodes::save(connection, &Node { state, ..node.clone() }).await?;
    }
    let Claimant { code, address, .. } = claimant;
    if is_new {
        let (word, node) = (to_word(&reason), node.map(Node::label));
        tracing::info!(claim_code = code, reason = word, node, address, "machine waits for an operator");
        let message = format!("a machine at {address} waits with the claim code {code}: {}", reason.in_words());
        let event = NewEvent::new(message);
        let event = facts.node().map_or(event.clone(), |node| event.of(node));
        history::record(connection, SiteEventKind::Held, event, now).await?;
    }
    Ok(code)
}

/// Returns a claim code for this key that no other waiting machine has.
async fn free_code(connection: &mut Connection, signer: &Signer, key: &str) -> Result<String, Error> {
    for attempt in 0..u8::MAX {
        let code = signer.claim_code(key, attempt);
        if claimants::find(connection, &code).await?.is_none() {
            return Ok(code);
        }
    }
    Err(full())
}

/// Makes a place for a further waiting machine, or refuses it. No machine that still waits loses its place.
async fn make_room(connection: &mut Connection, network: &str, node: Option<&str>, now: Millis) -> Result<(), Error> {
    claimants::forget_silent(connection, now.saturating_sub(FORGOTTEN)).await?;
    let is_full = async |connection: &mut Connection| match node {
        Some(node) => Ok(claimants::of_node(connection, node).await?.len() >= MAX_CLAIMANTS_OF_A_NODE),
        None => claimants::count(connection, network)
            .await
            .map(|(all, here)| all >= MAX_CLAIMANTS || here >= MAX_CLAIMANTS_OF_A_NETWORK),
    };
    if is_full(&mut *connection).await? {
        claimants::forget_silent(connection, now.saturating_sub(WAITS)).await?;
        if is_full(&mut *connection).await? {
            return Err(full());
        }
    }
    Ok(())
}

fn full() -> Error {
    let message = "too many machines wait to be let in; an operator can look at them with `status`";
    Error::refused(ErrorCode::Unavailable, message)
}
