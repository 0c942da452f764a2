//! The HTTP API, with one file for each kind of caller. Handlers only translate between HTTP and the functions that do
//! the work.

pub mod agent;
pub mod answer;
pub mod auth;
pub mod body;
pub mod boot;
pub mod boot_files;
pub mod boot_report;
pub mod capture;
pub mod enrol;
pub mod external_report;
mod fault;
mod file_body;
pub mod files;
mod forwarded;
pub mod health;
pub mod history;
pub mod images;
pub mod known_body;
pub mod metadata;
pub mod meters;
pub mod metrics;
pub mod node;
pub mod openapi;
pub mod operator;
pub mod phone_home;
pub mod power;
pub mod range;
pub mod recovery_keys;
pub mod tasks;

use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Extension, Router};
use slipway_protocol::shared::printable;
use slipway_protocol::{BootWay, ErrorCode, MAX_REQUEST_BYTES};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit, watch};

use crate::base::data::DataDir;
use crate::base::error::{Error, MOST_LOGGED, chain};
use crate::base::limits::Limits;
use crate::base::meters::Counted;
use crate::base::rate::{Buckets, Rate};
use crate::base::time::now;
use crate::boot_files::fetches::BootFetches;
use crate::boot_files::served::BootFiles;
use crate::keys::in_use::InUse;
use crate::node::admission::Policy;
use crate::node::capture::Captures;
use crate::node::contacts::Contacts;
use crate::node::enrol::tpm;
use crate::node::reports::refused::{self, Sender};
use crate::node::watcher::Watcher;
use crate::store::Store;
use answer::ApiError;
use auth::{NodeName, OperatorName, Peer};
use body::{Bodies, Patience};
use forwarded::believe_proxies;
use health::Health;
use metrics::Metrics;

/// Time limit for a request until the first byte of its response. Longer than a workflow poll.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// State shared by all handlers.
pub struct App {
    /// The database.
    pub store: Store,
    /// The data folder.
    pub data: DataDir,
    /// The keys in use. They may change while the server runs.
    pub keys: RwLock<Arc<InUse>>,
    /// What every machine of the site must prove.
    pub policy: Policy,
    /// Asks machines to prove their TPMs.
    pub tpms: tpm::Verifier,
    /// The folder of boot files. `None` if the server serves none.
    pub boot: Option<PathBuf>,
    /// Makes boot files for operators.
    pub boot_files: BootFiles,
    /// Lock that is held while firmware updates are signed for a run.
    pub signing: Arc<Mutex<()>>,
    /// Proxies that are trusted to name the machine that fetches a boot file.
    pub trusted_proxies: Vec<IpAddr>,
    /// Records the boot files that were fetched.
    pub boot_fetches: Arc<BootFetches>,
    /// Rate limit of installed systems' reports.
    pub reports: Rate,
    /// Rate limit of reports with one token of a run.
    pub token_reports: Rate,
    /// Rate limit of the heartbeats of agents.
    pub agent_beats: Rate,
    /// Rate at which refused reports of a node are looked at.
    pub refused: Rate,
    /// Rate limit of installed systems' metadata requests.
    pub metadata: Rate,
    /// Rate limit of strangers' requests.
    pub requests: Buckets,
    /// Memory for request bodies of authenticated callers.
    pub bodies: Bodies,
    /// Memory for request bodies of strangers.
    pub stranger_bodies: Bodies,
    /// Permits for strangers' requests that use the database.
    pub strangers: Semaphore,
    /// All limits of the server.
    pub limits: Arc<Limits>,
    /// Host name at which machines reach the server.
    pub site: String,
    /// Notes when nodes were heard from.
    pub contacts: Arc<Contacts>,
    /// Wakes what waits for a change of a node.
    pub watcher: Arc<Watcher>,
    /// Stores captured disks.
    pub captures: Captures,
    /// What the server measures.
    pub metrics: Metrics,
    /// Whether the server can do its work.
    pub health: Arc<Health>,
    /// Whether machines are redirected to the object store for images.
    pub redirects: bool,
    /// Places for streams of events.
    pub streams: Arc<Semaphore>,
    /// Becomes true when the server stops.
    pub stopping: watch::Receiver<bool>,
}

impl App {
    /// Returns the keys in use now.
    pub fn keys(&self) -> Arc<InUse> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until a stranger's request may use the database. The database has a single writer, and nodes must not
    /// queue behind all strangers.
    pub async fn turn(&self) -> Result<SemaphorePermit<'_>, Error> {
        let _waiting = Counted::new(&self.metrics.http.strangers_waiting);
        // The semaphore is never closed.
        self.strangers.acquire().await.map_err(|_| Error::refused(ErrorCode::Unavailable, "the server stops"))
    }

    /// Records a report that was not accepted, if it is a node's.
    async fn note_refused(&self, (what, sender): (&str, Sender<'_>), peer: &Peer, error: &Error) {
        let Ok(_turn) = self.turn().await else { return };
        let from = peer.address.ip();
        if let Err(error) = refused::report(&self.store, &self.refused, (what, sender), from, error, now()).await {
            tracing::warn!(error = chain(&error), "could not record a report that was refused");
        }
    }

    /// Records credentials of a node that were not accepted.
    async fn note_refused_credentials(&self, node: &str, from: Option<IpAddr>, error: &Error) {
        if let Err(error) = refused::credentials(&self.store, &self.refused, node, from, error, now()).await {
            tracing::warn!(error = chain(&error), "could not record credentials that were refused");
        }
    }

    /// Counts a stranger's request, or refuses it. The refusal is delayed, because a client that ignores it would
    /// repeat its request immediately.
    pub(crate) async fn pace(&self, peer: &Peer) -> Result<(), Error> {
        let taken = self.requests.take(peer.address.ip());
        if taken.is_err() {
            tokio::time::sleep(self.limits.refusal_pause).await;
        }
        taken
    }
}

/// Returns all routes, for the TLS listener. `page` are those of the page for operators, if there is one.
pub fn router(app: Arc<App>, page: Router<Arc<App>>) -> Router {
    let operator = Router::new()
        .route("/nodes", get(operator::nodes).post(operator::add_node))
        .route("/nodes/{node}", get(operator::node).patch(operator::change_node).delete(operator::remove_node))
        .route("/nodes/{node}/release", post(operator::release))
        .route("/nodes/{node}/replace", post(operator::replace))
        .route("/nodes/{node}/decommission", post(operator::decommission))
        .route("/nodes/{node}/recommission", post(operator::recommission))
        .route("/nodes/{node}/power", get(power::show).patch(power::change).post(power::switch))
        .route("/nodes/{node}/tasks", get(tasks::list).post(tasks::ask).delete(tasks::cancel))
        .route("/nodes/{node}/agent", delete(tasks::remove_agent))
        .route("/nodes/{node}/reboot", post(tasks::reboot))
        .route("/nodes/{node}/metadata-url", get(operator::metadata_url))
        .route("/nodes/{node}/runs", get(operator::runs::runs_of_node).post(operator::runs::start_run))
        .route("/nodes/{node}/log", get(operator::log))
        .route("/nodes/{node}/boots", get(operator::boots))
        .route("/nodes/{node}/attestation", get(operator::attestation))
        .route("/runs", get(operator::runs::all_runs))
        .route("/runs/{run}", get(operator::runs::run))
        .route("/runs/{run}/workflow", get(operator::runs::run_workflow))
        .route("/runs/{run}/cancel", post(operator::runs::cancel_run))
        .route("/runs/{run}/retry", post(operator::runs::retry_run))
        .route("/runs/{run}/confirm", post(operator::runs::confirm_run))
        .route("/runs/{run}/events", get(operator::runs::events))
        .route("/runs/{run}/compare", get(operator::runs::compare_runs))
        .route("/events", get(history::site_events))
        .route("/site", get(operator::site))
        .route("/limits", get(operator::limits))
        .route("/limits/{limit}", put(operator::set_limit).delete(operator::reset_limit))
        .route("/images", get(operator::images))
        .route("/images/{image}", delete(operator::remove_image))
        .route("/media", get(boot_files::newest).post(boot_files::make))
        .route("/operators", get(operator::operators).post(operator::add_operator))
        .route("/operators/{operator}", delete(operator::remove_operator))
        .route("/operators/{operator}/rotate", post(operator::rotate_operator))
        .route("/os", get(operator::systems).post(operator::add_system))
        .route("/os/{name}", delete(operator::remove_system))
        .route("/tokens", get(operator::tokens).post(operator::add_token))
        .route("/tokens/{token}", delete(operator::revoke_token));
    let paced = Router::new()
        .route("/v1/enrol", post(enrol::enrol))
        .route("/v1/phone-home/{token}", post(phone_home::by_token))
        .route("/latest/meta-data/phone_home", post(phone_home::by_instance))
        .route("/2009-04-04/meta-data/phone_home", post(phone_home::by_instance))
        .route("/v1/metadata/{token}/{version}/{*path}", get(metadata::by_token))
        .route("/latest/{*path}", get(metadata::by_header))
        .route("/2009-04-04/{*path}", get(metadata::by_header))
        .route("/v1/report", post(external_report::report))
        .route("/v1/boot-report", get(boot_report::known).post(boot_report::report))
        .route("/v1/boot-report/logs", post(boot_report::logs))
        .route("/v1/agent", post(agent::register).delete(agent::leave))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), keep_pace));
    let routes = boot_routes(&app, BootWay::Https)
        .merge(paced)
        .route("/images/{digest}", get(images::get))
        .route("/v1/agent/heartbeat", post(agent::heartbeat))
        .route("/v1/agent/boot", get(agent::boot))
        .route("/v1/agent/logs", post(agent::logs))
        .route("/v1/node/renew", post(enrol::renew))
        .route("/v1/node/workflow", get(node::workflow))
        .route("/v1/node/events", post(node::events))
        .route("/v1/node/logs", post(node::logs))
        .route("/v1/node/heartbeat", post(node::heartbeat))
        .route("/v1/node/inventory", put(node::inventory))
        .route("/v1/node/runs/{run}/captures", post(capture::commit))
        .route("/v1/node/runs/{run}/captures/{name}", post(capture::begin).put(capture::put))
        .route("/v1/node/runs/{run}/recovery-keys", post(recovery_keys::store))
        .route("/v1/time", get(node::time))
        .route("/v1/openapi.json", get(openapi::get))
        .route("/metrics", get(metrics::for_operators))
        .nest("/v1/operator", operator)
        .merge(page);
    finish(routes, app)
}

/// Returns only the boot routes and the health checks, for the plain HTTP listener.
pub fn boot_router(app: Arc<App>) -> Router {
    finish(boot_routes(&app, BootWay::Http), app)
}

/// Returns only the metrics and the health checks, for a plain HTTP listener that only those reach who may read them.
pub fn metrics_router(app: Arc<App>) -> Router {
    finish(health_routes().route("/metrics", get(metrics::for_anybody)), app)
}

fn health_routes() -> Router<Arc<App>> {
    Router::new().route("/healthz", get(health::alive)).route("/readyz", get(health::ready))
}

fn boot_routes(app: &Arc<App>, way: BootWay) -> Router<Arc<App>> {
    let keep_pace = middleware::from_fn_with_state(Arc::clone(app), keep_pace);
    let script = Router::new().route("/boot/ipxe", get(boot::script)).route_layer(keep_pace);
    let believe_proxies = middleware::from_fn_with_state(Arc::clone(app), believe_proxies);
    script.route("/boot/{*path}", get(boot::file)).layer(Extension(way)).layer(believe_proxies).merge(health_routes())
}

fn finish(routes: Router<Arc<App>>, app: Arc<App>) -> Router {
    routes
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), limit_and_log))
        .layer(middleware::map_request(body::read_to_the_end))
        .with_state(app)
}

/// Refuses requests of an address that sends too many, before any other work for them.
async fn keep_pace(State(app): State<Arc<App>>, peer: Peer, request: Request, next: Next) -> Response {
    match app.pace(&peer).await {
        Ok(()) => next.run(request).await,
        Err(error) => ApiError::from(error).into_response(),
    }
}

/// Refuses a path that no route has. The error does not repeat the path, which may contain a token and differ from a
/// route only by a slash.
async fn no_route() -> ApiError {
    Error::refused(ErrorCode::NotFound, "there is nothing at this path").into()
}

async fn wrong_method() -> Response {
    let refused = ApiError::from(Error::refused(ErrorCode::InvalidRequest, "the method is not supported at this path"));
    (StatusCode::METHOD_NOT_ALLOWED, refused).into_response()
}

/// Aborts requests that take too long, and logs and counts all requests. A request is logged by its route, because the
/// path may contain a token; an operator's change is logged by its path, with the operator.
async fn limit_and_log(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let path = printable::short_line(request.uri().path(), MOST_LOGGED);
    let operator = OperatorName::default();
    let node = NodeName::default();
    request.extensions_mut().insert(operator.clone());
    request.extensions_mut().insert(node.clone());
    let patience = Patience::default();
    request.extensions_mut().insert(patience.clone());
    let peer = request.extensions().get::<Peer>().map(|peer| peer.address.ip().to_string());
    let mut answer = pin!(next.run(request));
    let response = match tokio::time::timeout(REQUEST_TIMEOUT, &mut answer).await {
        Ok(response) => response,
        Err(_) if patience.is_granted() => answer.await,
        Err(_) => {
            let message = format!("the request took longer than {} s", REQUEST_TIMEOUT.as_secs());
            ApiError::from(Error::refused(ErrorCode::Unavailable, message)).into_response()
        }
    };
    let (route, peer) = (route.as_deref().unwrap_or("none"), peer.as_deref().unwrap_or("unknown"));
    let (operator, status) = (operator.get(), response.status().as_u16());
    answer::log_refusal(&response, operator, node.get(), peer);
    if let Some(operator) = operator
        && !method.is_safe()
    {
        // With 404, the path may have a token instead of an operator's name.
        let has_token = route.contains("{token}") || route.contains("{operator}") && status == 404;
        let path = if has_token { route } else { &path };
        tracing::info!(operator, %method, path, peer, status, "request of an operator");
    }
    tracing::debug!(
        %method,
        route,
        peer,
        operator,
        status,
        ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        "request"
    );
    app.metrics.http.answered(route, started.elapsed(), response)
}
