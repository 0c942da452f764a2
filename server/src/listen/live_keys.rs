//! The keys that nodes have now. Open connections follow them, so that the connection of a key ends soon after an
//! operator, or another machine, took the node from it. Each request is checked anyway; this ends what is in progress.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::watch;

use crate::base::error::{Error, chain};
use crate::keys::jwt::Subject;
use crate::node::reports::run_events;
use crate::store::{Store, nodes};

/// How often the store is read. Commands of operators change it from other processes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a connection stays open after its key was revoked.
const GRACE: Duration = Duration::from_secs(2);

/// The keys, by the ids of their nodes.
#[derive(Debug)]
pub struct LiveKeys {
    store: Store,
    keys: watch::Sender<HashMap<String, String>>,
}

impl LiveKeys {
    /// No keys yet.
    pub fn new(store: Store) -> Self {
        Self { store, keys: watch::Sender::default() }
    }

    /// Follows the store for as long as the server runs.
    pub async fn follow(&self) {
        loop {
            if let Err(error) = self.look().await {
                tracing::error!(error = chain(&error), "looking for keys that are no longer those of nodes");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&self) -> Result<(), Error> {
        let keys = nodes::live_keys(&mut *self.store.read().await?).await?;
        // Also if nothing changed: a key may have come and gone in between.
        self.keys.send_replace(keys);
        Ok(())
    }

    /// Returns a while after this key ceased to be the node's. What its machine asks in the meantime is refused with
    /// the reason. If the key was not the node's to begin with, each request is refused, and nothing needs to be ended.
    pub async fn revoked(&self, subject: &Subject) {
        let mut keys = self.keys.subscribe();
        let differs = |keys: &HashMap<String, String>| keys.get(&subject.node) != Some(&subject.key);
        let mut was_live = false;
        // The channel is closed only when the server ends.
        loop {
            // What was seen last may be older than this key.
            if differs(&keys.borrow_and_update()) {
                match self.is_live(subject).await {
                    Ok(true) => was_live = true,
                    Ok(false) if was_live => return tokio::time::sleep(GRACE).await,
                    Ok(false) => return std::future::pending().await,
                    Err(error) => tracing::warn!(error = chain(&error), "checking the key of an open connection"),
                }
            } else {
                was_live = true;
            }
            if keys.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn is_live(&self, subject: &Subject) -> Result<bool, Error> {
        let mut connection = self.store.read().await?;
        match run_events::admitted_node(&mut connection, subject).await {
            Ok(_) => Ok(true),
            Err(Error::Refused { .. }) => Ok(false),
            Err(fault) => Err(fault),
        }
    }
}
