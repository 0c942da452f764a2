//! Tokens, and URLs that give access like a token.

use serde::{Deserialize, Serialize};
use slipway_protocol::{ErrorCode, SiteEventKind};

use super::{did, known_node, server_url};
use crate::base::error::Error;
use crate::base::random;
use crate::base::time::{Millis, now};
use crate::keys::jwt::Signer;
use crate::node::reports::run_token;
use crate::run::metadata;
use crate::store;
use crate::store::history::NewEvent;
use crate::store::run_tokens::Purpose;
use crate::store::tokens::{self, Token};
use crate::store::{Store, runs};

/// Length of a token's id, the first hexadecimal digits of its hash.
const TOKEN_ID: usize = 12;

/// An issued bootstrap token. It is shown only once, because the server stores only its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct IssuedToken {
    /// The token.
    pub token: String,
    /// When it expires, in milliseconds since 1970, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
}

/// Location of a system's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MetadataUrl {
    /// Base URL. Below it are `latest/` and `2009-04-04/`.
    pub url: String,
}

/// Returns the URL of the metadata of a node's newest run. Anyone who has the URL can read the run's user-data.
pub async fn metadata_url(store: &Store, signer: &Signer, reference: &str) -> Result<MetadataUrl, Error> {
    let mut transaction = store.write().await?;
    let node = known_node(&mut transaction, reference).await?;
    let run = metadata::newest_run(&mut transaction, &node).await?;
    let server = server_url(&mut transaction).await?;
    runs::note_metadata_url(&mut transaction, &run).await?;
    store::commit(transaction).await?;
    Ok(MetadataUrl { url: format!("{server}/v1/metadata/{}", signer.metadata_token(&run)) })
}

/// Issues a token for one kind of report about a node's newest run. Returns the token and the server's URL.
pub async fn add_run_token(store: &Store, reference: &str, purpose: Purpose) -> Result<(String, String), Error> {
    let mut transaction = store.write().await?;
    let node = known_node(&mut transaction, reference).await?;
    let Some(run) = &node.run else {
        let message = format!("node {} has no run to report to; start one with `run start`", node.label());
        return Err(Error::refused(ErrorCode::Conflict, message));
    };
    let url = server_url(&mut transaction).await?;
    let token = run_token::issue(&mut transaction, run, purpose, now()).await?;
    store::commit(transaction).await?;
    Ok((token, url))
}

/// Refuses a lifetime of 0, because the token would never be valid. `lifetime` is in milliseconds.
pub(super) fn check_lifetime(lifetime: Option<Millis>) -> Result<(), Error> {
    if lifetime != Some(0) {
        return Ok(());
    }
    let message =
        "a token that expires after no time lets nobody in: give a longer time, or none for a token that stays";
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

/// Issues a bootstrap token: for one unknown machine, or for a node, whose machine presents it at each boot as proof.
/// `lifetime` is in milliseconds; without it, the token does not expire.
pub async fn add_token(store: &Store, node: Option<&str>, lifetime: Option<Millis>) -> Result<IssuedToken, Error> {
    check_lifetime(lifetime)?;
    let now = now();
    let issued = IssuedToken {
        token: random::token(),
        expires_at: lifetime.map(|lifetime| now.saturating_add(lifetime).min(i64::MAX.cast_unsigned())),
    };
    let mut transaction = store.write().await?;
    let node = match node {
        Some(reference) => Some(known_node(&mut transaction, reference).await?),
        None => None,
    };
    let hash = random::token_hash(&issued.token);
    let id = node.as_ref().map(|node| node.id.as_str());
    tokens::insert(&mut transaction, &hash, now, issued.expires_at, id).await?;
    let event = NewEvent::new(format!("bootstrap token {} was issued", token_id(&hash)));
    let event = node.as_ref().map_or(event.clone(), |node| event.of(node));
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await?;
    Ok(issued)
}

/// A bootstrap token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TokenStatus {
    /// First 12 hexadecimal digits of its SHA-256.
    pub id: String,
    /// When it was issued, in milliseconds since 1970.
    pub created_at: Millis,
    /// When it expires, in milliseconds since 1970, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
    /// When a machine used it last, in milliseconds since 1970. Unless it was made for a node, it cannot be used again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_at: Option<Millis>,
    /// The address it was used from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by_address: Option<String>,
    /// Id of the node that used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Id of the node that it proves. Its machine uses the token at each boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_for: Option<String>,
}

/// Returns every bootstrap token, oldest first.
pub async fn list_tokens(store: &Store) -> Result<Vec<TokenStatus>, Error> {
    let tokens = tokens::all(&mut *store.read().await?).await?;
    Ok(tokens.into_iter().map(token_status).collect())
}

fn token_id(hash: &str) -> &str {
    hash.get(..TOKEN_ID).unwrap_or(hash)
}

fn token_status(token: Token) -> TokenStatus {
    TokenStatus {
        id: token_id(&token.hash).to_owned(),
        created_at: token.created_at,
        expires_at: token.expires_at,
        used_at: token.used_at,
        used_by_address: token.used_by_address,
        node: token.node,
        made_for: token.made_for,
    }
}

/// Revokes a bootstrap token. `reference` is its id in the list, or the token itself.
pub async fn revoke_token(store: &Store, reference: &str) -> Result<TokenStatus, Error> {
    let mut transaction = store.write().await?;
    let hash = random::token_hash(reference);
    let is_meant = |token: &Token| token.hash == hash || token.hash.get(..TOKEN_ID) == Some(reference);
    let Some(token) = tokens::all(&mut transaction).await?.into_iter().find(is_meant) else {
        // The message does not repeat the reference, which may be a token of another kind.
        let message = "there is no such bootstrap token; `token list` shows the ids of all tokens";
        return Err(Error::refused(ErrorCode::NotFound, message));
    };
    if token.used_at.is_some() && token.made_for.is_none() {
        let node = token.node.as_deref().unwrap_or("a node that was removed");
        let message = format!(
            "the token was used: it let {node} in, and cannot be used again; to take a node out of service, use \
             `node decommission`"
        );
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    tokens::remove(&mut transaction, &token.hash).await?;
    let event = NewEvent::new(format!("bootstrap token {} was revoked", token_id(&token.hash)));
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await?;
    Ok(token_status(token))
}
