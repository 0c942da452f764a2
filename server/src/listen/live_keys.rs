//! Watches the keys of nodes for open connections, so that a connection ends soon after an operator or another machine
//! replaced its node's key. Each request is checked anyway; this ends requests in progress.

use std::sync::Arc;
use std::time::Duration;

use crate::base::error::{Error, chain};
use crate::keys::jwt::Subject;
use crate::node::reports::run_events;
use crate::node::watcher::Watcher;
use crate::store::Store;

/// Pause before a key is checked again after the check failed.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a connection stays open after its key was revoked.
const GRACE: Duration = Duration::from_secs(2);

/// Checks the keys of open connections.
#[derive(Debug)]
pub struct LiveKeys {
    store: Store,
    watcher: Arc<Watcher>,
}

impl LiveKeys {
    /// Checks keys in the store whenever the watcher says that a node changed.
    pub fn new(store: Store, watcher: Arc<Watcher>) -> Self {
        Self { store, watcher }
    }

    /// Returns a while (`GRACE`) after this key stopped being the node's key. Requests in the meantime are refused with
    /// the reason. Never returns if the key was never the node's: every request is refused, so there is nothing to end.
    pub async fn revoked(&self, subject: &Subject) {
        let mut watched = self.watcher.watch(&subject.node);
        let mut was_live = false;
        loop {
            // Boxed, so that a connection has no memory for this while nothing changes.
            match Box::pin(self.is_live(subject)).await {
                Ok(true) => was_live = true,
                Ok(false) if was_live => return tokio::time::sleep(GRACE).await,
                Ok(false) => return std::future::pending().await,
                Err(error) => {
                    tracing::warn!(error = chain(&error), "could not check the key of an open connection");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            }
            watched.changed().await;
        }
    }

    async fn is_live(&self, subject: &Subject) -> Result<bool, Error> {
        let mut connection = self.store.read().await?;
        match run_events::admit(&mut connection, subject).await {
            Ok(_) => Ok(true),
            Err(Error::Refused { .. }) => Ok(false),
            Err(fault) => Err(fault),
        }
    }
}
