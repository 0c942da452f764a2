//! Notices each change of a node once in this process, whichever process made it, and wakes the requests and
//! connections that wait for the node. It notices changes of the site's keys and new events too. A wake-up is only a
//! hint: who is woken reads the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::base::error::{Error, chain};
use crate::store::{Store, node_changes};

/// Interval at which the store is read.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Wakes what waits for nodes.
#[derive(Debug)]
pub struct Watcher {
    store: Store,
    waiting: Mutex<HashMap<String, watch::Sender<()>>>,
    /// Revision of the site's keys.
    keys: watch::Sender<i64>,
    /// Number of the newest event.
    events: watch::Sender<u64>,
    /// Number of the newest change of any node.
    nodes: watch::Sender<i64>,
}

/// A wait for changes of one node, from its creation on.
#[derive(Debug)]
pub struct Watched {
    watcher: Arc<Watcher>,
    node: String,
    changes: watch::Receiver<()>,
}

impl Watcher {
    /// Creates a watcher; [`Self::follow`] wakes. `keys` is the revision of the keys that are in use.
    pub fn new(store: Store, keys: i64) -> Self {
        let (keys, events, nodes) = (watch::Sender::new(keys), watch::Sender::new(0), watch::Sender::new(0));
        Self { store, waiting: Mutex::default(), keys, events, nodes }
    }

    /// Waits for changes of a node from now on. Call it before the store is read, so that no change is missed.
    pub fn watch(self: &Arc<Self>, node: &str) -> Watched {
        let mut waiting = self.waiting();
        let changes = match waiting.get(node) {
            Some(sender) => sender.subscribe(),
            None => waiting.entry(node.to_owned()).or_default().subscribe(),
        };
        Watched { watcher: Arc::clone(self), node: node.to_owned(), changes }
    }

    /// Returns the revision of the site's keys, as it was found last.
    pub fn keys(&self) -> watch::Receiver<i64> {
        self.keys.subscribe()
    }

    /// Returns the number of the newest event, as it was found last.
    pub fn events(&self) -> watch::Receiver<u64> {
        self.events.subscribe()
    }

    /// Returns the number of the newest change of any node, as it was found last.
    pub fn nodes(&self) -> watch::Receiver<i64> {
        self.nodes.subscribe()
    }

    /// Wakes what waits for changed nodes, keys or events, as long as the server runs.
    pub async fn follow(&self) {
        let (mut known, mut is_failing) = (None, false);
        loop {
            match self.look(known).await {
                Ok(newest) => (known, is_failing) = (Some(newest), false),
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::error!(error = chain(&error), "could not read which nodes and keys changed");
                    }
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Wakes what waits for the nodes that changed since the change `known`, and returns the newest change. If `known`
    /// is `None`, everything is woken.
    async fn look(&self, known: Option<i64>) -> Result<i64, Error> {
        let changes = node_changes::since(&mut *self.store.read().await?, known.unwrap_or(0)).await?;
        self.keys.send_if_modified(|keys| std::mem::replace(keys, changes.keys) != changes.keys);
        self.events.send_if_modified(|newest| std::mem::replace(newest, changes.event) != changes.event);
        self.nodes.send_if_modified(|newest| std::mem::replace(newest, changes.newest) != changes.newest);
        let waiting = self.waiting();
        match changes.nodes.filter(|_| known.is_some()) {
            Some(nodes) => nodes.iter().filter_map(|node| waiting.get(node)).for_each(|sender| _ = sender.send(())),
            None => waiting.values().for_each(|sender| _ = sender.send(())),
        }
        Ok(changes.newest)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<()>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    /// Waits for a change of the node since the last call.
    pub async fn changed(&mut self) {
        // The sender stays in the map as long as this exists, so waiting cannot fail.
        let _ = self.changes.changed().await;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut waiting = self.watcher.waiting();
        if waiting.get(&self.node).is_some_and(|sender| sender.receiver_count() == 1) {
            waiting.remove(&self.node);
        }
    }
}
