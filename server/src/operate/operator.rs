//! Operators of the HTTPS API, and their tokens.
//!
//! The operator [`FIRST`] is created with the data folder. Its token is also in a file there, in clear text, so that
//! anyone with access to the folder has a token. The database decides which tokens are valid. A new token in the file
//! becomes valid at the next start, or with the next command about operators.

use serde::{Deserialize, Serialize};
use slipway_protocol::{ErrorCode, SiteEventKind};

use super::token::{LONGEST, check_lifetime};
use super::{check_name, did};
use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::base::random::{self, token_hash};
use crate::base::time::{Millis, now, utc};
use crate::store;
use crate::store::history::NewEvent;
use crate::store::operators::{self, Old, Operator};
use crate::store::{Store, settings};

/// Name of the operator that is created with the data folder.
pub const FIRST: &str = "first";

/// Milliseconds in a day. The use of a token is recorded by day, so that a token in use costs one write a day.
const DAY: Millis = 24 * 60 * 60 * 1000;

/// A token that was made for an operator. It is shown only once, because the server stores only its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct IssuedOperator {
    /// Name of the operator.
    pub name: String,
    /// The token.
    pub token: String,
    /// When it expires, in milliseconds since 1970, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
}

/// An operator, without the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OperatorStatus {
    /// Name of the operator.
    pub name: String,
    /// When its token was made, in milliseconds since 1970.
    pub created_at: Millis,
    /// When the token expires, in milliseconds since 1970, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
    /// The day on which the token was last used, by its first millisecond in UTC, since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_at: Option<Millis>,
    /// Until when the previous token also works, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_until: Option<Millis>,
}

/// The operator whose token a request has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    /// Name of the operator.
    pub name: String,
    /// Why the token no longer works, and what to do. `None` if it works.
    pub ended: Option<String>,
}

/// Returns the operator whose token this is or was, and records the use. `None` if it was never an operator's token.
pub async fn bearer(store: &Store, token: &str) -> Result<Option<Bearer>, Error> {
    bearer_of(store, &token_hash(token)).await
}

/// Like [`bearer`], for the token with this hash.
pub(super) async fn bearer_of(store: &Store, hash: &str) -> Result<Option<Bearer>, Error> {
    let now = now();
    let Some(operator) = operators::get_by_hash(&mut *store.read().await?, hash).await? else { return Ok(None) };
    let ended = why_ended(&operator, hash, now);
    let today = now - now % DAY;
    if ended.is_none() && operator.hash == hash && operator.used_at.is_none_or(|day| day < today) {
        let mut transaction = store.write().await?;
        operators::used(&mut transaction, hash, today).await?;
        store::commit(transaction).await?;
    }
    Ok(Some(Bearer { name: operator.name, ended }))
}

/// Returns why the token with this hash, which is or was the operator's, no longer works. `None` if it works.
fn why_ended(operator: &Operator, hash: &str, now: Millis) -> Option<String> {
    let name = &operator.name;
    let what_to_do = format!("`slipway-server operator rotate {name}` on the server makes a new one");
    match &operator.old {
        Some(old) if old.hash == hash => (old.until <= now).then(|| {
            let at = utc(old.until);
            format!("this token of operator {name} was replaced, and ended at {at}; use the newer one, or {what_to_do}")
        }),
        _ => {
            let at = operator.expires_at.filter(|at| *at <= now)?;
            Some(format!("the token of operator {name} expired at {}; {what_to_do}", utc(at)))
        }
    }
}

/// Makes the token in the data folder valid, as the token of the operator [`FIRST`]. Creates the token if there is none
/// and the operator was not removed. Returns the token.
pub async fn adopt_first(store: &Store, data: &DataDir) -> Result<Option<String>, Error> {
    // The transaction keeps other processes from doing the same.
    let mut transaction = store.write().await?;
    let token = match data.operator_token()? {
        Some(token) => token,
        None if settings::read(&mut transaction, settings::FIRST_REMOVED).await?.is_some() => return Ok(None),
        // Another server of the site made the token.
        None if data.site_key().is_some() && operators::get_by_name(&mut transaction, FIRST).await?.is_some() => {
            return Ok(None);
        }
        None => {
            let token = random::token();
            data.set_operator_token(&token)?;
            token
        }
    };
    let hash = token_hash(&token);
    match operators::get_by_hash(&mut transaction, &hash).await? {
        // The token is already valid; or somebody restored a replaced token, which must not become valid again.
        Some(operator) => {
            if let Some(ended) = why_ended(&operator, &hash, now()) {
                tracing::warn!("the token in the data folder does not work: {ended}");
            }
        }
        None if operators::has_ended(&mut transaction, &hash).await? => {
            tracing::warn!(
                "the token in the data folder was replaced or removed earlier and does not work; \
                 `slipway-server operator rotate {FIRST}` makes a new one, or `operator add {FIRST}` if it was removed"
            );
        }
        None => {
            if let Some(before) = operators::get_by_name(&mut transaction, FIRST).await? {
                end_tokens(&mut transaction, &before).await?;
            }
            operators::save(&mut transaction, &fresh(FIRST, hash, None)).await?;
            settings::remove(&mut transaction, settings::FIRST_REMOVED).await?;
            store::commit(transaction).await?;
        }
    }
    Ok(Some(token))
}

/// Records that the tokens of a removed or replaced operator never work again.
async fn end_tokens(connection: &mut store::Connection, operator: &Operator) -> Result<(), Error> {
    for hash in std::iter::once(&operator.hash).chain(operator.old.as_ref().map(|old| &old.hash)) {
        operators::end_token(connection, hash).await?;
    }
    Ok(())
}

/// Returns the token of the operator [`FIRST`]. Refuses if that operator was removed.
pub async fn first_token(store: &Store, data: &DataDir) -> Result<String, Error> {
    let token = adopt_first(store, data).await?.ok_or_else(|| {
        let message = match data.site_key() {
            Some(_) => format!(
                "the data folder of another server of this site has the token of operator {FIRST:?}; `operator add \
                 NAME` makes a token for another operator, and `operator rotate {FIRST}` a new one for this"
            ),
            None => format!("the operator {FIRST:?} was removed; `operator add NAME` makes a token for another"),
        };
        Error::refused(ErrorCode::NotFound, message)
    })?;
    let mut transaction = store.write().await?;
    let event = NewEvent::new(format!("the token of the operator {FIRST} was shown"));
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await?;
    Ok(token)
}

/// Returns an operator with a new token that nobody has used.
fn fresh(name: &str, hash: String, lifetime: Option<Millis>) -> Operator {
    let created_at = now();
    let expires_at = lifetime.map(|lifetime| after(created_at, lifetime));
    Operator { name: name.to_owned(), hash, created_at, expires_at, used_at: None, old: None }
}

/// Returns `now` plus `duration`, at most the latest time that the database can hold, an `i64`.
fn after(now: Millis, duration: Millis) -> Millis {
    now.saturating_add(duration).min(i64::MAX.cast_unsigned())
}

/// Makes an operator with a token. `lifetime` is in milliseconds; by default, the token does not expire.
pub async fn add_operator(
    store: &Store,
    data: &DataDir,
    name: &str,
    lifetime: Option<Millis>,
) -> Result<IssuedOperator, Error> {
    check_name("operator", name)?;
    check_lifetime(lifetime)?;
    let mut transaction = store.write().await?;
    if operators::get_by_name(&mut transaction, name).await?.is_some() {
        let message = format!(
            "there is an operator {name} already; `operator rotate {name}` makes a new token for it, and \
             `operator remove {name}` removes it"
        );
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let token = random::token();
    let operator = fresh(name, token_hash(&token), lifetime);
    let issued = issue(&mut transaction, data, operator, token).await?;
    let event = NewEvent::new(format!("the operator {name} was added"));
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await?;
    tracing::info!(name, "operator added");
    Ok(issued)
}

/// Stores an operator with a new token. The file with the first operator's token is written first: if the rest fails,
/// the next start makes that token valid, and ends the token that it replaces.
async fn issue(
    connection: &mut store::Connection,
    data: &DataDir,
    operator: Operator,
    token: String,
) -> Result<IssuedOperator, Error> {
    if operator.name == FIRST {
        data.set_operator_token(&token)?;
        settings::remove(connection, settings::FIRST_REMOVED).await?;
    }
    operators::save(connection, &operator).await?;
    Ok(IssuedOperator { name: operator.name, token, expires_at: operator.expires_at })
}

/// Returns every operator, by name.
pub async fn list_operators(store: &Store) -> Result<Vec<OperatorStatus>, Error> {
    let now = now();
    let status = |operator: Operator| OperatorStatus {
        name: operator.name,
        created_at: operator.created_at,
        expires_at: operator.expires_at,
        used_at: operator.used_at,
        old_until: operator.old.map(|old| old.until).filter(|until| *until > now),
    };
    Ok(operators::all(&mut *store.read().await?).await?.into_iter().map(status).collect())
}

/// Removes an operator. Its tokens are refused from the next request on.
pub async fn remove_operator(store: &Store, data: &DataDir, name: &str) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    let operator = operators::get_by_name(&mut transaction, name).await?.ok_or_else(unknown)?;
    operators::remove(&mut transaction, name).await?;
    end_tokens(&mut transaction, &operator).await?;
    if name == FIRST {
        data.remove_operator_token()?;
        settings::write(&mut transaction, settings::FIRST_REMOVED, "yes").await?;
    }
    let event = NewEvent::new(format!("the operator {name} was removed"));
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await?;
    tracing::info!(name, "operator removed");
    Ok(())
}

/// Makes a new token for an operator, valid for as long as the current one was. The current token keeps working for
/// `keep` milliseconds; the token before it ends.
pub async fn rotate_operator(store: &Store, data: &DataDir, name: &str, keep: Millis) -> Result<IssuedOperator, Error> {
    if keep > LONGEST {
        let message = "an old token may be kept for at most 100 years: give a shorter time";
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    let mut transaction = store.write().await?;
    let before = operators::get_by_name(&mut transaction, name).await?.ok_or_else(unknown)?;
    let lifetime = before.expires_at.map(|at| at.saturating_sub(before.created_at));
    let token = random::token();
    let mut operator = fresh(name, token_hash(&token), lifetime);
    let kept = after(operator.created_at, keep);
    let until = before.expires_at.map_or(kept, |expires_at| expires_at.min(kept));
    if let Some(oldest) = &before.old {
        operators::end_token(&mut transaction, &oldest.hash).await?;
    }
    operator.old = Some(Old { hash: before.hash, until });
    let issued = issue(&mut transaction, data, operator, token).await?;
    let event = NewEvent::new(format!("the operator {name} has a new token"));
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await?;
    tracing::info!(name, "operator has a new token");
    Ok(issued)
}

/// Returns the refusal of an unknown name. The message does not repeat the name, which may be a token by mistake.
fn unknown() -> Error {
    Error::refused(ErrorCode::NotFound, "there is no operator of this name; `operator list` shows them all")
}
