//! Sends reports to the server: step events, in order, until they are stored; the log; heartbeats.
//!
//! The queue is bounded by the number of events in a run: only the newest progress event is kept, the number of notes
//! is limited, and a run has few other events. Requests are repeated as long as the server is away; meanwhile the node
//! continues its work.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slipway_protocol::{ErrorCode, Event, EventBatch, EventKind, Failure, HEARTBEAT_SECONDS, MAX_EVENTS_PER_BATCH};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use crate::enrol::Session;
use crate::report::log_book::LogBook;
use crate::server::backoff::Backoff;
use crate::server::client::ClientError;
use crate::server::clock::now_ms;
use tracing::{error, warn};

/// Interval at which the log is sent.
const LOG_EVERY: Duration = Duration::from_secs(2);
/// Maximum number of notes in one run. An action that sends more is faulty.
const MOST_NOTES: usize = 1000;
/// Largest accepted start value of the sequence number, so that counting never overflows.
const LARGEST_SEQ: u64 = 1 << 62;
/// How long sending the log may delay a reboot. Unsent events may delay a reboot without limit.
const LOG_PATIENCE: Duration = Duration::from_secs(10);

/// Takes events from a run and sends them. Clones share the queue.
#[derive(Clone)]
pub struct Reporter {
    session: Session,
    log: LogBook,
    queue: Arc<Mutex<Queue>>,
    more: Arc<Notify>,
    /// Number of waiting events. A watch channel, so that the last acknowledgement is never missed.
    waiting: Arc<watch::Sender<usize>>,
    /// Why the server accepts no more reports for this run. `None` while the server accepts them.
    over: Arc<watch::Sender<Option<String>>>,
}

#[derive(Debug, Default)]
struct Queue {
    run: String,
    /// Whether the machine works on the run.
    is_active: bool,
    next_seq: u64,
    /// Sequence number of the last event being sent. Events up to it must not change.
    sending: u64,
    notes: usize,
    /// Number of events to send one by one, because the server refused a batch that contained them.
    suspects: usize,
    events: VecDeque<Event>,
}

impl Reporter {
    /// Starts the sending tasks.
    pub fn start(session: Session, log: LogBook) -> Self {
        let reporter = Self {
            session,
            log,
            queue: Arc::default(),
            more: Arc::default(),
            waiting: Arc::new(watch::Sender::new(0)),
            over: Arc::new(watch::Sender::new(None)),
        };
        tokio::spawn(reporter.clone().send_events());
        tokio::spawn(reporter.clone().send_log());
        tokio::spawn(reporter.clone().send_heartbeats());
        reporter
    }

    /// Begins a run. The events of the previous run must have been flushed.
    pub fn begin(&self, run: &str, next_seq: u64) {
        let mut queue = self.lock();
        let next_seq = next_seq.clamp(1, LARGEST_SEQ);
        *queue = Queue { run: run.to_owned(), is_active: true, next_seq, ..Queue::default() };
        self.waiting.send_replace(0);
        self.over.send_replace(None);
    }

    /// Queues an event of a step. Events of another run are ignored: they come from an action that did not stop when
    /// asked.
    pub fn event(&self, run: &str, step: u32, attempt: u32, mut kind: EventKind) {
        let mut queue = self.lock();
        if queue.run != run || self.over.borrow().is_some() {
            return;
        }
        kind.fit();
        queue.push(step, attempt, kind);
        self.waiting.send_replace(queue.events.len());
        drop(queue);
        self.more.notify_one();
    }

    /// Waits until the server accepts no more reports for this run, and returns why.
    pub async fn over(&self) -> String {
        let mut over = self.over.subscribe();
        // The sender lives in self, so waiting cannot fail.
        let reason = over.wait_for(Option::is_some).await;
        reason.ok().and_then(|reason| reason.clone()).unwrap_or_default()
    }

    /// Waits until the server has stored every event and the log, or until the time limit for the log. Fails with the
    /// reason if the server accepts no more reports for this run, because then some events are not stored. After a
    /// success, no heartbeat is sent until the next run.
    pub async fn flush(&self) -> Result<(), String> {
        let mut waiting = self.waiting.subscribe();
        // The sender lives in self, so waiting cannot fail.
        let _ = waiting.wait_for(|events| *events == 0).await;
        let log = async {
            while let Some(chunk) = self.log.chunk() {
                self.send_chunk(&chunk).await?;
            }
            Ok::<_, ClientError>(())
        };
        match timeout(LOG_PATIENCE, log).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!("{}", Failure::of(&error).in_one_line()),
            Err(_) => warn!("sending the log took longer than {} s", LOG_PATIENCE.as_secs()),
        }
        let over = self.over.borrow().clone();
        // The server hands out a run again whose reports it refuses, so the machine still belongs to the run.
        self.lock().is_active = over.is_some();
        over.map_or(Ok(()), Err)
    }

    async fn send_events(self) {
        let mut backoff = Backoff::default();
        loop {
            let Some(batch) = self.next_batch() else {
                self.more.notified().await;
                continue;
            };
            let result = self.session.client().events(&batch).await;
            match result {
                Ok(ack) => {
                    if ack.ended {
                        self.end(&batch.run, "an operator ended it".to_owned());
                    } else {
                        self.acknowledge(&batch.run, ack.seq);
                    }
                    self.session.screen().trouble(None);
                    backoff.reset();
                }
                Err(error) if error.code() == Some(ErrorCode::Unauthenticated) => {
                    if let Err(error) = self.session.reopen(&error).await {
                        warn!("{}", Failure::of(&error).in_one_line());
                        sleep(backoff.next_wait()).await;
                    }
                }
                Err(error) if error.code().is_some() && !error.is_transient() => {
                    self.refused(&batch, &error);
                }
                Err(error) => {
                    let sentence = Failure::of(&error).in_one_line();
                    warn!("{sentence}");
                    self.session.screen().trouble(Some(&sentence));
                    sleep(backoff.next_wait()).await;
                }
            }
        }
    }

    fn next_batch(&self) -> Option<EventBatch> {
        let mut queue = self.lock();
        let length = if queue.suspects > 0 { 1 } else { MAX_EVENTS_PER_BATCH };
        let events: Vec<Event> = queue.events.iter().take(length).cloned().collect();
        queue.sending = events.last()?.seq;
        Some(EventBatch { run: queue.run.clone(), events })
    }

    fn acknowledge(&self, run: &str, seq: u64) {
        let mut queue = self.lock();
        if queue.run == run {
            let before = queue.events.len();
            queue.events.retain(|event| event.seq > seq);
            queue.suspects = queue.suspects.saturating_sub(before - queue.events.len());
            self.waiting.send_replace(queue.events.len());
        }
    }

    /// Handles a batch that the server will never accept. One event may be the cause, so each event is sent separately.
    /// A refused note or progress event is dropped. If any other event is refused, the run is over.
    fn refused(&self, batch: &EventBatch, error: &ClientError) {
        let reason = Failure::of(error).in_one_line();
        match batch.events.as_slice() {
            [event] if matches!(event.kind, EventKind::Note(_) | EventKind::Progress(_)) && !is_gone(error) => {
                error!("{reason}; one event is dropped");
                self.acknowledge(&batch.run, event.seq);
            }
            [_, _, ..] if !is_gone(error) => self.lock().suspects = batch.events.len(),
            _ => self.end(&batch.run, reason),
        }
    }

    fn end(&self, run: &str, reason: String) {
        let mut queue = self.lock();
        if queue.run == run {
            queue.events.clear();
            // The reason is set before the count, so that `flush` does not report success.
            self.over.send_replace(Some(reason));
            self.waiting.send_replace(0);
        }
    }

    async fn send_log(self) {
        let mut backoff = Backoff::default();
        loop {
            sleep(LOG_EVERY).await;
            while let Some(chunk) = self.log.chunk() {
                match self.send_chunk(&chunk).await {
                    Ok(()) => backoff.reset(),
                    // Not logged, because the log line would have to be sent too.
                    Err(_) => sleep(backoff.next_wait()).await,
                }
            }
        }
    }

    async fn send_chunk(&self, chunk: &crate::report::log_book::Chunk) -> Result<(), ClientError> {
        let run = Some(self.lock().run.clone()).filter(|run| !run.is_empty());
        let session = &self.session;
        match session.client().logs(session.boot_id(), chunk.offset, run.as_deref(), &chunk.text).await {
            // A chunk that the server will never accept must not block the next one.
            Err(error)
                if error.code().is_none_or(|code| code == ErrorCode::Unauthenticated) || error.is_transient() =>
            {
                Err(error)
            }
            _ => {
                self.log.acknowledge(chunk);
                Ok(())
            }
        }
    }

    async fn send_heartbeats(self) {
        loop {
            sleep(Duration::from_secs(HEARTBEAT_SECONDS)).await;
            // Between runs, polls are the signs of life.
            if self.lock().is_active {
                // The server notices a missing heartbeat, and the other tasks log the failure.
                let _ = self.session.client().heartbeat().await;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the server no longer knows the run or the node.
fn is_gone(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::NotFound | ErrorCode::Decommissioned | ErrorCode::Forbidden))
}

impl Queue {
    fn push(&mut self, step: u32, attempt: u32, kind: EventKind) {
        let is_progress = matches!(kind, EventKind::Progress(_));
        if matches!(kind, EventKind::Note(_)) {
            self.notes += 1;
            if self.notes > MOST_NOTES {
                return;
            }
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        let event = Event { seq, at: now_ms(), step, attempt, kind };
        let newest = self.events.back_mut().filter(|last| {
            is_progress && last.seq > self.sending && matches!(last.kind, EventKind::Progress(_)) && last.step == step
        });
        match newest {
            Some(last) => *last = event,
            None => self.events.push_back(event),
        }
    }
}

#[cfg(test)]
mod tests {
    use slipway_protocol::{Outcome, Progress};

    use super::*;

    fn progress(bytes: u64) -> EventKind {
        EventKind::Progress(Progress { bytes, ..Progress::default() })
    }

    #[test]
    fn of_progress_only_the_newest_waits() {
        let mut queue = Queue { next_seq: 1, ..Queue::default() };
        queue.push(0, 1, EventKind::Started);
        for bytes in 0..1000 {
            queue.push(0, 1, progress(bytes));
        }
        queue.push(0, 1, EventKind::Succeeded(Outcome::default()));
        assert_eq!(queue.events.len(), 3);
        assert_eq!(queue.events[1].kind, progress(999));
        assert!(queue.events.iter().zip(queue.events.iter().skip(1)).all(|(a, b)| a.seq < b.seq));
    }

    #[test]
    fn progress_on_its_way_is_not_changed() {
        let mut queue = Queue { next_seq: 1, ..Queue::default() };
        queue.push(0, 1, progress(1));
        queue.sending = 1;
        queue.push(0, 1, progress(2));
        queue.push(0, 1, progress(3));
        let waiting: Vec<_> = queue.events.iter().map(|event| event.kind.clone()).collect();
        assert_eq!(waiting, [progress(1), progress(3)]);
    }
}
