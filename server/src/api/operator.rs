//! The operators' commands over HTTPS. `{node}` is an id, a name or a claim code.

pub mod runs;

use axum::Json;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use serde::{Deserialize, Serialize};
use slipway_protocol::{Afterwards, EraseMode, ErrorBody, ErrorCode, NodeStatus, SiteStatus};

use crate::api::answer::{ApiError, Dated, OperatorQuery, UrlPath, number};
use crate::api::auth::Operator;
use crate::api::known_body::{JsonBody, JsonChange};
use crate::base::error::Error;
use crate::image::stored::{self, ImageStatus, SystemStatus};
use crate::node::status;
use crate::operate::{
    self, IssuedOperator, IssuedToken, LogType, MetadataUrl, NewNode, NewRun, NodeAttestation, NodeChange,
    OperatorStatus, TokenStatus,
};
use crate::rules::limits::{Change, InForce};
use crate::store::logs::LoggedBoot;
use crate::store::systems::System;
use utoipa::{IntoParams, ToSchema};

/// A bootstrap token to issue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Seconds until the token expires. Default: the token does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 3_155_760_000u64)]
    pub expires_in: Option<u64>,
    /// Id or name of the node that the token proves. Default: the token lets one unknown machine in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// An operator to add.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewOperator {
    /// Name of the operator, which appears in the log.
    #[schema(
        pattern = "^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$",
        max_length = 253
    )]
    pub name: String,
    /// Seconds until the operator's token expires. Default: the token does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 3_155_760_000u64)]
    pub expires_in: Option<u64>,
}

/// List the nodes.
#[utoipa::path(get, path = "/v1/operator/nodes", security(("operator" = [])), responses(
    (status = 200, body = [NodeStatus]), (status = 401, body = ErrorBody)))]
pub async fn nodes(Operator(app): Operator) -> Result<Dated<Vec<NodeStatus>>, ApiError> {
    Ok(Dated(status::all(&app.store).await?))
}

/// Register a node.
#[utoipa::path(post, path = "/v1/operator/nodes", request_body = NewNode, security(("operator" = [])), responses(
    (status = 201, body = NodeStatus), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub async fn add_node(
    Operator(app): Operator,
    JsonBody(new): JsonBody<NewNode>,
) -> Result<(StatusCode, Dated<NodeStatus>), ApiError> {
    Ok((StatusCode::CREATED, Dated(operate::add_node(&app.store, new).await?)))
}

/// Get a node.
#[utoipa::path(get, path = "/v1/operator/nodes/{node}", params(("node" = String, Path)), security(("operator" = [])),
    responses((status = 200, body = NodeStatus), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn node(Operator(app): Operator, UrlPath(node): UrlPath<String>) -> Result<Dated<NodeStatus>, ApiError> {
    Ok(Dated(operate::show_node(&app.store, &node).await?))
}

/// Change a node: its name, and the network, SSH keys and disk of systems installed on it later.
#[utoipa::path(patch, path = "/v1/operator/nodes/{node}", params(("node" = String, Path)), request_body = NodeChange,
    security(("operator" = [])),
    responses((status = 200, body = NodeStatus), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn change_node(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
    JsonChange(change): JsonChange<NodeChange>,
) -> Result<Dated<NodeStatus>, ApiError> {
    Ok(Dated(operate::change_node(&app.store, &node, change).await?))
}

/// Parameters of a release.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// New name of the node.
    #[param(
        pattern = "^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$",
        max_length = 253
    )]
    name: Option<String>,
}

/// Release a node, so that its machine can enrol.
#[utoipa::path(post, path = "/v1/operator/nodes/{node}/release", params(("node" = String, Path), Release),
    security(("operator" = [])),
    responses((status = 200, body = NodeStatus), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 410, body = ErrorBody)))]
pub async fn release(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
    OperatorQuery(release): OperatorQuery<Release>,
) -> Result<Dated<NodeStatus>, ApiError> {
    Ok(Dated(operate::release_node(&app.store, &node, release.name).await?))
}

/// The machine that takes the place of a node's machine.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Replace {
    /// The claim code of the machine, which waits to be let in.
    by: String,
}

/// Let a waiting machine take the place of a node's machine, after a repair. The node keeps its name, settings and
/// history, and gets the identifiers and the TPM of the machine. The key of its earlier machine is refused from now on.
#[utoipa::path(post, path = "/v1/operator/nodes/{node}/replace", params(("node" = String, Path)),
    request_body = Replace, security(("operator" = [])),
    responses((status = 200, body = NodeStatus), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The machine is another node's, or does not prove enough.")))]
pub async fn replace(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
    JsonBody(replace): JsonBody<Replace>,
) -> Result<Dated<NodeStatus>, ApiError> {
    Ok(Dated(operate::replace_machine(&app.store, &node, &replace.by, None).await?))
}

/// How a node is taken out of service.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Decommission {
    /// Whether its machine is switched off. Default: no.
    #[serde(default)]
    power_off: bool,
    /// How thoroughly all its disks are erased before, by a run. Left out, the disks stay as they are, except those of
    /// an ephemeral node.
    #[param(inline)]
    erase: Option<EraseMode>,
    /// Whether the disks of an ephemeral node stay as they are. Default: no.
    #[serde(default)]
    keep_disks: bool,
}

/// Take a node out of service. Its credentials are refused from now on, and an unfinished run is ended as failed. With
/// `erase`, and for an ephemeral node that had a run unless `keep_disks` is set, this happens when a run has erased all
/// its disks; if that run fails, the node stays in service.
#[utoipa::path(post, path = "/v1/operator/nodes/{node}/decommission", params(("node" = String, Path), Decommission),
    security(("operator" = [])),
    responses((status = 200, body = NodeStatus), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "It cannot be switched off, or not erased. Nothing was done.")))]
pub async fn decommission(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
    OperatorQuery(how): OperatorQuery<Decommission>,
) -> Result<Dated<NodeStatus>, ApiError> {
    if how.keep_disks && how.erase.is_some() {
        let message = "`keep_disks` and `erase` exclude each other";
        return Err(Error::refused(ErrorCode::InvalidRequest, message).into());
    }
    let known = operate::show_node(&app.store, &node).await?;
    Ok(Dated(match (operate::erasure(&known, how.erase, how.keep_disks), how.power_off) {
        (Some(mode), off) => {
            let new = NewRun { replace: true, ..NewRun::erasing(mode, Afterwards::decommission(off)) };
            let run = operate::start_run(&app.store, app.keys().authority.pem(), &node, new).await?;
            operate::show_node(&app.store, &run.node).await?
        }
        (None, true) => operate::decommission_node_and_switch_off(&app.store, &node).await?,
        (None, false) => operate::decommission_node(&app.store, &node).await?,
    }))
}

/// How a node is put back into service.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Recommission {
    /// Whether the first machine that has the node's identifiers is let in. Default: no.
    #[serde(default)]
    release: bool,
}

/// Put a node that is out of service back into service, with its name, settings and history. Its machine enrols again.
#[utoipa::path(post, path = "/v1/operator/nodes/{node}/recommission", params(("node" = String, Path), Recommission),
    security(("operator" = [])),
    responses((status = 200, body = NodeStatus), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "It is in service, or another node has its identifiers.")))]
pub async fn recommission(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
    OperatorQuery(how): OperatorQuery<Recommission>,
) -> Result<Dated<NodeStatus>, ApiError> {
    Ok(Dated(operate::recommission_node(&app.store, &node, how.release).await?))
}

/// Remove a node with its runs and logs. The node must be out of service, or never have been in service.
#[utoipa::path(delete, path = "/v1/operator/nodes/{node}", params(("node" = String, Path)), security(("operator" = [])),
    responses((status = 204), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The node is in service or has stored recovery keys.")))]
pub async fn remove_node(Operator(app): Operator, UrlPath(node): UrlPath<String>) -> Result<StatusCode, ApiError> {
    operate::remove_node(&app.store, &node).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Parameters that choose a log.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WhichLog {
    /// The log to read. Default: `installer`.
    #[serde(default)]
    r#type: LogType,
    /// The boot: its id, or its number in the list of boots, where 1 is the newest. Default: the newest.
    boot: Option<String>,
}

/// Parameters that choose a kind of log.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WhichBoots {
    /// The kind of log. Default: `installer`.
    #[serde(default)]
    r#type: LogType,
}

/// List the boots of a node whose logs are kept, newest first.
#[utoipa::path(get, path = "/v1/operator/nodes/{node}/boots", params(("node" = String, Path), WhichBoots),
    security(("operator" = [])), responses((status = 200, body = [LoggedBoot]), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn boots(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
    OperatorQuery(which): OperatorQuery<WhichBoots>,
) -> Result<Dated<Vec<LoggedBoot>>, ApiError> {
    Ok(Dated(operate::list_boots(&app.store, &node, which.r#type).await?))
}

/// Read a log of a node.
#[utoipa::path(get, path = "/v1/operator/nodes/{node}/log", params(("node" = String, Path), WhichLog),
    security(("operator" = [])), responses((status = 200, body = String, content_type = "text/plain"),
        (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn log(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
    OperatorQuery(which): OperatorQuery<WhichLog>,
) -> Result<([(HeaderName, &'static str); 1], String), ApiError> {
    let log = operate::node_log(&app.store, &node, which.r#type, which.boot.as_deref()).await?;
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], log))
}

/// Get what the machine of a node last proved with its TPM.
#[utoipa::path(get, path = "/v1/operator/nodes/{node}/attestation", params(("node" = String, Path)),
    security(("operator" = [])),
    responses((status = 200, body = NodeAttestation), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody, description = "There is no such node, or its machine has not proved a TPM.")))]
pub async fn attestation(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
) -> Result<Dated<NodeAttestation>, ApiError> {
    Ok(Dated(operate::node_attestation(&app.store, &node).await?))
}

/// Get the URL of the metadata of a node's newest run. The URL is a secret: it gives access to the user-data.
#[utoipa::path(get, path = "/v1/operator/nodes/{node}/metadata-url", params(("node" = String, Path)),
    security(("operator" = [])),
    responses((status = 200, body = MetadataUrl), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody, description = "There is no such node, or its newest run has no metadata.")))]
pub async fn metadata_url(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
) -> Result<Dated<MetadataUrl>, ApiError> {
    Ok(Dated(operate::metadata_url(&app.store, &app.keys().signer, &node).await?))
}

/// List the images.
#[utoipa::path(get, path = "/v1/operator/images", security(("operator" = [])), responses(
    (status = 200, body = [ImageStatus]), (status = 401, body = ErrorBody)))]
pub async fn images(Operator(app): Operator) -> Result<Dated<Vec<ImageStatus>>, ApiError> {
    Ok(Dated(stored::list(&app.store).await?))
}

/// Remove an image and its file. `{image}` is the digest of the image, the start of its
/// digest, or its name if no other image has that name.
#[utoipa::path(delete, path = "/v1/operator/images/{image}", params(("image" = String, Path)),
    security(("operator" = [])),
    responses((status = 204), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "An operating system or an unfinished run uses it.")))]
pub async fn remove_image(Operator(app): Operator, UrlPath(image): UrlPath<String>) -> Result<StatusCode, ApiError> {
    operate::remove_image(&app.store, &image).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the operating systems.
#[utoipa::path(get, path = "/v1/operator/os", security(("operator" = [])), responses(
    (status = 200, body = [SystemStatus]), (status = 401, body = ErrorBody)))]
pub async fn systems(Operator(app): Operator) -> Result<Dated<Vec<SystemStatus>>, ApiError> {
    Ok(Dated(stored::systems(&app.store).await?))
}

/// Add an operating system, or replace the one of the same name.
#[utoipa::path(post, path = "/v1/operator/os", request_body = System, security(("operator" = [])), responses(
    (status = 201, body = System), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 404, body = ErrorBody, description = "There is no such image.")))]
pub async fn add_system(
    Operator(app): Operator,
    JsonBody(system): JsonBody<System>,
) -> Result<(StatusCode, Dated<System>), ApiError> {
    Ok((StatusCode::CREATED, Dated(operate::add_system(&app.store, system).await?)))
}

/// Issue a bootstrap token. It lets one unknown machine in, or proves that a machine is a certain node.
#[utoipa::path(post, path = "/v1/operator/tokens", request_body = NewToken, security(("operator" = [])), responses(
    (status = 201, body = IssuedToken), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 404, body = ErrorBody, description = "There is no such node.")))]
pub async fn add_token(
    Operator(app): Operator,
    JsonBody(new): JsonBody<NewToken>,
) -> Result<(StatusCode, Dated<IssuedToken>), ApiError> {
    let lifetime = new.expires_in.map(|seconds| seconds.saturating_mul(1000));
    Ok((StatusCode::CREATED, Dated(operate::add_token(&app.store, new.node.as_deref(), lifetime).await?)))
}

/// Remove an operating system. Runs that were started from it continue.
#[utoipa::path(delete, path = "/v1/operator/os/{name}", params(("name" = String, Path)), security(("operator" = [])),
    responses((status = 204), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn remove_system(Operator(app): Operator, UrlPath(name): UrlPath<String>) -> Result<StatusCode, ApiError> {
    operate::remove_system(&app.store, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the bootstrap tokens, oldest first.
#[utoipa::path(get, path = "/v1/operator/tokens", security(("operator" = [])), responses(
    (status = 200, body = [TokenStatus]), (status = 401, body = ErrorBody)))]
pub async fn tokens(Operator(app): Operator) -> Result<Dated<Vec<TokenStatus>>, ApiError> {
    Ok(Dated(operate::list_tokens(&app.store).await?))
}

/// Revoke a bootstrap token. `{token}` is its id in the list, or the token itself.
#[utoipa::path(delete, path = "/v1/operator/tokens/{token}", params(("token" = String, Path)),
    security(("operator" = [])),
    responses((status = 204), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "A machine has used the token.")))]
pub async fn revoke_token(Operator(app): Operator, UrlPath(token): UrlPath<String>) -> Result<StatusCode, ApiError> {
    operate::revoke_token(&app.store, &token).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the operators by name, with the times at which their tokens expire. The tokens are not in the list.
#[utoipa::path(get, path = "/v1/operator/operators", security(("operator" = [])), responses(
    (status = 200, body = [OperatorStatus]), (status = 401, body = ErrorBody)))]
pub async fn operators(Operator(app): Operator) -> Result<Dated<Vec<OperatorStatus>>, ApiError> {
    Ok(Dated(operate::list_operators(&app.store).await?))
}

/// Add an operator. The answer has its token, which cannot be read again. All operators have the same rights.
#[utoipa::path(post, path = "/v1/operator/operators", request_body = NewOperator, security(("operator" = [])),
    responses((status = 201, body = IssuedOperator), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "There is an operator of this name.")))]
pub async fn add_operator(
    Operator(app): Operator,
    JsonBody(new): JsonBody<NewOperator>,
) -> Result<(StatusCode, Dated<IssuedOperator>), ApiError> {
    let lifetime = new.expires_in.map(|seconds| seconds.saturating_mul(1000));
    let issued = operate::add_operator(&app.store, &app.data, &new.name, lifetime).await?;
    Ok((StatusCode::CREATED, Dated(issued)))
}

/// Remove an operator. Its token is refused from now on.
#[utoipa::path(delete, path = "/v1/operator/operators/{operator}", params(("operator" = String, Path)),
    security(("operator" = [])),
    responses((status = 204), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn remove_operator(
    Operator(app): Operator,
    UrlPath(operator): UrlPath<String>,
) -> Result<StatusCode, ApiError> {
    operate::remove_operator(&app.store, &app.data, &operator).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Parameters of a rotation.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Rotation {
    /// Seconds for which the old token goes on working. Default: 0.
    #[serde(default, deserialize_with = "number")]
    #[param(maximum = 3_155_760_000u64)]
    keep: u64,
}

/// Make a new token for an operator, valid for as long as the old one was. The answer has the token, which cannot be
/// read again.
#[utoipa::path(post, path = "/v1/operator/operators/{operator}/rotate", params(("operator" = String, Path), Rotation),
    security(("operator" = [])),
    responses((status = 200, body = IssuedOperator), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody)))]
pub async fn rotate_operator(
    Operator(app): Operator,
    UrlPath(operator): UrlPath<String>,
    OperatorQuery(rotation): OperatorQuery<Rotation>,
) -> Result<Dated<IssuedOperator>, ApiError> {
    let keep = rotation.keep.saturating_mul(1000);
    Ok(Dated(operate::rotate_operator(&app.store, &app.data, &operator, keep).await?))
}

/// Get the trouble of the site as a whole.
#[utoipa::path(get, path = "/v1/operator/site", security(("operator" = [])),
    responses((status = 200, body = SiteStatus), (status = 401, body = ErrorBody)))]
pub async fn site(Operator(app): Operator) -> Result<Dated<SiteStatus>, ApiError> {
    Ok(Dated(operate::site_status(&app.store).await?))
}

/// List the limits beyond which a node is flagged.
#[utoipa::path(get, path = "/v1/operator/limits", security(("operator" = [])),
    responses((status = 200, body = [InForce]), (status = 401, body = ErrorBody)))]
pub async fn limits(Operator(app): Operator) -> Result<Json<Vec<InForce>>, ApiError> {
    Ok(Json(operate::list_limits(&app.store).await?))
}

/// Change a limit. What is left out gets its default.
#[utoipa::path(put, path = "/v1/operator/limits/{limit}", params(("limit" = String, Path)), request_body = Change,
    security(("operator" = [])),
    responses((status = 200, body = InForce), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody)))]
pub async fn set_limit(
    Operator(app): Operator,
    UrlPath(limit): UrlPath<String>,
    JsonBody(change): JsonBody<Change>,
) -> Result<Json<InForce>, ApiError> {
    Ok(Json(operate::set_limit(&app.store, &limit, change).await?))
}

/// Give a limit its default again.
#[utoipa::path(delete, path = "/v1/operator/limits/{limit}", params(("limit" = String, Path)),
    security(("operator" = [])),
    responses((status = 200, body = InForce), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn reset_limit(Operator(app): Operator, UrlPath(limit): UrlPath<String>) -> Result<Json<InForce>, ApiError> {
    Ok(Json(operate::reset_limit(&app.store, &limit).await?))
}
