//! Watches the current keys of all nodes for open connections, so that a connection ends soon after an operator or
//! another machine replaced its node's key. Each request is checked anyway; this ends requests in progress.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::watch;

use crate::base::error::{Error, chain};
use crate::keys::jwt::Subject;
use crate::node::reports::run_events;
use crate::store::{Store, nodes};

/// Interval at which the store is read, because operators' commands change it from other processes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a connection stays open after its key was revoked.
const GRACE: Duration = Duration::from_secs(2);

/// Fingerprints of the keys, by node id.
#[derive(Debug)]
pub struct LiveKeys {
    store: Store,
    keys: watch::Sender<HashMap<String, String>>,
}

impl LiveKeys {
    /// Creates an empty list of keys; [`Self::follow`] fills it.
    pub fn new(store: Store) -> Self {
        Self { store, keys: watch::Sender::default() }
    }

    /// Watches the store as long as the server runs.
    pub async fn follow(&self) {
        loop {
            if let Err(error) = self.look().await {
                tracing::error!(error = chain(&error), "could not read the keys of the nodes");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&self) -> Result<(), Error> {
        let keys = nodes::live_keys(&mut *self.store.read().await?).await?;
        // Sent even if nothing changed, because a key may have come and gone in between.
        self.keys.send_replace(keys);
        Ok(())
    }

    /// Returns a while (`GRACE`) after this key stopped being the node's key. Requests in the meantime are refused with
    /// the reason. Never returns if the key was never the node's: every request is refused, so there is nothing to end.
    pub async fn revoked(&self, subject: &Subject) {
        let mut keys = self.keys.subscribe();
        let differs = |keys: &HashMap<String, String>| keys.get(&subject.node) != Some(&subject.key);
        let mut was_live = false;
        // The channel closes only when the server ends.
        loop {
            // The last list may be older than this key, so the store is read.
            if differs(&keys.borrow_and_update()) {
                match self.is_live(subject).await {
                    Ok(true) => was_live = true,
                    Ok(false) if was_live => return tokio::time::sleep(GRACE).await,
                    Ok(false) => return std::future::pending().await,
                    Err(error) => {
                        tracing::warn!(error = chain(&error), "could not check the key of an open connection")
                    }
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
