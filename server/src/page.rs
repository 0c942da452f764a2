//! The page for operators: HTML that the server writes, and a little script that keeps it live. Everything but that
//! works without the script.

mod acts;
mod adding;
mod agent;
mod answer;
mod assets;
mod changes;
mod chart;
mod disks;
mod events;
mod fleet;
mod forms;
mod frame;
mod lists;
mod live;
mod multipart;
mod new_image;
mod node;
mod offers;
mod power;
mod reasons;
mod replace;
mod retry;
mod rows;
mod run;
mod session;
mod stream;
mod timeline;
mod view;
mod waiting;
mod words;

use std::sync::Arc;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::middleware;
use axum::response::{Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};

use crate::api::App;
use adding::Additions;
use live::Live;

/// Nothing comes from elsewhere, no text becomes a script or a style, and nobody frames the page.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
     base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
);

/// Returns the routes of the page.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(async || Redirect::to("/fleet")))
        .route("/login", get(session::form).post(session::sign_in))
        .route("/logout", post(session::sign_out))
        .route("/fleet", get(fleet::show))
        .route("/nodes/{node}", get(node::show))
        .route("/nodes/{node}/log", get(node::log))
        .route("/nodes/{node}/retry", get(retry::ask).post(retry::carry_out))
        .route("/nodes/{node}/agent", get(agent::show).post(agent::act))
        .route("/nodes/{node}/power", get(power::show).post(power::switch))
        .route("/nodes/{node}/power/settings", post(power::change))
        .route("/replace", get(replace::ask).post(replace::carry_out))
        .route("/act/{act}", get(acts::ask).post(acts::carry_out))
        .route("/runs", get(lists::runs))
        .route("/runs/{run}", get(run::show))
        .route("/systems", get(lists::systems))
        .route("/images", get(lists::images))
        .route("/tokens", get(lists::tokens))
        .route("/boot-files", get(lists::boot_files))
        .route("/events", get(events::show))
        .route("/waiting", get(waiting::show))
        .route("/add/image", get(new_image::ask).post(new_image::receive))
        .route("/add/image-from-url", post(new_image::fetch))
        .route("/add/node", get(forms::node).post(forms::add_node))
        .route("/add/system", get(forms::system).post(forms::add_system))
        .route("/add/token", get(forms::token).post(forms::add_token))
        .route("/page/stream", get(stream::follow))
        .route("/page/{asset}", get(assets::get))
        .layer(middleware::map_response(secure))
        .layer(Extension(Arc::new(Live::default())))
        .layer(Extension(Arc::new(Additions::default())))
}

/// Adds what keeps a browser from doing more than the page is for.
async fn secure(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    // With `no-referrer`, a form of the page itself would have no origin either.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    // Pages show secrets that are issued once, and nobody sees them by going back after signing out.
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
