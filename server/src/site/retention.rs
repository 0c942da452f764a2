//! Removes what the database keeps only for a time.

use std::time::Duration;

use crate::base::error::{Error, chain};
use crate::base::set_clock::Clocks;
use crate::store::{self, Store, clock, history};

/// Interval at which old events are looked for, and pause between two small transactions that remove some.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Looks for which nothing is removed by its age after the clock was set: a day, in which somebody may set it right.
const LOOKS_OF_DOUBT: u32 = 24 * 60;
const PAUSE: Duration = Duration::from_millis(200);

/// Removes old events as long as the server runs. Several servers may do so at the same time.
pub async fn keep(store: &Store) {
    let (mut clocks, mut doubts) = (Clocks::read(), 0);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        doubts = if clocks.look().is_some() { LOOKS_OF_DOUBT } else { doubts.saturating_sub(1) };
        if let Err(error) = forget(store, doubts == 0).await {
            tracing::warn!(error = chain(&error), "could not remove old events");
        }
    }
}

async fn forget(store: &Store, by_age: bool) -> Result<(), Error> {
    loop {
        let overfull = history::overfull(&mut *store.read().await?).await?;
        if overfull.is_empty() {
            break;
        }
        for node in overfull {
            let mut transaction = store.write().await?;
            history::forget_of(&mut transaction, node.as_deref()).await?;
            store::commit(transaction).await?;
            tokio::time::sleep(PAUSE).await;
        }
    }
    while by_age && has_old(store).await? {
        let mut transaction = store.write().await?;
        let now = clock::now(&mut transaction).await?;
        history::forget_old(&mut transaction, now).await?;
        store::commit(transaction).await?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Whether there are old events, by the clock of the database: that of this host alone may be wrong by a month.
async fn has_old(store: &Store) -> Result<bool, Error> {
    let mut connection = store.read().await?;
    let now = clock::now(&mut connection).await?;
    history::has_old(&mut connection, now).await
}
