//! Recognises machines as nodes, and lets them in or holds them.

mod apply;
pub mod tpm;

use std::net::IpAddr;

use slipway_protocol::shared::printable;
use slipway_protocol::{
    ClaimReason, EnrolRequest, Enrolment, ErrorCode, Identity, NodeKey, Proof, RunState, TpmChallenge, Wait,
};

use crate::base::error::Error;
use crate::base::random;
use crate::base::time::Millis;
use crate::keys::ca::{Authority, NODE_LIFETIME, NodeRequest};
use crate::keys::jwt::{Signer, Subject};
use crate::node::admission::{self, Admitted, Policy, Shown};
use crate::rules::state::{self, NodeEvent};
use crate::store;
use crate::store::claimants::{self, Report};
use crate::store::nodes::{self, Node};
use crate::store::tokens::{self, Token};
use crate::store::{Connection, Store, boot_fetches, runs, to_word};
use tpm::Claimed;

/// Most MAC addresses one machine may have.
const MAX_MACS: usize = 64;
/// Longest text in a request, in characters.
const MAX_CHARS: usize = 256;
/// Milliseconds for which it need not be stored again that a machine waits.
const STILL_WAITS: Millis = 5_000;

/// The answer to a machine that asked to enrol.
pub enum Answer {
    /// It is let in.
    Enrolled(Enrolment),
    /// An operator must act first.
    Wait(Wait),
    /// It is let in if it proves its TPM.
    Prove(TpmChallenge),
}

/// Issues the nodes' credentials.
pub struct Credentials<'a> {
    /// Signs certificates.
    pub authority: &'a Authority,
    /// Signs JWTs.
    pub signer: &'a Signer,
}

impl Credentials<'_> {
    /// A new certificate and JWT for the node with this key, which is that of the request.
    pub fn issue(&self, subject: &Subject, request: &NodeRequest, now: Millis) -> Result<Enrolment, Error> {
        Ok(Enrolment {
            node: subject.node.clone(),
            certificate: self.authority.sign_node(&subject.node, request)?,
            jwt: self.signer.issue(subject, now, NODE_LIFETIME),
            expires_in: NODE_LIFETIME,
        })
    }
}

/// A machine that asks to enrol.
struct Applicant {
    key: String,
    identity: Identity,
    report: Report,
    token: Option<String>,
    tpm: Claimed,
    address: IpAddr,
}

/// What is to be done with a machine.
enum Outcome {
    /// Let it in as this node.
    LetIn { node: Box<Node>, admitted: Admitted, token: Option<Token> },
    /// Hold it.
    Hold { reason: ClaimReason, node: Option<Box<Node>> },
}

/// Handles `POST /v1/enrol`.
pub async fn enrol(
    store: &Store,
    credentials: &Credentials<'_>,
    policy: Policy,
    tpms: &tpm::Judge,
    request: &EnrolRequest,
    from: IpAddr,
    now: Millis,
) -> Result<Answer, Error> {
    check_size(request)?;
    let csr = NodeRequest::from_pem(&request.csr)?;
    let mut applicant = applicant(request, &csr, tpms, from, now);
    if applicant.identity.values().next().is_none() {
        let message = "the machine has no usable UUID, serial number or MAC address to identify it";
        return Err(Error::refused(ErrorCode::IdentityMissing, message));
    }
    if applicant.tpm.is_proved() {
        applicant.tpm.compare_boot(&mut *store.read().await?, applicant.token.as_deref()).await?;
        applicant.report.tpm = applicant.tpm.told();
    }
    // Most requests are from machines that wait already, and change nothing.
    if let Some(code) = still_waits(&mut *store.read().await?, &applicant, policy, now).await? {
        return Ok(Answer::Wait(Wait { claim_code: code }));
    }
    let mut transaction = store.write().await?;
    let answer = match judge(&mut transaction, &applicant, policy, now).await? {
        Outcome::LetIn { node, admitted, token } => {
            applicant.tpm.use_once(&mut transaction, &node, now).await?;
            if let Some(challenge) = applicant.tpm.challenge(tpms, &applicant.key, now)? {
                return Ok(Answer::Prove(challenge));
            }
            let node = let_in(&mut transaction, *node, &applicant, admitted, now).await?;
            if let Some(token) = token {
                tokens::consume(&mut transaction, &token.hash, &node, &from.to_string(), now).await?;
            }
            let subject = Subject { node, key: applicant.key };
            Answer::Enrolled(credentials.issue(&subject, &csr, now)?)
        }
        Outcome::Hold { reason, node } => {
            let code = apply::hold(&mut transaction, credentials.signer, applicant, reason, node, now).await?;
            Answer::Wait(Wait { claim_code: code })
        }
    };
    store::commit(transaction).await?;
    Ok(answer)
}

/// Refuses what no machine sends. Anyone may ask to enrol, and every identifier costs a database query.
fn check_size(request: &EnrolRequest) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::refused(ErrorCode::InvalidRequest, message));
    let identity = &request.identity;
    if identity.macs.len() > MAX_MACS {
        return invalid(format!(
            "the identity has {} MAC addresses, but may have at most {MAX_MACS}",
            identity.macs.len()
        ));
    }
    let others = [&request.agent_version, &request.boot_id];
    let mut texts = identity.uuid.iter().chain(&identity.serial).chain(&identity.macs).chain(others);
    if texts.any(|text| text.chars().count() > MAX_CHARS) {
        return invalid(format!(
            "an identifier, the agent's version or the id of the boot is longer than {MAX_CHARS} characters"
        ));
    }
    if request.tpm.as_ref().is_some_and(|tpm| !tpm.is_within_bounds()) {
        return invalid("a part of what the machine says of its TPM is too long".to_owned());
    }
    Ok(())
}

fn applicant(request: &EnrolRequest, csr: &NodeRequest, tpms: &tpm::Judge, address: IpAddr, now: Millis) -> Applicant {
    let key = csr.fingerprint();
    let tpm = tpms.look_at(request.tpm.as_ref(), &key, now);
    Applicant {
        key,
        identity: request.identity.usable(),
        report: Report {
            inventory: request.inventory.clone(),
            timing: request.timing,
            agent_version: request.agent_version.clone(),
            boot_id: request.boot_id.clone(),
            tpm: tpm.told(),
        },
        token: request.bootstrap_token.clone(),
        tpm,
        address,
    }
}

/// The nodes whose identifiers a machine has: all that were registered, or only some.
pub struct Candidates {
    /// All of them.
    pub full: Vec<Node>,
    /// Only some.
    pub partial: Vec<Node>,
}

/// The nodes that are registered with any of these identifiers. One that many machines have counts for nothing, also if
/// it was registered before that was known.
pub async fn candidates(connection: &mut Connection, identity: &Identity) -> Result<Candidates, Error> {
    let nodes = nodes::matching(connection, identity).await?;
    let (full, partial) = nodes.into_iter().partition(|node| admission::matches(&node.identity.usable(), identity));
    Ok(Candidates { full, partial })
}

/// The claim code of a machine that waits as it did a moment ago.
async fn still_waits(
    connection: &mut Connection,
    applicant: &Applicant,
    policy: Policy,
    now: Millis,
) -> Result<Option<String>, Error> {
    let Some(known) = claimants::get_by_key(connection, &applicant.key).await? else { return Ok(None) };
    if now.saturating_sub(known.last_asked) > STILL_WAITS || known.identity != applicant.identity {
        return Ok(None);
    }
    match judge(connection, applicant, policy, now).await? {
        Outcome::Hold { reason, .. } if reason == known.reason => Ok(Some(known.code)),
        _ => Ok(None),
    }
}

/// What is to be done with a machine, as the store is now.
async fn judge(
    connection: &mut Connection,
    applicant: &Applicant,
    site: Policy,
    now: Millis,
) -> Result<Outcome, Error> {
    let Candidates { mut full, mut partial } = candidates(connection, &applicant.identity).await?;
    let token = presented(connection, applicant).await?;
    let hold = |reason, node: Option<Node>| Ok(Outcome::Hold { reason, node: node.map(Box::new) });
    if full.len() > 1 {
        return hold(ClaimReason::SeveralNodes, None);
    }
    let Some(mut node) = full.pop() else {
        if !partial.is_empty() {
            return hold(ClaimReason::IdentifiersDiffer, Some(partial.swap_remove(0)));
        }
        let Some(token) = usable(token, now)? else { return hold(ClaimReason::Unregistered, None) };
        if token.made_for.is_some() {
            return hold(ClaimReason::IdentifiersDiffer, None);
        }
        let mut node = Box::new(Node::new(applicant.identity.clone(), now));
        if has_tpm_of_another(connection, applicant, &node).await? {
            return hold(ClaimReason::TpmOfAnotherNode, None);
        }
        node.release();
        let shown = Shown { key: &applicant.key, proof: Proof::Token, tpm: applicant.tpm.shown() };
        return match admission::judge(&node, shown, site, now) {
            Ok(admitted) => Ok(Outcome::LetIn { node, admitted, token: Some(token) }),
            // The token does not prove what the site requires, so it counts for nothing.
            Err(_) => hold(ClaimReason::Unregistered, None),
        };
    };
    if has_tpm_of_another(connection, applicant, &node).await? {
        return hold(ClaimReason::TpmOfAnotherNode, Some(node));
    }
    // A node that was let in needs no further consent. Its machine may itself have used the token long ago.
    let token = match usable(token, now) {
        Err(error) if !node.released => return Err(error),
        token => token.unwrap_or_default().filter(|token| match &token.made_for {
            Some(made_for) => *made_for == node.id,
            None => !node.released,
        }),
    };
    if token.is_some() && !node.released {
        node.release();
    }
    let is_made_for_it = token.as_ref().is_some_and(|token| token.made_for.is_some());
    let proof = if is_made_for_it { Proof::Token } else { Proof::Registered };
    let require = required(connection, &node, site).await?;
    let shown = Shown { key: &applicant.key, proof, tpm: applicant.tpm.shown() };
    match admission::judge(&node, shown, Policy { require, ..site }, now) {
        Ok(admitted) => Ok(Outcome::LetIn { node: Box::new(node), admitted, token }),
        Err(reason) => hold(reason, Some(node)),
    }
}

/// Whether another node than this is known by the TPM of the machine. A TPM is in one machine.
async fn has_tpm_of_another(connection: &mut Connection, applicant: &Applicant, node: &Node) -> Result<bool, Error> {
    let Some(ek) = applicant.tpm.ek() else { return Ok(false) };
    Ok(nodes::other_with_ek(connection, &node.id, ek).await?.is_some())
}

/// What a machine must prove to become this node: the most that site, node and its unfinished run require.
pub async fn required(connection: &mut Connection, node: &Node, site: Policy) -> Result<Proof, Error> {
    let run = runs::newest_of(connection, &node.id).await?;
    let run = run.filter(|run| matches!(run.progress.state, RunState::Pending | RunState::Running));
    Ok(site.require.max(node.require).max(run.map(|run| run.require).unwrap_or_default()))
}

/// The token that a machine presents: `None` if it has none, an error if there is no such token.
async fn presented(connection: &mut Connection, applicant: &Applicant) -> Result<Option<Result<Token, Error>>, Error> {
    let Some(token) = &applicant.token else { return Ok(None) };
    let found = tokens::get_by_hash(connection, &random::token_hash(token)).await?;
    Ok(Some(found.ok_or_else(|| {
        let message = "the bootstrap token was never issued, was revoked or was used before";
        Error::refused(ErrorCode::TokenUnknown, message)
    })))
}

/// The token, if it is valid. One that was made for a node is so for each boot of its machine, another for one machine.
fn usable(token: Option<Result<Token, Error>>, now: Millis) -> Result<Option<Token>, Error> {
    let Some(token) = token.transpose()? else { return Ok(None) };
    if token.expires_at.is_some_and(|expires| expires <= now) {
        let message = "the bootstrap token has expired; an operator can issue another with `token add`";
        return Err(Error::refused(ErrorCode::TokenExpired, message));
    }
    if token.made_for.is_none() && token.used_at.is_some() {
        let message = "the bootstrap token was never issued, was revoked or was used before";
        return Err(Error::refused(ErrorCode::TokenUnknown, message));
    }
    Ok(Some(token))
}

/// Stores the node with the key and the report of its machine, and returns its id.
async fn let_in(
    connection: &mut Connection,
    mut node: Node,
    applicant: &Applicant,
    admitted: Admitted,
    now: Millis,
) -> Result<String, Error> {
    let Admitted { origin, proof, keep_tpm } = admitted;
    node.state = state::next(node.state, NodeEvent::Enrolled);
    learn(&mut node, applicant.report.clone(), now);
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
    if let Some(fault) = applicant.tpm.fault() {
        let reason = printable::short_line(fault, MAX_CHARS);
        tracing::warn!(node = node.label(), reason, "node enrolled without the TPM that its machine has");
    }
    match origin {
        None => nodes::save(connection, &node).await?,
        Some(origin) => {
            let address = applicant.address.to_string();
            let fingerprint = applicant.key.clone();
            give_key(connection, &mut node, NodeKey { fingerprint, proof, origin, since: now, address }).await?;
        }
    }
    if keep_tpm {
        // A new node must be stored before what it proved is.
        applicant.tpm.keep(connection, &mut node, now).await?;
        nodes::save(connection, &node).await?;
    }
    claimants::remove(connection, &applicant.key).await?;
    boot_fetches::met(connection, &node.id, applicant.address, now).await?;
    Ok(node.id)
}

/// Makes a key that of the node, and stores the node. Credentials for the key before are refused from now on.
pub async fn give_key(connection: &mut Connection, node: &mut Node, key: NodeKey) -> Result<(), Error> {
    if let Some(before) = &node.key {
        tracing::warn!(
            node = node.label(),
            before = before.fingerprint,
            now = key.fingerprint,
            origin = to_word(&key.origin),
            address = key.address,
            "another key is the node's from now on"
        );
    }
    node.key_left = false;
    node.key = Some(key.clone());
    nodes::save(connection, node).await?;
    nodes::remember_key(connection, &node.id, &key).await
}

/// Takes over what a machine reports about itself. Its identifiers stay those that an operator knows.
pub fn learn(node: &mut Node, report: Report, now: Millis) {
    if node.boot_id.as_deref() != Some(&report.boot_id) {
        node.enrolled_at = None;
    }
    node.boot_id = Some(report.boot_id);
    node.inventory = Some(report.inventory);
    node.timing = report.timing;
    node.agent_version = Some(report.agent_version);
    node.last_seen = Some(now);
}
