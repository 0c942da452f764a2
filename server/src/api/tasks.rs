//! Work for running systems, over HTTPS. `{node}` is an id, a name or a claim code.

use axum::http::StatusCode;
use slipway_protocol::{ErrorBody, TaskStatus};

use crate::api::answer::{ApiError, Dated, UrlPath};
use crate::api::auth::Operator;
use crate::api::known_body::JsonBody;
use crate::operate::{self, NewTask, Reboot};

/// List what the agent of a node's system did and is to do, the newest first, with what it printed.
#[utoipa::path(get, path = "/v1/operator/nodes/{node}/tasks", params(("node" = String, Path)),
    security(("operator" = [])),
    responses((status = 200, body = Vec<TaskStatus>), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody)))]
pub async fn list(Operator(app): Operator, UrlPath(node): UrlPath<String>) -> Result<Dated<Vec<TaskStatus>>, ApiError> {
    Ok(Dated(operate::list_tasks(&app.store, &node).await?))
}

/// Have the agent of a node's system do a task: drain, reboot, boot-slipway, logs, or one that its operating system
/// names. The answer comes before it is done; the state of the task says how far it is.
#[utoipa::path(post, path = "/v1/operator/nodes/{node}/tasks", params(("node" = String, Path)), request_body = NewTask,
    security(("operator" = [])),
    responses((status = 202, body = TaskStatus), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The node has no agent, it may not do that, or it is busy.")))]
pub async fn ask(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
    JsonBody(new): JsonBody<NewTask>,
) -> Result<(StatusCode, Dated<TaskStatus>), ApiError> {
    Ok((StatusCode::ACCEPTED, Dated(operate::ask_task(&app.store, &node, new).await?)))
}

/// End what the agent of a node's system does or is to do. What was done stays done.
#[utoipa::path(delete, path = "/v1/operator/nodes/{node}/tasks", params(("node" = String, Path)),
    security(("operator" = [])),
    responses((status = 200, body = TaskStatus), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "It has nothing to do.")))]
pub async fn cancel(Operator(app): Operator, UrlPath(node): UrlPath<String>) -> Result<Dated<TaskStatus>, ApiError> {
    Ok(Dated(operate::cancel_task(&app.store, &node).await?))
}

/// Remove the agent of a node's system. Its credentials end at once, and it removes itself once it hears of that.
#[utoipa::path(delete, path = "/v1/operator/nodes/{node}/agent", params(("node" = String, Path)),
    security(("operator" = [])),
    responses((status = 204), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "It has no agent.")))]
pub async fn remove_agent(Operator(app): Operator, UrlPath(node): UrlPath<String>) -> Result<StatusCode, ApiError> {
    operate::remove_agent(&app.store, &node).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Reboot a machine into its installed system: by the agent of the system, which shuts it down first, if that was heard
/// from a short time ago; or else by its power.
#[utoipa::path(post, path = "/v1/operator/nodes/{node}/reboot", params(("node" = String, Path)),
    security(("operator" = [])),
    responses((status = 202, body = Reboot), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "Neither an agent nor its power can reboot it.")))]
pub async fn reboot(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
) -> Result<(StatusCode, Dated<Reboot>), ApiError> {
    Ok((StatusCode::ACCEPTED, Dated(operate::reboot(&app.store, &node, None).await?)))
}
