//! The open connections of one port, and which of them are closed to make room for others.
//!
//! A stranger is a client without a node's certificate. If there is no room for a new connection, the oldest connection
//! of a stranger that has no request in progress is closed. So a client that only holds connections open cannot keep
//! others out, even others with the same address.

use std::collections::{BTreeSet, HashMap};
use std::mem::take;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

use crate::base::limits::Connections;
use crate::base::rate::Origin;

/// Number of failed handshakes whose reason is logged between two calls of [`Table::turned_away`].
const TOLD_HANDSHAKES: u64 = 10;

/// All connections of one port.
#[derive(Debug)]
pub struct Table {
    limits: Connections,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: HashMap<u64, Open>,
    groups: HashMap<Group, Members>,
    strangers: Members,
    turned_away: TurnedAway,
}

#[derive(Debug)]
struct Open {
    group: Group,
    task: Option<AbortHandle>,
}

/// Connections that share a limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Group {
    Strangers(Origin),
    Node(String),
}

#[derive(Debug, Default)]
struct Members {
    count: usize,
    /// Connections without a request in progress. The smallest number is the oldest connection.
    idle: BTreeSet<u64>,
}

/// Counts of refused and closed clients since the last call of [`Table::turned_away`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnedAway {
    /// New connections that were closed immediately.
    pub refused: u64,
    /// Idle connections that were closed to make room.
    pub replaced: u64,
    /// Requests refused because too many strangers had one in progress.
    pub requests: u64,
    /// TLS handshakes that failed.
    pub handshakes: u64,
}

/// A connection's place in the table. Freed on drop.
#[derive(Debug)]
pub struct Slot {
    table: Arc<Table>,
    id: u64,
}

/// A request in progress. Its connection is not closed to make room for others.
#[derive(Debug)]
pub struct Busy(Arc<Slot>);

impl Table {
    /// Makes an empty table.
    pub fn new(limits: Connections) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    /// Takes a place for a new connection, if necessary from an idle one. `None` if there is no room.
    pub fn admit(self: &Arc<Self>, from: IpAddr) -> Option<Slot> {
        let group = Group::Strangers(Origin::of(from));
        let mut state = self.lock();
        let mut full = state.groups.get(&group).is_some_and(|members| members.count >= self.limits.of_address);
        // An address that is full replaces a connection of its own, so it cannot close those of others.
        let oldest = if full {
            state.groups.get(&group).and_then(|members| members.idle.first().copied())
        } else {
            full = state.strangers.count >= self.limits.strangers || state.open.len() >= self.limits.total;
            state.strangers.idle.first().copied()
        };
        match oldest {
            _ if !full => {}
            Some(oldest) => {
                state.forget(oldest).inspect(AbortHandle::abort);
                state.turned_away.replaced += 1;
            }
            None => {
                state.turned_away.refused += 1;
                return None;
            }
        }
        let id = state.next;
        state.next += 1;
        for members in state.members(&group) {
            members.count += 1;
            members.idle.insert(id);
        }
        state.open.insert(id, Open { group, task: None });
        Some(Slot { table: Arc::clone(self), id })
    }

    /// Sets the task of a connection. It is aborted if the connection must make room.
    pub fn set_task(&self, id: u64, task: AbortHandle) {
        if let Some(open) = self.lock().open.get_mut(&id) {
            open.task = Some(task);
        }
    }

    /// Counts a new connection that was refused for another reason.
    pub fn refuse(&self) {
        self.lock().turned_away.refused += 1;
    }

    /// Counts a failed TLS handshake. Returns whether to log its reason, so that failures do not fill the log.
    pub fn failed_handshake(&self) -> bool {
        let turned_away = &mut self.lock().turned_away;
        turned_away.handshakes += 1;
        turned_away.handshakes <= TOLD_HANDSHAKES
    }

    /// Returns the counts since the last call, and starts them again at zero.
    pub fn turned_away(&self) -> TurnedAway {
        take(&mut self.lock().turned_away)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the members that count a connection of this group: the group's, and for a stranger all strangers'.
    fn members(&mut self, group: &Group) -> impl Iterator<Item = &mut Members> {
        let strangers = matches!(group, Group::Strangers(_)).then_some(&mut self.strangers);
        [self.groups.entry(group.clone()).or_default()].into_iter().chain(strangers)
    }

    fn leave(&mut self, id: u64, group: &Group) {
        for members in self.members(group) {
            members.count -= 1;
            members.idle.remove(&id);
        }
        if self.groups.get(group).is_some_and(|members| members.count == 0) {
            self.groups.remove(group);
        }
    }

    /// Removes a connection from the table, unless it was already removed. Returns the connection's task.
    fn forget(&mut self, id: u64) -> Option<AbortHandle> {
        let Open { group, task } = self.open.remove(&id)?;
        self.leave(id, &group);
        task
    }
}

impl Slot {
    /// Number of the connection in the table.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Counts the connection as the node's instead of a stranger's. Returns false if the node has too many connections.
    pub fn belongs_to(&self, node: &str) -> bool {
        let group = Group::Node(node.to_owned());
        let mut state = self.table.lock();
        if state.groups.get(&group).is_some_and(|members| members.count >= self.table.limits.of_node) {
            state.turned_away.refused += 1;
            return false;
        }
        let Some(open) = state.open.get_mut(&self.id) else { return false };
        let before = std::mem::replace(&mut open.group, group.clone());
        state.leave(self.id, &before);
        for members in state.members(&group) {
            members.count += 1;
        }
        true
    }

    /// Begins a request. `None` if too many strangers have one in progress; the remaining places are for new
    /// connections.
    pub fn begin(self: &Arc<Self>) -> Option<Busy> {
        let limits = self.table.limits;
        let mut state = self.table.lock();
        let group = state.open.get(&self.id)?.group.clone();
        if let Group::Strangers(_) = group {
            let busy = |members: &Members| members.count - members.idle.len();
            let of_address = state.groups.get(&group).map_or(0, busy);
            if busy(&state.strangers) >= most_busy(limits.strangers) || of_address >= most_busy(limits.of_address) {
                state.turned_away.requests += 1;
                return None;
            }
        }
        for members in state.members(&group) {
            members.idle.remove(&self.id);
        }
        Some(Busy(Arc::clone(self)))
    }
}

/// How many of this number of strangers may have a request in progress. The others can be closed for new connections.
fn most_busy(strangers: usize) -> usize {
    strangers - (strangers / 4).max(1)
}

impl Drop for Busy {
    fn drop(&mut self) {
        let Self(slot) = self;
        let mut state = slot.table.lock();
        // Only strangers make room.
        let group = state.open.get(&slot.id).map(|open| open.group.clone());
        if let Some(group @ Group::Strangers(_)) = group {
            for members in state.members(&group) {
                members.idle.insert(slot.id);
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.table.lock().forget(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Arc<Table> {
        Table::new(Connections { total: 8, strangers: 6, of_address: 4, of_node: 2 })
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn admit(table: &Arc<Table>, last: u8) -> Arc<Slot> {
        Arc::new(table.admit(address(last)).expect("a place"))
    }

    fn is_open(slot: &Slot) -> bool {
        slot.table.lock().open.contains_key(&slot.id)
    }

    #[test]
    fn the_oldest_idle_stranger_of_an_address_makes_room_for_another_of_it() {
        let table = table();
        let other = admit(&table, 2);
        let slots: Vec<_> = (0..5).map(|_| admit(&table, 1)).collect();
        let open: Vec<_> = slots.iter().map(|slot| is_open(slot)).collect();
        assert_eq!(open, [false, true, true, true, true]);
        assert!(is_open(&other), "it is older, but has another address");
        assert_eq!(table.turned_away(), TurnedAway { replaced: 1, ..TurnedAway::default() });
        assert_eq!(table.turned_away(), TurnedAway::default(), "told once");
    }

    #[test]
    fn a_request_in_progress_is_not_closed_and_leaves_room_for_others() {
        let table = table();
        let slots: Vec<_> = (0..4).map(|_| admit(&table, 1)).collect();
        let busy: Vec<_> = slots.iter().map(Slot::begin).collect();
        assert_eq!(busy.iter().filter(|busy| busy.is_some()).count(), 3);
        let new = admit(&table, 1);
        assert!(slots[..3].iter().all(|slot| is_open(slot)) && !is_open(&slots[3]));
        assert!(new.begin().is_none());
        drop(busy);
        assert!(new.begin().is_some(), "the others are done");
        assert_eq!(table.turned_away(), TurnedAway { replaced: 1, requests: 2, ..TurnedAway::default() });
        admit(&table, 1);
        assert!(!is_open(&slots[0]), "idle again");
    }

    #[test]
    fn strangers_leave_room_for_nodes_and_nodes_are_never_closed() {
        let table = table();
        let nodes: Vec<_> = (1..=3).map(|node| (admit(&table, node), format!("n{}", node / 2))).collect();
        assert!(nodes.iter().all(|(slot, node)| slot.belongs_to(node)));
        let third = admit(&table, 9);
        assert!(!third.belongs_to("n1"), "a node has its limit");
        drop(third);
        let strangers: Vec<_> = (0..9).map(|last| admit(&table, 20 + last)).collect();
        let open = strangers.iter().filter(|slot| is_open(slot)).count();
        assert_eq!(open, 5, "8 places less 3 nodes");
        assert!(nodes.iter().all(|(slot, _)| is_open(slot)));
        drop(nodes);
        let more: Vec<_> = (0..3).map(|last| admit(&table, 30 + last)).collect();
        assert_eq!(strangers.iter().chain(&more).filter(|slot| is_open(slot)).count(), 6);
    }

    #[test]
    fn nothing_is_left_of_closed_connections() {
        let table = table();
        let slot = admit(&table, 1);
        let busy = slot.begin();
        drop(slot);
        assert_eq!(table.lock().open.len(), 1, "a body is still being sent");
        drop(busy);
        let state = table.lock();
        assert_eq!((state.open.len(), state.groups.len(), state.strangers.count), (0, 0, 0));
        assert!(state.strangers.idle.is_empty());
    }
}
