//! The power of machines, over HTTPS. `{node}` is an id, a name or a claim code.

use axum::http::StatusCode;
use serde::Deserialize;
use slipway_protocol::{ErrorBody, NodePower};

use crate::api::answer::{ApiError, Dated, UrlPath};
use crate::api::auth::Operator;
use crate::api::known_body::{JsonBody, JsonChange};
use crate::operate::{self, PowerChange, PowerRequest};

/// Show what switches the power of a node's machine, what was last asked for, and whether the machine was on when that
/// was last asked.
#[utoipa::path(get, path = "/v1/operator/nodes/{node}/power", params(("node" = String, Path)),
    security(("operator" = [])),
    responses((status = 200, body = NodePower), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn show(Operator(app): Operator, UrlPath(node): UrlPath<String>) -> Result<Dated<NodePower>, ApiError> {
    Ok(Dated(operate::show_power(&app.store, &node).await?))
}

/// Change what switches the power of a node's machine.
#[utoipa::path(patch, path = "/v1/operator/nodes/{node}/power", params(("node" = String, Path)),
    request_body = PowerChange, security(("operator" = [])),
    responses((status = 200, body = NodePower), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The password has to be given again, or the node is out of \
            service.")))]
pub async fn change(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
    JsonChange(change): JsonChange<PowerChange>,
) -> Result<Dated<NodePower>, ApiError> {
    Ok(Dated(operate::change_power(&app.store, &node, change).await?))
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPowerAct {
    /// The act.
    act: PowerRequest,
}

/// Switch the power of a node's machine. The answer comes before it is done; the state of the act says how far it is.
/// What is asked for last counts.
#[utoipa::path(post, path = "/v1/operator/nodes/{node}/power", params(("node" = String, Path)),
    request_body = NewPowerAct, security(("operator" = [])),
    responses((status = 202, body = NodePower), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "Nothing switches its power, or that is disabled.")))]
pub async fn switch(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
    JsonBody(new): JsonBody<NewPowerAct>,
) -> Result<(StatusCode, Dated<NodePower>), ApiError> {
    Ok((StatusCode::ACCEPTED, Dated(operate::switch_power(&app.store, &node, new.act).await?)))
}
