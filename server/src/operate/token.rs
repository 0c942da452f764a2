//! Tokens, and URLs that give access like a token.

use serde::{Deserialize, Serialize};
use slipway_protocol::{ErrorCode, NodeState, SiteEventKind};

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
use crate::store::{Store, nodes, runs};

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
    let event = NewEvent::new(format!("the URL of the metadata of run {run} was shown")).of(&node);
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await?;
    Ok(MetadataUrl { url: format!("{server}/v1/metadata/{}", signer.metadata_token(&run)) })
}

/// The longest lifetime of a token: 100 years of 365.25 days.
pub(super) const LONGEST: Millis = 100 * 31_557_600 * 1000;

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
    let what = match purpose {
        Purpose::Steps => "external steps",
        Purpose::Boot => "boots",
        Purpose::Image => "fetching images",
    };
    let event = NewEvent::new(format!("a token for {what} of run {run} was issued")).of(&node);
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await?;
    Ok((token, url))
}

/// Refuses a lifetime of 0, because the token would never be valid, and one of more than [`LONGEST`]. `lifetime` is in
/// milliseconds.
pub(super) fn check_lifetime(lifetime: Option<Millis>) -> Result<(), Error> {
    let message = match lifetime {
        Some(0) => {
            "a token that expires after no time lets nobody in: give a longer time, or none for a token that stays"
        }
        Some(lifetime) if lifetime > LONGEST => {
            "a token may expire after at most 100 years: give a shorter time, or none for a token that stays"
        }
        _ => return Ok(()),
    };
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
    if let Some(node) = node.as_ref().filter(|node| node.state == NodeState::Decommissioned) {
        let message = format!("node {} is out of service: a token for it would let no machine in", node.label());
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let hash = random::token_hash(&issued.token);
    let id = node.as_ref().map(|node| node.id.as_str());
    tokens::insert(&mut transaction, &hash, now, issued.expires_at, id).await?;
    let event = NewEvent::new(format!("bootstrap token {} was issued", tokens::id(&hash)));
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
    /// Why it is of no use, if its node is out of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub useless: Option<String>,
}

/// Returns every bootstrap token, oldest first.
pub async fn list_tokens(store: &Store) -> Result<Vec<TokenStatus>, Error> {
    let mut connection = store.read().await?;
    let mut all: Vec<_> = tokens::all(&mut connection).await?.into_iter().map(token_status).collect();
    for token in &mut all {
        if let Some(made_for) = &token.made_for
            && let Some(node) = nodes::get_by_id(&mut connection, made_for).await?
            && node.state == NodeState::Decommissioned
        {
            token.useless = Some(format!("node {} is out of service", node.label()));
        }
    }
    Ok(all)
}

fn token_status(token: Token) -> TokenStatus {
    TokenStatus {
        id: tokens::id(&token.hash).to_owned(),
        created_at: token.created_at,
        expires_at: token.expires_at,
        used_at: token.used_at,
        used_by_address: token.used_by_address,
        node: token.node,
        made_for: token.made_for,
        useless: None,
    }
}

/// Revokes a bootstrap token. `reference` is its id in the list, or the token itself.
pub async fn revoke_token(store: &Store, reference: &str) -> Result<TokenStatus, Error> {
    let mut transaction = store.write().await?;
    let hash = random::token_hash(reference);
    let is_meant = |token: &Token| token.hash == hash || tokens::id(&token.hash) == reference;
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
    let event = NewEvent::new(format!("bootstrap token {} was revoked", tokens::id(&token.hash)));
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await?;
    Ok(token_status(token))
}
