//! Recognises machines as nodes, and decides whether they are let in.

use std::net::IpAddr;

use slipway_protocol::identity::{meaningful, normalise_mac, normalise_uuid};
use slipway_protocol::{EnrolRequest, Enrolment, ErrorCode, Identity, NodeState, Wait, WaitReason};

use crate::ca::{Authority, NODE_LIFETIME, NodeRequest};
use crate::error::Error;
use crate::jwt::Signer;
use crate::random;
use crate::state::{self, NodeEvent};
use crate::store::nodes::{self, KeyMatch, Node};
use crate::store::{self, Connection, Store, tokens};
use crate::time::Millis;

/// Most unknown machines to remember. Beyond that, those silent the longest are forgotten.
pub const MAX_UNREGISTERED: u32 = 1000;

/// Most MAC addresses one machine may have.
const MAX_MACS: usize = 64;
/// Longest UUID, serial number or MAC address in a request, in characters.
const MAX_KEY_CHARS: usize = 256;

/// The answer to a machine that asked to enrol.
pub enum Answer {
    /// It is let in.
    Enrolled(Enrolment),
    /// An operator must act first.
    Wait(Wait),
}

/// Issues the nodes' credentials.
pub struct Credentials<'a> {
    /// Signs certificates.
    pub authority: &'a Authority,
    /// Signs JWTs.
    pub signer: &'a Signer,
}

impl Credentials<'_> {
    /// A new certificate and JWT.
    pub fn issue(&self, node: &str, request: &NodeRequest, now: Millis) -> Result<Enrolment, Error> {
        Ok(Enrolment {
            node: node.to_owned(),
            certificate: self.authority.sign_node(node, request)?,
            jwt: self.signer.issue(node, now, NODE_LIFETIME),
            expires_in: NODE_LIFETIME,
        })
    }
}

/// Handles `POST /v1/enrol`.
pub async fn enrol(
    store: &Store,
    credentials: &Credentials<'_>,
    request: &EnrolRequest,
    from: IpAddr,
    now: Millis,
) -> Result<Answer, Error> {
    check_size(&request.identity)?;
    let csr = NodeRequest::from_pem(&request.csr)?;
    let identity = normalise(&request.identity);
    if nodes::keys(&identity).next().is_none() {
        let message = "the machine has no usable UUID, serial number or MAC address to identify it";
        return Err(Error::refused(ErrorCode::IdentityMissing, message));
    }

    let mut transaction = store.write().await?;
    let mut node = match recognise(&mut transaction, &identity).await? {
        Some(known) => known,
        None => Node::new(NodeState::Held, now),
    };
    learn(&mut node, identity, request, now);
    // A node that was let in needs no further consent. It may itself have used the token long ago.
    let token = request.bootstrap_token.as_deref().filter(|_| !node.released);
    let token = match token {
        Some(token) => Some(usable_token(&mut transaction, token, now).await?),
        None => None,
    };
    if token.is_some() {
        let_in(&mut node);
    }
    let answer = answer(&mut node, credentials, &csr, request, now)?;
    nodes::save(&mut transaction, &node).await?;
    if let Some(hash) = token {
        tokens::consume(&mut transaction, &hash, &node.id, &from.to_string(), now).await?;
    }
    if !node.registered {
        nodes::forget_unregistered(&mut transaction, MAX_UNREGISTERED).await?;
    }
    store::commit(transaction).await?;
    Ok(answer)
}

/// Refuses an identity that no machine has. Anyone may ask to enrol, and every key costs a database query and a record.
fn check_size(identity: &Identity) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::refused(ErrorCode::InvalidRequest, message));
    if identity.macs.len() > MAX_MACS {
        return invalid(format!(
            "the identity has {} MAC addresses, but may have at most {MAX_MACS}",
            identity.macs.len()
        ));
    }
    let mut texts = identity.uuid.iter().chain(&identity.serial).chain(&identity.macs);
    if texts.any(|text| text.chars().count() > MAX_KEY_CHARS) {
        return invalid(format!("a key of the identity is longer than {MAX_KEY_CHARS} characters"));
    }
    Ok(())
}

/// Marks a node as released.
pub fn let_in(node: &mut Node) {
    node.registered = true;
    node.released = true;
    node.claim_code = None;
}

/// The identity with each key normalised, without filler values.
pub fn normalise(identity: &Identity) -> Identity {
    let mut macs: Vec<String> = identity.macs.iter().filter_map(|mac| normalise_mac(mac)).collect();
    macs.sort();
    macs.dedup();
    Identity {
        uuid: identity.uuid.as_deref().and_then(normalise_uuid),
        serial: identity.serial.as_deref().and_then(meaningful).map(str::to_owned),
        macs,
    }
}

/// The node that a machine with these keys is. All known keys must belong to one node, whose UUID and serial number
/// must not differ.
pub async fn recognise(connection: &mut Connection, identity: &Identity) -> Result<Option<Node>, Error> {
    let matches = nodes::matching(connection, identity).await?;
    let Some(id) = agreed(&matches)? else { return Ok(None) };
    let Some(node) = nodes::get_by_id(connection, &id).await? else { return Ok(None) };
    match contradiction(&node.identity, identity) {
        None => Ok(Some(node)),
        Some((kind, known, found)) => {
            let by = matches.first().map_or("", |by| by.kind);
            let label = node.label();
            let message =
                format!("the {by} belongs to node {label}, but the {kind} of that node is {known}, not {found}");
            Err(Error::refused(ErrorCode::IdentityConflict, message))
        }
    }
}

/// The one node that all matches agree on.
fn agreed(matches: &[KeyMatch]) -> Result<Option<String>, Error> {
    let Some(first) = matches.first() else { return Ok(None) };
    match matches.iter().find(|other| other.node != first.node) {
        None => Ok(Some(first.node.clone())),
        Some(other) => {
            let message = format!(
                "{} {} belongs to node {}, but {} {} belongs to node {}",
                first.kind, first.value, first.node, other.kind, other.value, other.node
            );
            Err(Error::refused(ErrorCode::IdentityConflict, message))
        }
    }
}

/// A key of which a machine has only one, and which differs: its kind, the known value, the found value.
fn contradiction<'a>(known: &'a Identity, found: &'a Identity) -> Option<(&'static str, &'a str, &'a str)> {
    let differs = |kind, known: &'a Option<String>, found: &'a Option<String>| match (known, found) {
        (Some(known), Some(found)) if known != found => Some((kind, known.as_str(), found.as_str())),
        _ => None,
    };
    differs("uuid", &known.uuid, &found.uuid).or_else(|| differs("serial", &known.serial, &found.serial))
}

/// Adds to the node what the machine reports about itself. Known keys are kept, because a network card may come back. A
/// registered node gets no new keys, because nobody vouches for them and they might be those of another machine.
fn learn(node: &mut Node, identity: Identity, request: &EnrolRequest, now: Millis) {
    if !node.registered {
        join(&mut node.identity, identity);
    }
    if node.boot_id.as_deref() != Some(&request.boot_id) {
        node.enrolled_at = None;
    }
    node.boot_id = Some(request.boot_id.clone());
    node.inventory = Some(request.inventory.clone());
    node.timing = request.timing;
    node.agent_version = Some(request.agent_version.clone());
    node.last_seen = Some(now);
}

/// Adds the keys of one identity to another of the same machine.
pub fn join(known: &mut Identity, found: Identity) {
    known.uuid = known.uuid.take().or(found.uuid);
    known.serial = known.serial.take().or(found.serial);
    known.macs.extend(found.macs);
    known.macs.sort();
    known.macs.dedup();
}

/// The token's hash, if the token is valid.
async fn usable_token(connection: &mut Connection, token: &str, now: Millis) -> Result<String, Error> {
    let hash = random::token_hash(token);
    match tokens::get_by_hash(connection, &hash).await? {
        Some(token) if token.used_at.is_none() => {
            if token.expires_at.is_some_and(|expires| expires <= now) {
                let message = "the bootstrap token has expired; an operator can issue another with `token add`";
                return Err(Error::refused(ErrorCode::TokenExpired, message));
            }
            Ok(hash)
        }
        _ => {
            let message = "the bootstrap token was never issued, was revoked or was used before";
            Err(Error::refused(ErrorCode::TokenUnknown, message))
        }
    }
}

fn answer(
    node: &mut Node,
    credentials: &Credentials<'_>,
    csr: &NodeRequest,
    request: &EnrolRequest,
    now: Millis,
) -> Result<Answer, Error> {
    if node.released {
        node.state = state::next(node.state, NodeEvent::Enrolled);
        node.enrolled_at.get_or_insert(now);
        tracing::info!(node = node.label(), boot = request.boot_id, "node enrolled");
        return credentials.issue(&node.id, csr, now).map(Answer::Enrolled);
    }
    node.state = state::next(node.state, NodeEvent::ToldToWait);
    let claim_code = node.claim_code.get_or_insert_with(random::claim_code).clone();
    let reason = if node.registered { WaitReason::NotReleased } else { WaitReason::Unregistered };
    tracing::debug!(node = node.label(), claim_code, ?reason, "machine is waiting for an operator");
    Ok(Answer::Wait(Wait { reason, claim_code }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(uuid: &str, serial: &str, macs: &[&str]) -> Identity {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let macs = macs.iter().map(|mac| (*mac).to_owned()).collect();
        Identity { uuid: given(uuid), serial: given(serial), macs }
    }

    #[test]
    fn fillers_are_not_keys() {
        let found = identity("00000000-0000-0000-0000-000000000000", "Default string", &["00:00:00:00:00:00"]);
        assert_eq!(normalise(&found), Identity::default());
        let found = identity("4C4C4544004230108058B7C04F503432", " 7CZ1 ", &["52-54-00-AB-CD-01", "52:54:00:ab:cd:01"]);
        let expect = identity("4c4c4544-0042-3010-8058-b7c04f503432", "7CZ1", &["52:54:00:ab:cd:01"]);
        assert_eq!(normalise(&found), expect);
    }

    #[test]
    fn keys_of_different_nodes_are_a_conflict() {
        let key = |kind, node: &str| KeyMatch { kind, value: "v".to_owned(), node: node.to_owned() };
        assert_eq!(agreed(&[]).expect("no conflict"), None);
        assert_eq!(agreed(&[key("uuid", "a"), key("mac", "a")]).expect("no conflict").as_deref(), Some("a"));
        let conflict = agreed(&[key("uuid", "a"), key("mac", "b")]).expect_err("conflict");
        assert_eq!(conflict.to_string(), "uuid v belongs to node a, but mac v belongs to node b");
    }

    #[test]
    fn another_uuid_or_serial_contradicts_but_other_macs_do_not() {
        let known = identity("u1", "s1", &["m1"]);
        assert_eq!(contradiction(&known, &identity("", "s1", &["m2"])), None);
        assert_eq!(contradiction(&known, &identity("u2", "s1", &[])), Some(("uuid", "u1", "u2")));
        assert_eq!(contradiction(&known, &identity("u1", "s2", &[])), Some(("serial", "s1", "s2")));
    }
}
