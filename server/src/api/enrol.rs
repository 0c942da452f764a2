//! Enrolment: a machine becomes a node.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use slipway_protocol::node::attestation::CHALLENGE_TYPE;
use slipway_protocol::shared::given::Rule;
use slipway_protocol::{EnrolRequest, Enrolment, ErrorBody, ErrorCode, RenewRequest, TpmChallenge, Wait};

use crate::api::App;
use crate::api::answer::ApiError;
use crate::api::auth::{NodeCaller, Peer};
use crate::api::body::Unread;
use crate::api::known_body::{JsonReport, SMALL, from_json};
use crate::base::error::Error;
use crate::base::time::now;
use crate::keys::ca::NodeRequest;
use crate::node::enrol::{self, Answer, Gate};

/// Seconds after which a waiting machine asks again.
const RETRY_SECONDS: &str = "2";
/// Maximum size of an enrolment request in bytes. Anyone may send one, and its inventory is stored.
const MAX_ENROL_BYTES: usize = 256 << 10;

/// Enrol a machine as a node.
#[utoipa::path(post, path = "/v1/enrol", request_body = EnrolRequest, responses(
    (status = 200, body = Enrolment, description = "The machine is enrolled. The body has its credentials."),
    (status = 202, body = Wait, description = "An operator must act first. Ask again after Retry-After."),
    (status = 400, body = ErrorBody, description = "The request or its CSR cannot be read, or is too large."),
    (status = 401, content(
        (ErrorBody = "application/json"),
        (TpmChallenge = "application/vnd.slipway.tpm-challenge+json")
    ),
        description = "token-unknown: never issued, revoked, or used before. Or a challenge: the machine is let in if \
                       it asks again with the proof that it has its TPM."),
    (status = 410, body = ErrorBody, description = "token-expired."),
    (status = 422, body = ErrorBody, description = "identity-missing: no usable UUID, serial number or MAC address."),
    (status = 429, body = ErrorBody, description = "The address asks too often. Ask again after Retry-After.")))]
pub async fn enrol(State(app): State<Arc<App>>, peer: Peer, unread: Unread) -> Result<Response, ApiError> {
    let body = app.stranger_bodies.read(unread, MAX_ENROL_BYTES).await.map_err(|error| match error.body().code {
        ErrorCode::TooLarge => {
            let message = format!("a request to enrol may have at most {MAX_ENROL_BYTES} bytes");
            Error::refused(ErrorCode::InvalidRequest, message)
        }
        _ => error,
    })?;
    let _turn = app.turn().await?;
    let request: EnrolRequest = from_json(&body, Rule::Report)?;
    let keys = app.keys();
    let gate = Gate { store: &app.store, contacts: &app.contacts, keys: &keys, policy: app.policy, tpms: &app.tpms };
    Ok(match enrol::enrol(&gate, &request, peer.address.ip(), now()).await? {
        Answer::Enrolled(enrolment) => Json(enrolment).into_response(),
        Answer::Prove(challenge) => {
            (StatusCode::UNAUTHORIZED, [(CONTENT_TYPE, CHALLENGE_TYPE)], Json(challenge)).into_response()
        }
        Answer::Wait(wait) => (StatusCode::ACCEPTED, [(RETRY_AFTER, RETRY_SECONDS)], Json(wait)).into_response(),
    })
}

/// Get new credentials for the same key before the old ones expire.
#[utoipa::path(post, path = "/v1/node/renew", request_body = RenewRequest, security(("node" = [])), responses(
    (status = 200, body = Enrolment), (status = 401, body = ErrorBody), (status = 410, body = ErrorBody),
    (status = 403, body = ErrorBody, description = "The request is for another key.")))]
pub async fn renew(
    State(app): State<Arc<App>>,
    NodeCaller(subject): NodeCaller,
    JsonReport(request): JsonReport<RenewRequest, SMALL>,
) -> Result<Json<Enrolment>, ApiError> {
    let csr = NodeRequest::from_pem(&request.csr)?;
    if csr.fingerprint() != subject.key {
        let message =
            "credentials are renewed only for the key that the node enrolled with, but this request has another key";
        return Err(Error::refused(ErrorCode::Forbidden, message).into());
    }
    let enrolment = app.keys().issue(&subject, &csr, now())?;
    enrol::renewed(&app.store, &subject.node, now()).await?;
    Ok(Json(enrolment))
}
