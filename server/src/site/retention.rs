//! Removes what the database keeps only for a time.

use std::time::Duration;

use crate::base::error::{Error, chain};
use crate::base::time::now;
use crate::store::{self, Store, history};

/// Interval at which old events are looked for, and pause between two small transactions that remove some.
const LOOK_EVERY: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

/// Removes old events as long as the server runs. Several servers may do so at the same time.
pub async fn keep(store: &Store) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if let Err(error) = forget(store).await {
            tracing::warn!(error = chain(&error), "could not remove old events");
        }
    }
}

async fn forget(store: &Store) -> Result<(), Error> {
    for node in history::overfull(&mut *store.read().await?).await? {
        let mut transaction = store.write().await?;
        history::forget_of(&mut transaction, node.as_deref()).await?;
        store::commit(transaction).await?;
        tokio::time::sleep(PAUSE).await;
    }
    while history::has_old(&mut *store.read().await?, now()).await? {
        let mut transaction = store.write().await?;
        history::forget_old(&mut transaction, now()).await?;
        store::commit(transaction).await?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
