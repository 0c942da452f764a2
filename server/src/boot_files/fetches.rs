//! Fetches of boot files on their way into the store. Who serves a file only notes that it was fetched. All notes are
//! written together, at most one batch at a time, so that fetches never wait for the database, and many of them cost the
//! database as little as one.

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
/// Most notes that wait, and most of strangers in one network. Others are dropped.
const MOST: usize = 512;
const MOST_OF_NETWORK: usize = 16;
/// Longest path of a file that is kept, in characters.
const LONGEST_PATH: usize = 255;

/// What waits to be stored.
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
    /// Notes that a boot file was fetched.
    pub fn fetched(&self, mut fetched: Fetched) {
        fetched.file = plain_path(&fetched.file);
        tracing::debug!(
            address = %fetched.address, file = fetched.file, bytes = fetched.bytes, way = ?fetched.way, node = fetched.node,
            "a boot file was fetched"
        );
        self.add(Note::Fetched(fetched));
    }

    /// Notes that the machine of a node is at an address.
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

    /// Stores what is noted, whenever there is something.
    pub async fn keep_written(&self, store: &Store) {
        loop {
            self.noted.notified().await;
            if let Err(error) = self.write(store).await {
                tracing::warn!(error = chain(&error), "storing which boot files were fetched");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Stores what is noted. What could not be stored stays noted. Must not be called twice at a time.
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
        // A note that was repeated in between is another.
        self.notes().retain(|note| !batch.contains(note));
        Ok(())
    }

    fn notes(&self) -> MutexGuard<'_, Vec<Note>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Note {
    /// Whether both say the same of the same machine, at whatever time.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fetched(a), Self::Fetched(b)) => *a == Fetched { at: a.at, ..b.clone() },
            (Self::Met { node: a, address: from, .. }, Self::Met { node: b, address: to, .. }) => (a, from) == (b, to),
            _ => false,
        }
    }

    /// The network of a machine that did not say which it is.
    fn stranger(&self) -> Option<Origin> {
        match self {
            Self::Fetched(fetched) if fetched.node.is_none() => Some(Origin::of(fetched.address)),
            _ => None,
        }
    }
}

/// A path with one spelling: clients may repeat slashes.
fn plain_path(path: &str) -> String {
    let parts = Path::new(path).components().filter_map(|part| match part {
        Component::Normal(part) => Some(part.to_string_lossy()),
        _ => None,
    });
    parts.collect::<Vec<_>>().join("/").chars().take(LONGEST_PATH).collect()
}
