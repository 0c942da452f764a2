//! What happened at the site, as a list and as a stream.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, HeaderName};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde::{Deserialize, Deserializer};
use slipway_protocol::{ErrorBody, ErrorCode, SiteEvent, SiteEventKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use utoipa::IntoParams;

use crate::api::answer::{ApiError, Dated, OperatorQuery, number};
use crate::api::auth::Operator;
use crate::base::error::Error;
use crate::base::time::dated;
use crate::operate;
use crate::store::Store;
use crate::store::history::{self, Filter, Place};

/// The header with the number of the last event that a client of a stream has (WHATWG HTML, "Server-sent events").
const LAST_EVENT_ID: &str = "last-event-id";
/// Media type of a stream.
const EVENT_STREAM: &str = "text/event-stream";
/// The kind of message that says that events are missing, so that the client must read its state again.
const START_AGAIN: &str = "start-again";
/// Interval of comments, which keep proxies from closing a stream, and of checks of the operator's token.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
/// Events that are read at a time for a stream.
const PAGE: u32 = 200;

/// Maximum number of streams at a time.
pub const STREAMS: usize = 256;

/// Parameters that choose events.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WhichEvents {
    /// Only events with higher numbers; 0 for all that are kept. A stream begins after it, and without it with what
    /// happens next.
    #[serde(default, deserialize_with = "optional_number")]
    after: Option<u64>,
    /// Only events with lower numbers: the newest of them. Not for a stream.
    #[serde(default, deserialize_with = "optional_number")]
    before: Option<u64>,
    /// The most events in an answer, up to 1000. Default: 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Only events of this node: its id or name.
    node: Option<String>,
    /// Only events of the run with this id.
    run: Option<String>,
    /// Only events of these kinds, separated by commas.
    #[param(value_type = Option<Vec<SiteEventKind>>, style = Form, explode = false, min_items = 1)]
    #[serde(default, deserialize_with = "kinds")]
    kind: Option<Vec<SiteEventKind>>,
}

fn optional_number<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<u64>, D::Error> {
    number(reader).map(Some)
}

/// Reads words that are separated by commas.
fn kinds<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Vec<SiteEventKind>>, D::Error> {
    let words = String::deserialize(reader)?;
    let kind = |word: &str| SiteEventKind::deserialize(serde::de::value::StrDeserializer::<D::Error>::new(word.trim()));
    words.split(',').map(kind).collect::<Result<_, _>>().map(Some)
}

/// List events: what happened to nodes and what operators did, oldest first. Without `after` and `before`, the newest.
/// With `Accept: text/event-stream`, the answer is a stream of Server-Sent Events that goes on: each has the number of
/// the event as its id and the event as its data. A client resumes by `Last-Event-ID`. The message `start-again` says
/// that events are missing after the number that it gave.
#[utoipa::path(get, path = "/v1/operator/events", params(WhichEvents), security(("operator" = [])),
    responses((status = 200, content(([SiteEvent] = "application/json"), (String = "text/event-stream"))),
        (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody, description = "There was no such node."),
        (status = 409, body = ErrorBody, description = "Events after this number were removed, or it is of no event."),
        (status = 503, body = ErrorBody, description = "There are too many streams.")))]
pub async fn site_events(
    Operator(caller): Operator,
    OperatorQuery(which): OperatorQuery<WhichEvents>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let WhichEvents { after, before, limit, node, run, kind } = which;
    let mut connection = caller.store.read().await?;
    let filter = operate::event_filter(&mut connection, node.as_deref(), run, kind).await?;
    if !wants_stream(&headers) {
        let place = place(after, before)?;
        let most = limit.unwrap_or(operate::MOST_EVENTS);
        if most == 0 || most > operate::MOST_EVENTS {
            return Err(invalid("`limit` is not valid: give 1 to 1000").into());
        }
        return Ok(Dated(operate::list_events(&mut connection, &filter, place, most).await?).into_response());
    }
    if before.is_some() || limit.is_some() {
        return Err(invalid("a stream has neither `before` nor `limit`").into());
    }
    let known = match last_event_id(&headers)?.or(after) {
        Some(number) if operate::check_follows(&mut connection, number).await.is_ok() => Known::Number(number),
        Some(_) => Known::Nothing(history::range(&mut connection).await?.1),
        None => Known::Number(history::range(&mut connection).await?.1),
    };
    drop(connection);
    let follower = Follower {
        _place: place_for_stream(&caller.streams)?,
        store: caller.store.clone(),
        token: caller.token.clone(),
        filter,
        changes: caller.watcher.events(),
        stopping: caller.stopping.clone(),
        known: 0,
        checked: Instant::now(),
    };
    let stream = Sse::new(follower.events(known)).keep_alive(KeepAlive::new().interval(SIGN_OF_LIFE));
    // nginx would hold the events back otherwise.
    Ok(([(HeaderName::from_static("x-accel-buffering"), "no")], stream).into_response())
}

fn invalid(message: &str) -> Error {
    Error::refused(ErrorCode::InvalidRequest, message)
}

fn place(after: Option<u64>, before: Option<u64>) -> Result<Option<Place>, Error> {
    match (after, before) {
        (Some(_), Some(_)) => Err(invalid("give either `after` or `before`")),
        (Some(number), None) => Ok(Some(Place::After(number))),
        (None, Some(number)) => Ok(Some(Place::Before(number))),
        (None, None) => Ok(None),
    }
}

/// Returns whether a client asks for a stream.
pub fn wants_stream(headers: &HeaderMap) -> bool {
    headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|accept| accept.contains(EVENT_STREAM))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Error> {
    let Some(id) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let id = id.to_str().ok().and_then(|id| id.parse().ok());
    id.map(Some).ok_or_else(|| invalid("Last-Event-ID is not the number of an event"))
}

/// Returns a place for a stream, or refuses it.
pub fn place_for_stream(streams: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Error> {
    let full = |_| {
        let message = format!("the server has {STREAMS} streams of events already; try again later");
        Error::refused(ErrorCode::Unavailable, message)
    };
    Arc::clone(streams).try_acquire_owned().map_err(full)
}

/// What a client knows when its stream begins.
enum Known {
    /// All events up to this number.
    Number(u64),
    /// Not what happened before this number.
    Nothing(u64),
}

/// Reads events for a stream.
struct Follower {
    _place: OwnedSemaphorePermit,
    store: Store,
    token: String,
    filter: Filter,
    changes: watch::Receiver<u64>,
    stopping: watch::Receiver<bool>,
    /// Number of the last event that was read.
    known: u64,
    /// When it was last looked whether the token still holds.
    checked: Instant,
}

impl Follower {
    /// The stream. It ends when the server stops, when the operator's token ends, and when the database fails; clients
    /// then resume.
    fn events(mut self, known: Known) -> impl Stream<Item = Result<Event, Infallible>> {
        let first = match known {
            Known::Number(number) => {
                self.known = number;
                // The id, so that a client that is cut off before the first event resumes here.
                Event::default().id(number.to_string()).comment("")
            }
            Known::Nothing(newest) => {
                self.known = newest;
                Event::default().event(START_AGAIN).id(newest.to_string()).data(newest.to_string())
            }
        };
        let later = stream::unfold(self, |mut follower| async move {
            let events = follower.next().await?;
            Some((stream::iter(events), follower))
        });
        stream::once(async { first }).chain(later.flatten()).map(Ok)
    }

    /// Waits for events, and returns them. `None` ends the stream.
    async fn next(&mut self) -> Option<Vec<Event>> {
        loop {
            // Also while one event follows the other, when `wait` is not needed or never waits for long.
            if *self.stopping.borrow() || (self.checked.elapsed() >= SIGN_OF_LIFE && !self.may_go_on().await) {
                return None;
            }
            // Before the database is read, so that no event is missed.
            let newest = *self.changes.borrow_and_update();
            let place = Place::After(self.known);
            let found = history::read(&mut *self.store.read().await.ok()?, &self.filter, place, PAGE).await.ok()?;
            match found.last() {
                Some(last) => {
                    self.known = last.number;
                    return Some(found.iter().filter_map(message).collect());
                }
                // Other events have lower numbers than those that come.
                None => self.known = self.known.max(newest),
            }
            self.wait().await?;
        }
    }

    /// Waits until there may be another event.
    async fn wait(&mut self) -> Option<()> {
        loop {
            tokio::select! {
                changed = self.changes.changed() => return changed.ok(),
                () = stopped(&mut self.stopping) => return None,
                () = tokio::time::sleep(SIGN_OF_LIFE) => {
                    if !self.may_go_on().await {
                        return None;
                    }
                }
            }
        }
    }

    /// Whether the operator's token still holds.
    async fn may_go_on(&mut self) -> bool {
        self.checked = Instant::now();
        matches!(operate::bearer(&self.store, &self.token).await, Ok(Some(operator)) if operator.ended.is_none())
    }
}

/// Waits until the server stops.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // The sender exists as long as the server.
    drop(stopping.wait_for(|stops| *stops).await);
}

fn message(event: &SiteEvent) -> Option<Event> {
    Event::default().id(event.number.to_string()).json_data(dated(event).ok()?).ok()
}
