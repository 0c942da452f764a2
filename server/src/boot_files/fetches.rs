//! Queues records of fetched boot files for the store. Serving a file only adds a record to the queue. Records are
//! written in batches, one at a time, so that fetches never wait for the database and many of them cost little.

use std::net::IpAddr;
use std::path::{Component, Path};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::base::error::{Error, chain};
use crate::base::rate::Origin;
use crate::base::time::{Millis, now};
use crate::store;
use crate::store::Store;
use crate::store::boot_fetches::{self, Fetched};

/// Pause after a batch.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of queued records, and of those from strangers in one network. Further ones are dropped.
const MOST: usize = 512;
const MOST_OF_NETWORK: usize = 16;
/// Maximum length of a stored path in characters.
const LONGEST_PATH: usize = 255;

/// Records to be stored.
#[derive(Debug, Default)]
pub struct BootFetches {
    notes: Mutex<Vec<Note>>,
    noted: Notify,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Note {
    Fetched(Fetched),
    Met { node: String, address: IpAddr, at: Millis },
}

impl BootFetches {
    /// Queues a record that a boot file was fetched.
    pub fn fetched(&self, mut fetched: Fetched) {
        fetched.file = plain_path(&fetched.file);
        tracing::debug!(
            address = %fetched.address,
            file = fetched.file,
            bytes = fetched.bytes,
            way = ?fetched.way,
            node = fetched.node,
            "a boot file was fetched"
        );
        self.add(Note::Fetched(fetched));
    }

    /// Queues a record that a node's machine has this address.
    pub fn met(&self, node: String, address: IpAddr, at: Millis) {
        self.add(Note::Met { node, address, at });
    }

    fn add(&self, note: Note) {
        let mut notes = self.notes();
        if let Some(same) = notes.iter_mut().find(|known| known.is_same(&note)) {
            *same = note;
            return;
        }
        let of_network = |origin| notes.iter().filter(|known| known.stranger() == Some(origin)).count();
        if notes.len() >= MOST || note.stranger().is_some_and(|origin| of_network(origin) >= MOST_OF_NETWORK) {
            return;
        }
        notes.push(note);
        drop(notes);
        self.noted.notify_one();
    }

    /// Stores queued records as long as the server runs.
    pub async fn keep_written(&self, store: &Store) {
        loop {
            self.noted.notified().await;
            if let Err(error) = self.write(store).await {
                tracing::warn!(error = chain(&error), "could not store which boot files were fetched");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Stores the queued records. Records that could not be stored stay in the queue. Must not run twice at the same
    /// time.
    pub async fn write(&self, store: &Store) -> Result<(), Error> {
        let batch = self.notes().clone();
        if batch.is_empty() {
            return Ok(());
        }
        let mut transaction = store.write().await?;
        for note in &batch {
            match note {
                Note::Fetched(fetched) => boot_fetches::record(&mut transaction, fetched).await?,
                Note::Met { node, address, at } => {
                    boot_fetches::met(&mut transaction, node, *address, *at).await?;
                }
            }
        }
        boot_fetches::forget_of_strangers(&mut transaction, now()).await?;
        store::commit(transaction).await?;
        // A record that was repeated meanwhile has another time, and is kept.
        self.notes().retain(|note| !batch.contains(note));
        Ok(())
    }

    fn notes(&self) -> MutexGuard<'_, Vec<Note>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Note {
    /// Whether both records are of the same file and machine, and differ only in the time.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fetched(a), Self::Fetched(b)) => *a == Fetched { at: a.at, ..b.clone() },
            (Self::Met { node: a, address: from, .. }, Self::Met { node: b, address: to, .. }) => (a, from) == (b, to),
            _ => false,
        }
    }

    /// Returns the network of the machine that fetched a file, if it was not identified as a node.
    fn stranger(&self) -> Option<Origin> {
        match self {
            Self::Fetched(fetched) if fetched.node.is_none() => Some(Origin::of(fetched.address)),
            _ => None,
        }
    }
}

/// Returns the path in a single spelling, because clients may repeat slashes, cut to [`LONGEST_PATH`].
fn plain_path(path: &str) -> String {
    let parts = Path::new(path).components().filter_map(|part| match part {
        Component::Normal(part) => Some(part.to_string_lossy()),
        _ => None,
    });
    parts.collect::<Vec<_>>().join("/").chars().take(LONGEST_PATH).collect()
}
