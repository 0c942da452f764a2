//! Notes when nodes were heard from and where, and stores it for all of them at once: a transaction for each request
//! would cost more than the request. What was noted last is lost in a crash.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slipway_protocol::HEARTBEAT_SECONDS;

use crate::base::error::{Error, chain};
use crate::base::set_clock::Clocks;
use crate::base::time::{Millis, now};
use crate::store::{self, Store, boot_fetches, node_contacts};

/// Interval at which contacts are stored.
pub const STORE_EVERY: Duration = Duration::from_secs(2);
/// Milliseconds after which a node's address is stored again.
const ADDRESS_AGE: Millis = 10 * 60 * 1000;

/// Contacts of nodes.
#[derive(Debug)]
pub struct Contacts {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Both clocks, as they were looked at last.
    clocks: Clocks,
    /// The time that the clock was set back to, while stored times may be later.
    set_back_to: Option<Millis>,
    /// When each node was heard from, if that is not stored yet.
    heard: HashMap<String, Millis>,
    /// The address of each node, and when it was noted.
    addresses: HashMap<String, (IpAddr, Millis)>,
    /// When nodes used an address, if that is not stored yet.
    met: HashMap<(String, IpAddr), Millis>,
    /// Number of open polls of each node.
    polls: HashMap<String, usize>,
    /// When the nodes with open polls were last noted.
    polls_noted: Millis,
    /// Since when the server has been able to hear nodes. Before that, nothing is known about their silence.
    listening_since: Millis,
}

/// A node's poll, which is a sign of life as long as it is open.
#[derive(Debug)]
pub struct OpenPoll {
    contacts: Arc<Contacts>,
    node: String,
}

impl Contacts {
    /// Creates contacts of a server that begins to listen now.
    pub fn listening() -> Self {
        let clocks = Clocks::read();
        Self {
            state: Mutex::new(State {
                clocks,
                set_back_to: None,
                heard: HashMap::new(),
                addresses: HashMap::new(),
                met: HashMap::new(),
                polls: HashMap::new(),
                polls_noted: 0,
                listening_since: clocks.wall(),
            }),
        }
    }

    /// Sets since when the server has been able to hear nodes.
    pub fn listens_since(&self, at: Millis) {
        self.state().listening_since = at;
    }

    /// Returns when a node was last heard from, or could last have been without the server knowing. `stored` is the
    /// time in the store, which may be older. `None` if the node was never heard from.
    pub fn last_seen(&self, node: &str, stored: Option<Millis>, now: Millis) -> Option<Millis> {
        let mut state = self.state();
        state.look_at_clock();
        let noted = state.heard.get(node).copied().max(state.polls.contains_key(node).then_some(now));
        stored.max(noted).map(|seen| seen.max(state.listening_since))
    }

    /// Notes that a node made a request, from this address if it is known.
    pub fn heard(&self, node: &str, from: Option<IpAddr>, at: Millis) {
        let mut state = self.state();
        state.heard.insert(node.to_owned(), at);
        let Some(from) = from else { return };
        let is_noted = |(address, noted): &(IpAddr, Millis)| *address == from && at.abs_diff(*noted) < ADDRESS_AGE;
        if !state.addresses.get(node).is_some_and(is_noted) {
            state.addresses.insert(node.to_owned(), (from, at));
            state.met.insert((node.to_owned(), from), at);
        }
    }

    /// Counts the node as present until the returned value is dropped.
    pub fn polls(self: &Arc<Self>, node: &str) -> OpenPoll {
        *self.state().polls.entry(node.to_owned()).or_default() += 1;
        OpenPoll { contacts: Arc::clone(self), node: node.to_owned() }
    }

    /// Returns the number of open polls.
    pub fn open_polls(&self) -> usize {
        self.state().polls.values().sum()
    }

    /// Stores what was noted, as long as the server runs.
    pub async fn keep_stored(&self, store: &Store) {
        let mut is_failing = false;
        loop {
            tokio::time::sleep(STORE_EVERY).await;
            self.state().look_at_clock();
            self.note_polls(now());
            match self.store(store).await {
                Ok(()) => is_failing = false,
                Err(error) => {
                    // Requests of nodes fail too while the database does.
                    self.listens_since(now());
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::error!(error = chain(&error), "could not store when nodes were heard from");
                    }
                }
            }
        }
    }

    /// Notes the nodes with open polls, as often as a node sends heartbeats.
    fn note_polls(&self, at: Millis) {
        let State { heard, polls, polls_noted, .. } = &mut *self.state();
        if at.abs_diff(*polls_noted) >= HEARTBEAT_SECONDS * 1000 {
            *polls_noted = at;
            heard.extend(polls.keys().map(|node| (node.clone(), at)));
        }
    }

    /// Stores what was noted. Until it is stored, it stays noted, also if this is interrupted.
    pub async fn store(&self, store: &Store) -> Result<(), Error> {
        let (heard, met, set_back_to) = {
            let state = self.state();
            (state.heard.clone(), state.met.clone(), state.set_back_to)
        };
        if heard.is_empty() && met.is_empty() && set_back_to.is_none() {
            return Ok(());
        }
        let mut transaction = store.write().await?;
        if let Some(now) = set_back_to {
            node_contacts::not_after(&mut transaction, now).await?;
        }
        node_contacts::save(&mut transaction, &heard).await?;
        for ((node, from), at) in &met {
            boot_fetches::seen_at(&mut transaction, node, *from, *at).await?;
        }
        store::commit(transaction).await?;
        let mut state = self.state();
        if state.set_back_to == set_back_to {
            state.set_back_to = None;
        }
        // A contact that was repeated meanwhile has another time, and is kept.
        state.heard.retain(|node, at| heard.get(node) != Some(at));
        state.met.retain(|contact, at| met.get(contact) != Some(at));
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Nodes are not silent because the clock was set: they count from that moment on, as if the server had begun to
    /// listen then.
    fn look_at_clock(&mut self) {
        let Some(by) = self.clocks.look() else { return };
        self.set_clock(by, self.clocks.wall());
    }

    fn set_clock(&mut self, by: i64, now: Millis) {
        self.listening_since = now;
        if by < 0 {
            self.set_back_to = Some(now);
        }
        self.heard.values_mut().for_each(|at| *at = (*at).min(now));
    }
}

impl Drop for OpenPoll {
    fn drop(&mut self) {
        let mut state = self.contacts.state();
        if let Some(polls) = state.polls.get_mut(&self.node) {
            *polls -= 1;
            if *polls == 0 {
                state.polls.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use slipway_protocol::Identity;

    use super::*;
    use crate::base::data::DataDir;
    use crate::store::nodes::{self, Node};

    async fn last_seen(store: &Store, node: &str) -> Option<Millis> {
        let mut connection = store.read().await.unwrap();
        nodes::get_by_id(&mut connection, node).await.unwrap().unwrap().last_seen
    }

    #[tokio::test]
    async fn contacts_are_stored_together_and_an_open_poll_is_one() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let store = Store::open(&folder.path().join("slipway.db")).await?;
        let mut transaction = store.write().await?;
        let mut ids = Vec::new();
        // More than one statement stores.
        for _ in 0..250 {
            let node = Node::new(Identity::default(), 1);
            nodes::save(&mut transaction, &node).await?;
            ids.push(node.id);
        }
        store::commit(transaction).await?;
        let contacts = Arc::new(Contacts::listening());
        ids.iter().for_each(|node| contacts.heard(node, None, 1000));
        contacts.heard("removed", "192.0.2.1".parse().ok(), 1000);
        assert_eq!(last_seen(&store, &ids[0]).await, None, "it is only noted");
        contacts.store(&store).await?;
        for node in &ids {
            assert_eq!(last_seen(&store, node).await, Some(1000));
        }

        let poll = contacts.polls(&ids[0]);
        for (at, expected) in [(11_000, 11_000), (13_000, 11_000), (16_000, 16_000)] {
            contacts.note_polls(at);
            contacts.store(&store).await?;
            assert_eq!(
                (last_seen(&store, &ids[0]).await, last_seen(&store, &ids[1]).await),
                (Some(expected), Some(1000))
            );
        }
        drop(poll);
        contacts.store(&store).await?;
        contacts.note_polls(26_000);
        contacts.store(&store).await?;
        // A poll may end because the kernel found that the machine is gone.
        assert_eq!(last_seen(&store, &ids[0]).await, Some(16_000));
        Ok(())
    }

    #[tokio::test]
    async fn contacts_that_could_not_be_stored_are_stored_later() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let data = DataDir::make(folder.path())?;
        let store = Store::of(&data).await?;
        let node = Node::new(Identity::default(), 1);
        let mut transaction = store.write().await?;
        nodes::save(&mut transaction, &node).await?;
        store::commit(transaction).await?;
        let contacts = Contacts::listening();
        contacts.heard(&node.id, None, 1000);
        assert!(contacts.store(&Store::read_only_of(&data)).await.is_err());
        contacts.store(&store).await?;
        assert_eq!(last_seen(&store, &node.id).await, Some(1000));
        Ok(())
    }

    #[tokio::test]
    async fn a_clock_that_was_set_makes_no_node_silent_and_hides_no_silence() -> Result<(), Box<dyn std::error::Error>>
    {
        let folder = tempfile::tempdir()?;
        let store = Store::of(&DataDir::make(folder.path())?).await?;
        let node = Node::new(Identity::default(), 1);
        let mut transaction = store.write().await?;
        nodes::save(&mut transaction, &node).await?;
        store::commit(transaction).await?;
        let contacts = Contacts::listening();
        contacts.listens_since(50);
        contacts.heard(&node.id, None, 9_000_000);
        contacts.store(&store).await?;
        contacts.state().set_clock(90_000_000, 99_000_000);
        assert_eq!(contacts.last_seen(&node.id, Some(9_000_000), 99_000_000), Some(99_000_000), "forward");
        contacts.heard(&node.id, None, 99_000_500);
        contacts.store(&store).await?;
        contacts.state().set_clock(-90_000_000, 9_000_600);
        contacts.store(&store).await?;
        assert_eq!(last_seen(&store, &node.id).await, Some(9_000_600), "back");
        contacts.heard(&node.id, None, 9_000_700);
        contacts.store(&store).await?;
        assert_eq!(last_seen(&store, &node.id).await, Some(9_000_700), "it is done once");
        Ok(())
    }

    #[test]
    fn a_node_is_not_silent_while_the_server_cannot_hear_it() {
        let contacts = Arc::new(Contacts::listening());
        contacts.listens_since(50);
        for (stored, expected) in [(None, None), (Some(20), Some(50)), (Some(90), Some(90))] {
            assert_eq!(contacts.last_seen("a", stored, 1000), expected, "{stored:?}");
        }
        contacts.heard("a", None, 300);
        assert_eq!(contacts.last_seen("a", Some(90), 1000), Some(300), "not stored yet");
        let _poll = contacts.polls("b");
        assert_eq!(contacts.last_seen("b", Some(90), 1000), Some(1000));
    }
}
