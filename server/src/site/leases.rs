//! Work that only one process of a site does at a time.
//!
//! Its lease in the database lasts as long as it is renewed. A process that cannot renew it stops the work before
//! another can begin it, by a clock that nobody sets. If the clock of the database is set forward, another process may
//! begin early: until the first renewal after that, both work.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::base::error::{Error, chain};
use crate::store::leases::{self, LENGTH};
use crate::store::{self, Connection, Store};

/// Interval at which a lease is renewed, often enough that one failure does not matter.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// Interval at which is looked whether a lease is free.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A lease, and who wants it.
#[derive(Clone, Debug)]
pub struct Lease {
    store: Store,
    name: String,
    holder: String,
}

/// A lease that was taken.
#[derive(Debug)]
pub struct Held {
    lease: Lease,
    until: Instant,
}

impl Lease {
    /// Names a lease for a holder, whose id no other process has.
    pub fn new(store: &Store, name: &str, holder: &str) -> Self {
        Self { store: store.clone(), name: name.to_owned(), holder: holder.to_owned() }
    }

    /// Takes the lease if it is free.
    pub async fn take(&self) -> Result<Option<Held>, Error> {
        let until = self.try_take().await?;
        Ok(until.map(|until| Held { lease: self.clone(), until }))
    }

    /// Waits until the lease is free, and takes it. Tries again if the database fails.
    pub async fn wait(&self) -> Held {
        let mut is_failing = false;
        loop {
            match self.look().await {
                Ok(Some(until)) => return Held { lease: self.clone(), until },
                Ok(None) => is_failing = false,
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::error!(error = chain(&error), lease = self.name, "could not look for a lease");
                    }
                }
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the lease is free, but no longer than this, and takes it.
    pub async fn wait_for(&self, patience: Duration) -> Result<Option<Held>, Error> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(until) = self.look().await? {
                return Ok(Some(Held { lease: self.clone(), until }));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Whether this holder has the lease.
    pub async fn is_held(&self, connection: &mut Connection) -> Result<bool, Error> {
        Ok(leases::holder(connection, &self.name).await?.is_some_and(|holder| holder == self.holder))
    }

    async fn look(&self) -> Result<Option<Instant>, Error> {
        // Without a transaction first, because writers take turns.
        match leases::holder(&mut *self.store.read().await?, &self.name).await? {
            Some(holder) if holder != self.holder => Ok(None),
            _ => self.try_take().await,
        }
    }

    /// Takes or renews the lease. Returns until when it certainly lasts.
    async fn try_take(&self) -> Result<Option<Instant>, Error> {
        let begun = Instant::now();
        let mut transaction = self.store.write().await?;
        let is_taken = leases::take(&mut transaction, &self.name, &self.holder).await?;
        store::commit(transaction).await?;
        Ok(is_taken.then(|| begun + LENGTH))
    }

    async fn release(&self) -> Result<(), Error> {
        let mut transaction = self.store.write().await?;
        leases::release(&mut transaction, &self.name, &self.holder).await?;
        store::commit(transaction).await
    }
}

impl Held {
    /// Does work while the lease is held, and gives it back afterwards. Returns `None`, and drops the work, as soon as
    /// the lease is lost.
    pub async fn during<T>(self, work: impl Future<Output = T>) -> Option<T> {
        let Self { lease, mut until } = self;
        let mut work = std::pin::pin!(work);
        loop {
            let renewing = async {
                sleep(RENEW_EVERY).await;
                lease.try_take().await
            };
            tokio::select! {
                // Work that is done counts, also if it kept this task from renewing the lease.
                biased;
                done = &mut work => {
                    // It ends by itself too.
                    if let Err(error) = lease.release().await {
                        tracing::warn!(error = chain(&error), lease = lease.name, "could not give back a lease");
                    }
                    return Some(done);
                }
                () = sleep_until(until) => return None,
                renewed = renewing => match renewed {
                    Ok(Some(later)) => until = later,
                    Ok(None) => return None,
                    Err(error) => {
                        tracing::warn!(error = chain(&error), lease = lease.name, "could not renew a lease");
                    }
                },
            }
        }
    }
}
