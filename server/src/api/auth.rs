//! Authenticates callers.

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use slipway_protocol::ErrorCode;

use crate::api::App;
use crate::api::answer::ApiError;
use crate::base::error::Error;
use crate::base::time::now;
use crate::keys::jwt::Subject;
use crate::node::reports::{agent, run_events};
use crate::operate;
use crate::store::Store;

/// The remote end of the connection. The listener adds it to every request.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address and port.
    pub address: SocketAddr,
    /// The node and key of the client certificate. `None` if the client presented none that our authority signed.
    pub certificate: Option<Subject>,
}

impl<S: Send + Sync> FromRequestParts<S> for Peer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let unauthenticated = || unauthenticated("the address of the caller is not known");
        Ok(parts.extensions.get::<Peer>().cloned().ok_or_else(unauthenticated)?)
    }
}

/// A node's certificate or JWT. It is genuine, but the node may be decommissioned, or may have another key by now.
pub struct Credentials {
    /// The node and its key.
    pub subject: Subject,
    /// Address that the request came from.
    pub from: Option<IpAddr>,
}

impl FromRequestParts<Arc<App>> for Credentials {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let peer = parts.extensions.get::<Peer>();
        let from = peer.map(|peer| peer.address.ip());
        let by_certificate = peer.and_then(|peer| peer.certificate.clone());
        let by_token = || bearer(parts).and_then(|token| app.keys().signer.verify(token, now()));
        let Some(subject) = by_certificate.or_else(by_token) else {
            return Err(unauthenticated("this request needs a node's certificate or valid JWT").into());
        };
        if let Some(NodeName(name)) = parts.extensions.get() {
            let _ = name.set(subject.node.clone());
        }
        Ok(Self { subject, from })
    }
}

/// The calling node, authenticated by its certificate or JWT. Its record is read for every request, to refuse the
/// credentials of a decommissioned node and those for a key that is no longer valid for the node.
pub struct NodeCaller(pub Subject);

impl FromRequestParts<Arc<App>> for NodeCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let Credentials { subject, from } = Credentials::from_request_parts(parts, app).await?;
        let admitted = run_events::admit(&mut *app.store.read().await?, &subject).await;
        if let Err(error) = admitted {
            app.note_refused_credentials(&subject.node, from, &error).await;
            return Err(error.into());
        }
        app.contacts.heard(&subject.node, from, now());
        Ok(Self(subject))
    }
}

/// The node that a request's credentials belong to, for the log.
#[derive(Clone, Debug, Default)]
pub struct NodeName(Arc<OnceLock<String>>);

impl NodeName {
    /// The id of the node, if the caller has a node's credentials.
    pub fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// The name of the operator that a request's token belongs to, for the log. Set once the caller is authenticated.
#[derive(Clone, Debug, Default)]
pub struct OperatorName(Arc<OnceLock<String>>);

impl OperatorName {
    /// Sets the name. It is already set if a handler authenticates twice.
    pub fn set(&self, name: &str) {
        let _ = self.0.set(name.to_owned());
    }

    /// The name, if the caller is an operator.
    pub fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// The calling operator, authenticated by a token.
pub struct Operator(pub Caller);

/// The state of the server, as an operator's request uses it.
pub struct Caller {
    /// The state, with the database of no operator.
    pub app: Arc<App>,
    /// The database, used on behalf of the operator.
    pub store: Store,
    /// The operator's token.
    pub token: String,
}

impl Deref for Caller {
    type Target = App;

    fn deref(&self) -> &App {
        &self.app
    }
}

impl FromRequestParts<Arc<App>> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let Some(token) = bearer(parts) else {
            let message = "this request needs an operator's token, as `Authorization: Bearer`; on the server, \
                           `slipway-server operator-token` prints the first one, and `slipway-server operator add \
                           NAME` makes others";
            return Err(unauthenticated(message).into());
        };
        let Some(operator) = operate::bearer(&app.store, token).await? else {
            // A guess costs a query of the database, so guesses are limited.
            app.pace(&Peer::from_request_parts(parts, app).await?).await?;
            let message = "no operator has this token: it is wrong, or was removed or replaced; on the server, \
                           `slipway-server operator list` shows the operators";
            return Err(unauthenticated(message).into());
        };
        let (store, token) = (app.store.on_behalf_of(&operator.name), token.to_owned());
        if let Some(name) = parts.extensions.get::<OperatorName>() {
            name.set(&operator.name);
        }
        match operator.ended {
            None => Ok(Self(Caller { app: app.clone(), store, token })),
            Some(message) => Err(unauthenticated(&message).into()),
        }
    }
}

/// The token of a run, from `Authorization: Bearer`. The handler checks whether it is valid and for what.
pub struct RunToken(pub String);

impl<S: Send + Sync> FromRequestParts<S> for RunToken {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let token = bearer(parts).map(str::to_owned);
        let missing = || unauthenticated("this request needs the token of a run, as `Authorization: Bearer`");
        Ok(Self(token.ok_or_else(missing)?))
    }
}

/// The calling agent of an installed system, authenticated by its token. Whether the token still counts is asked when
/// the request is processed.
pub struct AgentCaller {
    /// The token.
    pub token: String,
    /// Id of the node.
    pub node: String,
}

impl FromRequestParts<Arc<App>> for AgentCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let missing = || unauthenticated("this request needs the token of an agent, as `Authorization: Bearer`");
        let token = bearer(parts).map(str::to_owned).ok_or_else(missing)?;
        let node = agent::admit(&app.store, &app.agent_beats, &token).await?;
        Ok(Self { token, node })
    }
}

fn bearer(parts: &Parts) -> Option<&str> {
    let (scheme, token) = parts.headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn unauthenticated(message: &str) -> Error {
    Error::refused(ErrorCode::Unauthenticated, message)
}
