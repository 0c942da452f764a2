//! Sessions of operators on the page. A session stands for the token that it was made with, and ends with it.

use slipway_protocol::{ErrorCode, SiteEventKind};

use super::operator::bearer_of;
use super::{did, operator};
use crate::base::error::Error;
use crate::base::random::{self, token_hash};
use crate::base::time::{Millis, now};
use crate::store::history::NewEvent;
use crate::store::{self, Store, sessions};

/// Milliseconds after which a session ends, whatever it is used for: a working day.
pub const SESSION_LASTS: Millis = 12 * 60 * 60 * 1000;

/// Begins a session with an operator's token. Returns the secret that stands for the session. `None` if no operator has
/// the token; refuses one that has ended.
pub async fn sign_in(store: &Store, token: &str) -> Result<Option<String>, Error> {
    let Some(operator) = operator::bearer(store, token).await? else { return Ok(None) };
    if let Some(message) = operator.ended {
        return Err(Error::refused(ErrorCode::Unauthenticated, message));
    }
    let (secret, now) = (random::token(), now());
    let mut transaction = store.on_behalf_of(&operator.name).write().await?;
    sessions::remove_old(&mut transaction, now.saturating_sub(SESSION_LASTS)).await?;
    sessions::insert(&mut transaction, &token_hash(&secret), &token_hash(token), now).await?;
    did(&mut transaction, SiteEventKind::Operator, NewEvent::new("the operator signed in to the page")).await?;
    store::commit(transaction).await?;
    Ok(Some(secret))
}

/// Returns the name of the operator whose session has this secret. `None` if the session or its token has ended.
pub async fn signed_in(store: &Store, secret: &str) -> Result<Option<String>, Error> {
    let since = now().saturating_sub(SESSION_LASTS);
    let Some(token) = sessions::token_of(&mut *store.read().await?, &token_hash(secret), since).await? else {
        return Ok(None);
    };
    let operator = bearer_of(store, &token).await?;
    Ok(operator.filter(|operator| operator.ended.is_none()).map(|operator| operator.name))
}

/// Ends a session.
pub async fn sign_out(store: &Store, secret: &str) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    sessions::remove(&mut transaction, &token_hash(secret)).await?;
    did(&mut transaction, SiteEventKind::Operator, NewEvent::new("the operator signed out of the page")).await?;
    store::commit(transaction).await
}
