//! Reads request bodies. Their memory is limited, and each must arrive in time, so that endless bodies cost little and
//! not for long.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::request::Parts;
use hyper::body::{Body as _, Frame, SizeHint};
use prometheus_client::metrics::gauge::Gauge;
use slipway_protocol::ErrorCode;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::api::answer::ApiError;
use crate::api::auth::Peer;
use crate::base::error::Error;
use crate::base::limits::{Limits, Memory};
use crate::base::meters::Counted;
use crate::base::rate::Origin;

/// Most of a body that is read after its answer, in bytes, and the time for it.
const MOST_DISCARDED: usize = 8 << 20;
const DISCARDED_WITHIN: Duration = Duration::from_secs(2);
/// Minimum number of bytes of memory taken at once.
const FIRST_BYTES: usize = 4 << 10;
/// When this many addresses are known, those that send no body now are forgotten.
const CROWD: usize = 256;

/// Limits on memory and time for the bodies of one kind of caller.
#[derive(Debug)]
pub struct Bodies {
    memory: Memory,
    stall: Duration,
    whole: Duration,
    waiting: Gauge,
    total: Arc<Semaphore>,
    of_address: Mutex<HashMap<Origin, Weak<Semaphore>>>,
}

impl Bodies {
    /// Limits the bodies of callers that are not authenticated. `waiting` counts those that wait for memory.
    pub fn of_strangers(limits: &Limits, waiting: &Gauge) -> Self {
        Self::new(limits.stranger_bodies, limits.stall, limits.stranger_body, waiting)
    }

    /// Limits the bodies of nodes and operators. Only the time limit of the request applies to the whole body.
    pub fn of_known(limits: &Limits, waiting: &Gauge) -> Self {
        Self::new(limits.known_bodies, limits.stall, Duration::from_secs(3600), waiting)
    }

    fn new(memory: Memory, stall: Duration, whole: Duration, waiting: &Gauge) -> Self {
        let waiting = waiting.clone();
        Self {
            memory,
            stall,
            whole,
            waiting,
            total: Arc::new(Semaphore::new(memory.total)),
            of_address: Mutex::default(),
        }
    }

    /// Reads a body of at most `most` bytes. Its memory counts towards the limits until the result is dropped.
    pub async fn read(&self, unread: Unread, most: usize) -> Result<Bytes, Error> {
        let Unread { mut body, from } = unread;
        if body.size_hint().lower() > most as u64 {
            return Err(too_large(most));
        }
        let mut held = Held { bytes: Vec::new(), budget: self.budget_of(from), permits: Vec::new() };
        let deadline = Instant::now() + self.whole;
        loop {
            let until = deadline.min(Instant::now() + self.stall);
            let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            let frame = timeout_at(until, frame).await.map_err(|_| late())?;
            let data = match frame {
                None => break,
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Err(ended_early(&error)),
            };
            if held.bytes.len() + data.len() > most {
                return Err(too_large(most));
            }
            let grown = timeout(self.stall, held.grow(data.len(), most, &self.total));
            let waits = Counted::new(&self.waiting);
            grown.await.map_err(|_| no_memory())?;
            drop(waits);
            held.bytes.extend_from_slice(&data);
        }
        Ok(Bytes::from_owner(held))
    }

    /// Returns the memory budget of an address. The budget is kept as long as it is in use.
    fn budget_of(&self, from: IpAddr) -> Arc<Semaphore> {
        let mut budgets = self.of_address.lock().unwrap_or_else(PoisonError::into_inner);
        if budgets.len() >= CROWD {
            budgets.retain(|_, budget| budget.strong_count() > 0);
        }
        let budget = budgets.entry(Origin::of(from)).or_default();
        budget.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Semaphore::new(self.memory.of_address));
            *budget = Arc::downgrade(&new);
            new
        })
    }
}

/// Sees to it that the body of a request is read to its end, within limits, also if its handler answers without it. A
/// connection that is closed while the client still sends is reset, and the client would not see the answer.
pub async fn read_to_the_end(request: Request) -> Request {
    request.map(|body| if body.is_end_stream() { body } else { Body::new(ReadToTheEnd(Some(body))) })
}

/// A body that is read on when it is dropped. `None` after its end.
struct ReadToTheEnd(Option<Body>);

impl hyper::body::Body for ReadToTheEnd {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.0 = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for ReadToTheEnd {
    fn drop(&mut self) {
        let rest = self.0.take().filter(|body| !body.is_end_stream());
        // There is no runtime when the server has stopped.
        if let (Some(mut body), Ok(runtime)) = (rest, Handle::try_current()) {
            runtime.spawn(async move { discard(&mut body).await });
        }
    }
}

async fn discard(body: &mut Body) {
    let mut left = MOST_DISCARDED;
    let rest = async {
        while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    let _ = timeout(DISCARDED_WITHIN, rest).await;
}

/// The received part of a body, and the memory it takes.
struct Held {
    bytes: Vec<u8>,
    budget: Arc<Semaphore>,
    permits: Vec<OwnedSemaphorePermit>,
}

impl Held {
    /// Makes room for more bytes, waiting for memory if necessary.
    async fn grow(&mut self, more: usize, most: usize, total: &Arc<Semaphore>) {
        let (needed, before) = (self.bytes.len() + more, self.bytes.capacity());
        if needed <= before {
            return;
        }
        // Doubled, so that a body is not copied for each frame.
        let after = needed.max(2 * before).max(FIRST_BYTES).min(most.max(needed));
        let wanted = u32::try_from(after - before).unwrap_or(u32::MAX);
        for budget in [Arc::clone(&self.budget), Arc::clone(total)] {
            // Semaphores are never closed.
            self.permits.extend(budget.acquire_many_owned(wanted).await.ok());
        }
        self.bytes.reserve_exact(after - self.bytes.len());
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body that was not read yet, for handlers that check the caller first.
pub struct Unread {
    body: Body,
    from: IpAddr,
}

impl<S: Send + Sync> FromRequest<S> for Unread {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        Ok(Self::of(&parts, body)?)
    }
}

impl Unread {
    /// A body for tests.
    #[cfg(test)]
    pub fn from_anywhere(body: Body) -> Self {
        Self { body, from: [127, 0, 0, 1].into() }
    }

    /// The next bytes of the body, which must arrive within this time. `None` at its end.
    pub async fn piece(&mut self, stall: Duration) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
            match timeout(stall, frame).await.map_err(|_| late())? {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
                Some(Err(error)) => return Err(ended_early(&error)),
            }
        }
    }

    /// Takes the body of a request whose other parts were taken before.
    pub fn of(parts: &Parts, body: Body) -> Result<Self, Error> {
        let from = parts.extensions.get::<Peer>().map(|peer| peer.address.ip());
        let unknown = || Error::refused(ErrorCode::Unauthenticated, "the address of the caller is not known");
        Ok(Self { from: from.ok_or_else(unknown)?, body })
    }
}

/// Lets a request take longer than others, because its body is long. Who grants it limits the time of each piece.
#[derive(Clone, Debug, Default)]
pub struct Patience(Arc<AtomicBool>);

impl Patience {
    /// Lets the request take as long as it needs.
    pub fn grant(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the request may take as long as it needs.
    pub fn is_granted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The error for a body that is larger than the server reads.
pub fn too_large(most: usize) -> Error {
    Error::refused(ErrorCode::TooLarge, format!("the body has more than {most} bytes"))
}

fn late() -> Error {
    Error::refused(ErrorCode::InvalidRequest, "the body did not arrive in time")
}

fn ended_early(error: &axum::Error) -> Error {
    Error::refused(ErrorCode::InvalidRequest, format!("the body ended early: {error}"))
}

fn no_memory() -> Error {
    Error::refused(ErrorCode::Unavailable, "the server is reading too many other bodies; try again")
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep_until;

    use super::*;

    fn bodies(total: usize, of_address: usize) -> Bodies {
        Bodies::new(Memory { total, of_address }, Duration::from_secs(20), Duration::from_secs(30), &Gauge::default())
    }

    fn unread(last: u8, body: Body) -> Unread {
        Unread { body, from: [192, 0, 2, last].into() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_counts_as_long_as_it_is_kept() {
        let bodies = bodies(30_000, 20_000);
        let read = |last, size: usize| bodies.read(unread(last, Body::from(vec![b'x'; size])), 16_000);
        let first = read(1, 15_000).await.expect("room");
        assert_eq!(first.len(), 15_000);
        let error = read(1, 6_000).await.expect_err("the address has too many");
        assert_eq!(error.body().code, ErrorCode::Unavailable);
        let second = read(2, 14_000).await.expect("room for another address");
        read(3, 2_000).await.expect_err("no room at all");
        drop((first, second));
        read(3, 15_000).await.expect("room again");
        assert_eq!(read(1, 16_001).await.expect_err("too large").body().code, ErrorCode::TooLarge);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_or_drips_is_refused() {
        let bodies = bodies(30_000, 20_000);
        let stops = Drip { left: 1, every: Duration::from_secs(1), next: None };
        let began = Instant::now();
        bodies.read(unread(1, Body::new(stops)), 1000).await.expect_err("late");
        assert_eq!(began.elapsed().as_secs(), 21);
        let drips = Drip { left: 100, every: Duration::from_secs(4), next: None };
        let began = Instant::now();
        bodies.read(unread(1, Body::new(drips)), 1000).await.expect_err("late");
        assert_eq!(began.elapsed().as_secs(), 30);
        assert_eq!(bodies.total.available_permits(), 30_000);
    }

    /// A body that sends a byte at intervals, and stalls after the last byte.
    struct Drip {
        left: u32,
        every: Duration,
        next: Option<Pin<Box<tokio::time::Sleep>>>,
    }

    impl hyper::body::Body for Drip {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            if self.left == 0 {
                return std::task::Poll::Pending;
            }
            let every = self.every;
            let next = self.next.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + every)));
            std::task::ready!(next.as_mut().poll(context));
            (self.next, self.left) = (None, self.left - 1);
            std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(Bytes::from_static(b"x")))))
        }
    }
}
