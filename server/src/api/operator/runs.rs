//! The operators' commands over HTTPS that are about runs. `{run}` is the id of a run, or a node, whose newest run is
//! meant.

use axum::Json;
use axum::http::StatusCode;
use serde::Deserialize;
use slipway_protocol::{Comparison, ErrorBody, ErrorCode, Event, RunStatus, Step};
use utoipa::IntoParams;

use crate::api::App;
use crate::api::answer::{ApiError, Dated, OperatorQuery, UrlPath};
use crate::api::auth::Operator;
use crate::api::known_body::JsonBody;
use crate::base::error::Error;
use crate::node::status;
use crate::operate::{self, NewRun};
use crate::store::events as event_store;
use crate::store::runs::{self, Run};

/// List the runs of a node, oldest first, without external steps and boot reports.
#[utoipa::path(get, path = "/v1/operator/nodes/{node}/runs",
    params(("node" = String, Path)), security(("operator" = [])),
    responses((status = 200, body = [RunStatus]), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn runs_of_node(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
) -> Result<Dated<Vec<RunStatus>>, ApiError> {
    Ok(Dated(operate::list_runs(&app.store, Some(&node)).await?))
}

/// Start a run on a node.
#[utoipa::path(post, path = "/v1/operator/nodes/{node}/runs", params(("node" = String, Path)), request_body = NewRun,
    security(("operator" = [])),
    responses((status = 201, body = RunStatus), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn start_run(
    Operator(app): Operator,
    UrlPath(node): UrlPath<String>,
    JsonBody(new): JsonBody<NewRun>,
) -> Result<(StatusCode, Dated<RunStatus>), ApiError> {
    let new = signed(&app, new).await?;
    let run = operate::start_run(&app.store, app.keys().authority.pem(), &node, new).await?;
    Ok((StatusCode::CREATED, Dated(run)))
}

/// Signs the site's keys for a run, if it writes them to the firmware.
pub(crate) async fn signed(app: &App, new: NewRun) -> Result<NewRun, Error> {
    // Awaited here, so that requests waiting for a slow PKCS #11 token do not block threads. The signature goes on, and
    // keeps its turn, if the caller stops waiting for it.
    let turn = app.signing.clone().lock_owned().await;
    let (store, data) = (app.store.clone(), app.data.clone());
    let signed = tokio::spawn(async move {
        let _turn = turn;
        new.with_keys(&store, &data).await
    })
    .await;
    signed.map_err(|source| Error::SecureBoot { doing: "signing", source: source.into() })?
}

/// How a run is tried again.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// The step to begin with, by its name or number. The steps before it are not done again. Default: the first.
    from: Option<String>,
}

/// Try a failed run again, with what it was asked for. `{run}` is the id of a run, or a node, whose newest run is tried
/// again.
#[utoipa::path(post, path = "/v1/operator/runs/{run}/retry", params(("run" = String, Path), Again),
    security(("operator" = [])),
    responses((status = 201, body = RunStatus), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The run has not failed, is not the newest of its node, or what \
            it was asked for is not kept; or it cannot go on from that step.")))]
pub async fn retry_run(
    Operator(app): Operator,
    UrlPath(run): UrlPath<String>,
    OperatorQuery(again): OperatorQuery<Again>,
) -> Result<(StatusCode, Dated<RunStatus>), ApiError> {
    let mut retry = operate::retry_of(&app.store, &run).await?;
    retry.from = again.from;
    retry.new = signed(&app, retry.new).await?;
    let run = operate::retry_run(&app.store, app.keys().authority.pem(), retry).await?;
    Ok((StatusCode::CREATED, Dated(run)))
}

/// List all runs, oldest first, without external steps and boot reports.
#[utoipa::path(get, path = "/v1/operator/runs", security(("operator" = [])), responses(
    (status = 200, body = [RunStatus]), (status = 401, body = ErrorBody)))]
pub async fn all_runs(Operator(app): Operator) -> Result<Dated<Vec<RunStatus>>, ApiError> {
    Ok(Dated(operate::list_runs(&app.store, None).await?))
}

/// End a run as failed. `{run}` is the id of a run, or a node, whose newest run is ended. The machine stops where it is
/// and waits for another run.
#[utoipa::path(post, path = "/v1/operator/runs/{run}/cancel", params(("run" = String, Path)),
    security(("operator" = [])),
    responses((status = 200, body = RunStatus), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The run is over, or the node has no run.")))]
pub async fn cancel_run(Operator(app): Operator, UrlPath(run): UrlPath<String>) -> Result<Dated<RunStatus>, ApiError> {
    Ok(Dated(operate::cancel_run(&app.store, &run).await?))
}

/// Confirm an unfinished run from a restored backup, so that its machine gets the run. `{run}` is the id of a run, or a
/// node, whose newest run is confirmed.
#[utoipa::path(post, path = "/v1/operator/runs/{run}/confirm", params(("run" = String, Path)),
    security(("operator" = [])),
    responses((status = 200, body = RunStatus), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The run does not wait to be confirmed.")))]
pub async fn confirm_run(Operator(app): Operator, UrlPath(run): UrlPath<String>) -> Result<Dated<RunStatus>, ApiError> {
    Ok(Dated(operate::confirm_run(&app.store, &run).await?))
}

/// Get a run.
#[utoipa::path(get, path = "/v1/operator/runs/{run}", params(("run" = String, Path)), security(("operator" = [])),
    responses((status = 200, body = RunStatus), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn run(Operator(app): Operator, UrlPath(run): UrlPath<String>) -> Result<Dated<RunStatus>, ApiError> {
    let run = known_run(&app, &run).await?;
    Ok(Dated(status::with_reports(&mut *app.store.read().await?, run).await?))
}

/// Get the steps of a run with their options, as the machine gets them, but without tokens and passwords.
#[utoipa::path(get, path = "/v1/operator/runs/{run}/workflow", params(("run" = String, Path)),
    security(("operator" = [])),
    responses((status = 200, body = [Step]), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn run_workflow(Operator(app): Operator, UrlPath(run): UrlPath<String>) -> Result<Json<Vec<Step>>, ApiError> {
    Ok(Json(operate::show_run(&app.store, &run).await?.1))
}

/// Parameters of a comparison.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct With {
    /// Id of the other run; or a node, whose newest run is meant. Default: the last good run before this one, of the
    /// same node, or else of the same model with the same operating system.
    with: Option<String>,
}

/// Compare a run with another one, usually the last good one: image, settings, slipway, firmware, hardware, address.
/// `{run}` is the id of a run, or a node, whose newest run is compared.
#[utoipa::path(get, path = "/v1/operator/runs/{run}/compare", params(("run" = String, Path), With),
    security(("operator" = [])),
    responses((status = 200, body = Comparison), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "There is no run to compare with.")))]
pub async fn compare_runs(
    Operator(app): Operator,
    UrlPath(run): UrlPath<String>,
    OperatorQuery(With { with }): OperatorQuery<With>,
) -> Result<Dated<Comparison>, ApiError> {
    Ok(Dated(operate::compare_runs(&app.store, &run, with.as_deref()).await?))
}

/// List the events of a run, except those that only report progress.
#[utoipa::path(get, path = "/v1/operator/runs/{run}/events", params(("run" = String, Path)),
    security(("operator" = [])),
    responses((status = 200, body = [Event]), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn events(Operator(app): Operator, UrlPath(run): UrlPath<String>) -> Result<Dated<Vec<Event>>, ApiError> {
    let run = known_run(&app, &run).await?;
    Ok(Dated(event_store::of_run(&mut *app.store.read().await?, &run.id).await?))
}

async fn known_run(app: &App, id: &str) -> Result<Run, Error> {
    let run = runs::get_by_id(&mut *app.store.read().await?, id).await?;
    run.ok_or_else(|| Error::refused(ErrorCode::NotFound, format!("there is no run {id:?}")))
}
