//! Machines that wait: each has a place and a claim code, and both stay while it asks.

use slipway_protocol::{ClaimReason, ErrorCode};

use super::Applicant;
use crate::base::error::Error;
use crate::base::random;
use crate::base::rate::Origin;
use crate::base::time::Millis;
use crate::keys::jwt::Signer;
use crate::node::admission::WAITS;
use crate::rules::state::{self, NodeEvent};
use crate::store::claimants::{self, Claimant};
use crate::store::nodes::{self, Node};
use crate::store::{Connection, to_word};

/// Most machines that wait at a time, and most from one network. A machine that waits keeps its place while it asks.
const MAX_CLAIMANTS: u64 = 1000;
const MAX_CLAIMANTS_OF_A_NETWORK: u64 = 250;
/// Most machines that wait to be the same node. They have places of their own: strangers do not keep them out.
const MAX_CLAIMANTS_OF_A_NODE: usize = 20;
/// Milliseconds after which a machine that no longer waits is forgotten.
const FORGOTTEN: Millis = 24 * 60 * 60 * 1000;

/// Stores that a machine waits, and returns its claim code.
pub(super) async fn hold(
    connection: &mut Connection,
    signer: &Signer,
    applicant: Applicant,
    reason: ClaimReason,
    node: Option<Box<Node>>,
    now: Millis,
) -> Result<String, Error> {
    let network = Origin::of(applicant.address).to_string();
    let known = claimants::get_by_key(connection, &applicant.key).await?;
    // Once for each reason: it asks every other second.
    let mut is_new = known.as_ref().is_some_and(|known| known.reason != reason);
    let (id, code, first_asked) = match known {
        Some(known) => (known.id, known.code, known.first_asked),
        None => {
            is_new = true;
            let of_node = node.as_ref().filter(|_| reason.identifiers_match()).map(|node| node.id.as_str());
            make_room(connection, &network, of_node, now).await?;
            (random::id(), free_code(connection, signer, &applicant.key).await?, now)
        }
    };
    let claimant = Claimant {
        key: applicant.key,
        id,
        code: code.clone(),
        reason,
        node: node.as_ref().map(|node| node.id.clone()),
        address: applicant.address.to_string(),
        network,
        identity: applicant.identity,
        report: applicant.report,
        first_asked,
        last_asked: now,
    };
    claimants::save(connection, &claimant).await?;
    let label = node.as_ref().map(|node| node.label().to_owned());
    if let Some(mut node) = node.filter(|_| reason == ClaimReason::NotReleased) {
        node.state = state::next(node.state, NodeEvent::ToldToWait);
        nodes::save(connection, &node).await?;
    }
    if is_new {
        let (reason, node) = (to_word(&reason), label);
        tracing::info!(claim_code = code, reason, node, address = claimant.address, "machine waits for an operator");
    }
    Ok(code)
}

/// A code that no other waiting machine has.
async fn free_code(connection: &mut Connection, signer: &Signer, key: &str) -> Result<String, Error> {
    for attempt in 0..u8::MAX {
        let code = signer.claim_code(key, attempt);
        if claimants::find(connection, &code).await?.is_none() {
            return Ok(code);
        }
    }
    Err(full())
}

/// Makes a place for another waiting machine, or refuses it. No machine that still waits loses its place.
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
