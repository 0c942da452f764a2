//! The stream of changed rows. A browser opens one for all its tabs.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Duration, Instant, sleep};

use crate::api::App;
use crate::api::history::place_for_stream;
use crate::page::answer::Failed;
use crate::page::live::{Live, Name, SHORTEST};
use crate::page::session::Visitor;

/// Interval at which a stream says that it is alive, so that a browser notices soon when it is not.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);
/// Interval at which the session is looked up.
const CHECK: Duration = Duration::from_secs(15);

/// Somebody who may follow. Without a session there is no redirect, which a stream could not follow.
pub struct Follower(Visitor);

impl FromRequestParts<Arc<App>> for Follower {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Response> {
        match Visitor::from_request_parts(parts, app).await {
            Ok(visitor) => Ok(Self(visitor)),
            Err(Failed::Error(error)) => Err(Failed::Error(error).into_response()),
            Err(Failed::SignIn(_) | Failed::AskAgain) => Err(StatusCode::UNAUTHORIZED.into_response()),
        }
    }
}

/// Streams what changes, as Server-Sent Events. The first message says which rows the page must show to go on from.
pub async fn follow(
    Follower(visitor): Follower,
    State(app): State<Arc<App>>,
    Extension(live): Extension<Arc<Live>>,
) -> Result<Response, Failed> {
    let following = Following {
        _place: place_for_stream(&app.streams)?,
        nodes: app.watcher.nodes(),
        events: app.watcher.events(),
        stopping: app.stopping.clone(),
        visitor,
        live,
        sent: None,
        said: Instant::now(),
        checked: Instant::now(),
    };
    // nginx would hold the events back otherwise.
    Ok(([(HeaderName::from_static("x-accel-buffering"), "no")], Sse::new(following.messages())).into_response())
}

struct Following {
    _place: OwnedSemaphorePermit,
    visitor: Visitor,
    live: Arc<Live>,
    nodes: watch::Receiver<i64>,
    events: watch::Receiver<u64>,
    stopping: watch::Receiver<bool>,
    /// The snapshot whose rows the browser was told.
    sent: Option<Name>,
    said: Instant,
    checked: Instant,
}

impl Following {
    /// The stream. It ends when the server stops and when the session ends. While the database fails it is silent, so
    /// that the page says that it is not live.
    fn messages(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut following| async move {
            let message = following.next().await?;
            Some((Ok(Event::default().data(message)), following))
        })
    }

    async fn next(&mut self) -> Option<String> {
        loop {
            if self.sent.is_some() {
                self.wait().await?;
            }
            let Ok(snapshot) = self.live.rows(&self.visitor.app).await else {
                sleep(SHORTEST).await;
                continue;
            };
            let message = match &self.sent {
                Some(sent) if *sent == snapshot.name && self.said.elapsed() < SIGN_OF_LIFE => continue,
                Some(sent) if snapshot.name.follows(sent) => snapshot.news.clone(),
                _ => snapshot.hello(),
            };
            (self.sent, self.said) = (Some(snapshot.name.clone()), Instant::now());
            return Some(message);
        }
    }

    /// Waits until there may be other rows. `None` ends the stream.
    async fn wait(&mut self) -> Option<()> {
        tokio::select! {
            changed = self.nodes.changed() => changed.ok()?,
            changed = self.events.changed() => changed.ok()?,
            () = stopped(&mut self.stopping) => return None,
            () = sleep(SHORTEST) => {}
        }
        if self.checked.elapsed() >= CHECK {
            if !self.visitor.is_still_here().await {
                return None;
            }
            self.checked = Instant::now();
        }
        Some(())
    }
}

/// Waits until the server stops.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // The sender exists as long as the server.
    drop(stopping.wait_for(|stops| *stops).await);
}
