//! Callers with a run's token instead of a node's credentials. They may only report.

use slipway_protocol::{ErrorCode, NodeState};

use crate::base::error::Error;
use crate::base::random::{self, token_hash};
use crate::base::rate::Rate;
use crate::base::time::Millis;
use crate::store::run_tokens::{self, Purpose};
use crate::store::runs::{self, Run};
use crate::store::{Connection, Store, node_contacts, nodes};

/// Maximum number of tokens of a run for one purpose. Any of them may be in use, so none is revoked for another.
const MAX_TOKENS: u64 = 16;

/// Issues a token of a run and stores its hash.
pub async fn issue(connection: &mut Connection, run: &str, purpose: Purpose, now: Millis) -> Result<String, Error> {
    if run_tokens::count(connection, run, purpose).await? >= MAX_TOKENS {
        let message = format!("run {run} has already issued {MAX_TOKENS} tokens; use one of them");
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let token = random::token();
    run_tokens::insert(connection, &token_hash(&token), run, purpose, now).await?;
    Ok(token)
}

fn unknown() -> Error {
    Error::refused(ErrorCode::NotFound, "no run issued this token for reports of this kind")
}

/// Admits a caller with a run's token, before its request is processed. Every request counts against the rate limit,
/// even one that is refused later, so that refused requests cost no more than others.
///
/// An unknown token costs one database query and is not counted. Guesses are not recorded, because their number is
/// unlimited and others may share the guesser's address.
pub async fn admit(store: &Store, rate: &Rate, token: &str, purpose: Purpose) -> Result<(), Error> {
    let hash = token_hash(token);
    run_tokens::run_of(&mut *store.read().await?, &hash, purpose).await?.ok_or_else(unknown)?;
    rate.take(&hash)
}

/// Returns the run of this token, and records that its node was heard from. A token is valid while its run
/// is the node's newest, and until a newer one is fetched. The caller must have been [admitted](admit).
pub async fn caller(connection: &mut Connection, token: &str, purpose: Purpose, now: Millis) -> Result<Run, Error> {
    let id = run_tokens::run_of(connection, &token_hash(token), purpose).await?.ok_or_else(unknown)?;
    let run = runs::get_by_id(connection, &id).await?.ok_or_else(unknown)?;
    let node = nodes::get_by_id(connection, &run.node).await?.ok_or_else(unknown)?;
    if node.state == NodeState::Decommissioned {
        let message = format!("node {} was taken out of service by an operator", node.label());
        return Err(Error::refused(ErrorCode::Decommissioned, message));
    }
    if !runs::is_current(connection, &node, &run.id).await? {
        let message = format!("run {} is over: node {} has fetched a newer run", run.id, node.label());
        return Err(Error::refused(ErrorCode::TokenExpired, message));
    }
    node_contacts::seen(connection, &run.node, now).await?;
    Ok(run)
}
