//! The rows of all nodes, made once for all pages and streams of this process. While somebody looks, only the nodes
//! that may have changed are read again.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde::Serialize;
use slipway_protocol::NodeState;
use tokio::sync::Mutex;

use crate::api::App;
use crate::base::error::Error;
use crate::base::random;
use crate::base::time::{Millis, now};
use crate::node::status;
use crate::page::rows::Row;
use crate::page::words::Tone;
use crate::store::{history, node_changes, node_contacts, to_json, to_word};

/// Shortest time between two readings of the database; within it, all get the same rows. Short enough that a change is
/// on the screen within a second.
pub const SHORTEST: Duration = Duration::from_millis(250);
/// How many times as long as the last reading took there is no other, so that pages never take more than half of a
/// processor.
const REST: u32 = 1;
/// How many times as long as the last reading took a page shows its rows without another, so that nobody waits for a
/// page of a large site that somebody else looks at too. The stream then goes on from there.
const SHOWN: u32 = 10;
/// Longest time between two readings while somebody looks: some reasons come up merely because time passes.
const LONGEST: Duration = Duration::from_secs(5);
/// Longest time between two readings of all nodes. Between them, nodes with new events and reports are read. This is
/// for what nobody records, such as a machine that has not been there for a while.
const WHOLE: Duration = Duration::from_secs(30);

/// States in the order in which a machine goes through them.
const STATES: [NodeState; 10] = [
    NodeState::Registered,
    NodeState::Held,
    NodeState::Enrolled,
    NodeState::Installing,
    NodeState::Booting,
    NodeState::Installed,
    NodeState::Running,
    NodeState::Draining,
    NodeState::Failed,
    NodeState::Terminating,
];

/// All rows at one time.
#[derive(Debug)]
pub struct Snapshot {
    /// When the database was read, in milliseconds since 1970.
    pub at: Millis,
    /// The name of the snapshot.
    pub name: Name,
    /// The rows, by name.
    pub rows: Vec<Arc<Row>>,
    /// When each node was last heard from, in milliseconds since 1970, in the order of the rows.
    pub heard: Vec<Option<Millis>>,
    /// Sums for the header.
    pub head: Head,
    /// What differs from the snapshot before, for streams that have sent that.
    pub news: String,
    read: Instant,
    /// When all nodes were read.
    whole: Instant,
    took: Duration,
    change: i64,
    acts: u64,
    is_busy: bool,
}

/// Names a snapshot: the process that made it, and a number that grows by 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    process: Arc<str>,
    number: u64,
}

impl Name {
    /// Whether a snapshot of this name is the next one after another.
    pub fn follows(&self, other: &Self) -> bool {
        self.process == other.process && self.number == other.number + 1
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.process, self.number)
    }
}

/// Sums over all nodes in service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Head {
    /// The number of nodes.
    pub all: usize,
    /// The number of nodes that somebody should look at.
    pub flagged: usize,
    /// The number of machines that wait to be let in.
    pub waiting: usize,
    /// The number of nodes in each state that any node is in.
    pub states: Vec<(String, usize)>,
    /// The number of the newest event.
    pub event: u64,
}

/// A message of a stream.
#[derive(Serialize)]
struct News<'a> {
    at: Millis,
    from: String,
    to: String,
    head: &'a Head,
    rows: Vec<&'a Row>,
    /// Rows that may be shown or not for what has changed: those that are new, or have another state or name.
    moved: Vec<&'a str>,
    heard: HashMap<&'a str, Millis>,
    gone: Vec<&'a str>,
    /// Nodes of which there are new events.
    touched: &'a [String],
}

/// Makes rows when somebody asks for them.
#[derive(Debug, Default)]
pub struct Live {
    newest: Mutex<Option<Arc<Snapshot>>>,
    /// The same, for pages, which do not wait while the next one is read.
    shown: RwLock<Option<Arc<Snapshot>>>,
    /// How often operators did something.
    acts: AtomicU64,
}

impl Live {
    /// Returns all rows. They are read again if they may have changed and were not read a moment ago. Whoever asks
    /// meanwhile waits for the same rows.
    pub async fn rows(&self, app: &App) -> Result<Arc<Snapshot>, Error> {
        let mut newest = self.newest.lock().await;
        let (change, event) = (*app.watcher.nodes().borrow(), *app.watcher.events().borrow());
        let acts = self.acts.load(Ordering::Relaxed);
        if let Some(known) = newest.as_ref().filter(|known| known.acts == acts) {
            let age = known.read.elapsed();
            let may_differ = known.is_busy || known.change != change || known.head.event != event || age > LONGEST;
            if age < SHORTEST.max(known.took * REST) || !may_differ {
                return Ok(Arc::clone(known));
            }
        }
        let snapshot = Arc::new(read(app, newest.as_deref(), (change, event, acts)).await?);
        *newest = Some(Arc::clone(&snapshot));
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// Returns rows for a page: those of a moment ago if all are many. After an operator did something, they are read.
    pub async fn rows_of_page(&self, app: &App) -> Result<Arc<Snapshot>, Error> {
        let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner).clone();
        let is_new = |known: &Snapshot| known.read.elapsed() < SHORTEST.max(known.took * SHOWN).min(LONGEST);
        match shown.filter(|known| is_new(known) && known.acts == self.acts.load(Ordering::Relaxed)) {
            Some(known) => Ok(known),
            None => self.rows(app).await,
        }
    }

    /// Makes the next page read the database, because an operator did something and looks for its effect.
    pub fn has_changed(&self) {
        self.acts.fetch_add(1, Ordering::Relaxed);
    }
}

/// What may differ from a snapshot.
struct Changed {
    /// Ids of nodes. Some of them may be gone.
    nodes: HashSet<String>,
    /// When each node was heard from, by its id.
    heard: HashMap<String, Millis>,
    /// Nodes of which there are new events.
    touched: Vec<String>,
    /// Whether anything may differ, as after a change of the site's limits.
    is_whole: bool,
}

/// Finds out what may differ from a snapshot, without reading the nodes.
async fn changed(app: &App, before: &Snapshot) -> Result<Changed, Error> {
    let mut connection = app.store.read().await?;
    let events = history::touched(&mut connection, before.head.event).await?;
    let changes = node_changes::since(&mut connection, before.change).await?.nodes;
    let heard = node_contacts::all(&mut connection).await?;
    let is_whole = events.contains(&None) || changes.is_none() || before.whole.elapsed() > WHOLE;
    let touched: Vec<String> = events.into_iter().flatten().collect();
    // A sign of life may end the reason for which a row is flagged. A claim may be forgotten without a word.
    let is_restless = |(row, at): &(&Arc<Row>, &Option<Millis>)| {
        let has_reason = !row.reason.is_empty() && heard.get(&row.id) != at.as_ref();
        row.waits || has_reason || is_busy(row) || is_in(row, NodeState::Held)
    };
    let pairs = before.rows.iter().zip(&before.heard);
    let restless = pairs.filter(is_restless).map(|(row, _)| row.id.clone());
    let nodes = restless.chain(touched.iter().cloned()).chain(changes.unwrap_or_default()).collect();
    Ok(Changed { nodes, heard, touched, is_whole })
}

/// Whether its machine works on a run.
fn is_busy(row: &Row) -> bool {
    is_in(row, NodeState::Installing) || is_in(row, NodeState::Terminating)
}

fn is_in(row: &Row, state: NodeState) -> bool {
    row.state == to_word(&state)
}

/// Reads the nodes that may differ from the snapshot before, and makes their rows.
async fn read(app: &App, before: Option<&Snapshot>, (change, event, acts): (i64, u64, u64)) -> Result<Snapshot, Error> {
    let (read, at) = (Instant::now(), now());
    let changed = match before {
        Some(before) => Some(changed(app, before).await?),
        None => None,
    };
    let known: HashMap<&str, &Arc<Row>> =
        before.map(|before| before.rows.iter().map(|row| (row.id.as_str(), row)).collect()).unwrap_or_default();
    let part = changed.as_ref().zip(before).filter(|(changed, before)| !changed.is_whole && before.acts == acts);
    let nodes = match part {
        Some((changed, _)) => status::some_at(&app.store, changed.nodes.clone(), at).await?,
        None => status::all_at(&app.store, at).await?,
    };
    let row = |node: &slipway_protocol::NodeStatus| {
        let row = Row::of(node);
        match known.get(row.id.as_str()) {
            Some(same) if ***same == row => (Arc::clone(same), node.last_seen),
            _ => (Arc::new(row), node.last_seen),
        }
    };
    let mut rows: Vec<(Arc<Row>, Option<Millis>)> = nodes.iter().map(row).collect();
    if let Some((changed, before)) = part {
        let fresh: HashSet<&str> = nodes.iter().map(|node| node.id.as_str()).collect();
        let is_same = |row: &Row| !changed.nodes.contains(&row.id) && !fresh.contains(row.id.as_str());
        let pairs = before.rows.iter().zip(&before.heard).filter(|(row, _)| is_same(row));
        rows.extend(pairs.map(|(row, heard)| (Arc::clone(row), changed.heard.get(&row.id).copied().or(*heard))));
    }
    let is_busy = rows.iter().any(|(row, _)| is_busy(row));
    rows.sort_by(|(one, _), (other, _)| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
    let (rows, heard): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    let head = head(&rows, event);
    let name = match before {
        Some(before) => Name { process: Arc::clone(&before.name.process), number: before.name.number + 1 },
        None => Name { process: random::id().into(), number: 0 },
    };
    let mut snapshot = Snapshot {
        at,
        name,
        rows,
        heard,
        head,
        news: String::new(),
        read,
        whole: part.map_or(read, |(_, before)| before.whole),
        took: Duration::ZERO,
        change,
        acts,
        is_busy,
    };
    let news = before.zip(changed.as_ref()).map(|(before, changed)| snapshot.news_since(before, &changed.touched));
    snapshot.news = news.unwrap_or_default();
    snapshot.took = read.elapsed();
    Ok(snapshot)
}

fn head(rows: &[Arc<Row>], event: u64) -> Head {
    let here: Vec<&Arc<Row>> = rows.iter().filter(|row| row.is_here()).collect();
    let in_state = |state: &NodeState| {
        let word = to_word(state);
        let count = here.iter().filter(|row| row.state == word).count();
        (count > 0).then_some((word, count))
    };
    Head {
        all: here.len(),
        flagged: here.iter().filter(|row| row.is_flagged()).count(),
        waiting: here.iter().filter(|row| row.waits).count(),
        states: STATES.iter().filter_map(in_state).collect(),
        event,
    }
}

/// What decides whether and where a view shows a row.
fn place(row: &Row) -> (&str, &str, Tone) {
    (&row.state, &row.name, row.tone)
}

impl Snapshot {
    /// Writes what differs from an earlier snapshot. Of the nodes in `touched` there are new events.
    fn news_since(&self, before: &Self, touched: &[String]) -> String {
        let pairs = before.rows.iter().zip(&before.heard);
        let known: HashMap<&str, (&Arc<Row>, Option<Millis>)> =
            pairs.map(|(row, heard)| (row.id.as_str(), (row, *heard))).collect();
        let is_new = |row: &&Arc<Row>| !known.get(row.id.as_str()).is_some_and(|(known, _)| Arc::ptr_eq(known, row));
        let later = self.rows.iter().zip(&self.heard).filter_map(|(row, heard)| {
            let before = known.get(row.id.as_str()).and_then(|(_, before)| *before);
            heard.filter(|heard| before != Some(*heard)).map(|heard| (row.id.as_str(), heard))
        });
        let is_moved = |row: &&&Row| {
            let before = known.get(row.id.as_str()).map(|(before, _)| before);
            before.is_none_or(|before| place(before) != place(row))
        };
        let changed: Vec<&Row> = self.rows.iter().filter(is_new).map(|row| &**row).collect();
        let here: HashSet<&str> = self.rows.iter().map(|row| row.id.as_str()).collect();
        to_json(&News {
            at: self.at,
            from: before.name.to_string(),
            to: self.name.to_string(),
            head: &self.head,
            moved: changed.iter().filter(is_moved).map(|row| row.id.as_str()).collect(),
            rows: changed,
            heard: later.collect(),
            gone: known.keys().copied().filter(|id| !here.contains(id)).collect(),
            touched,
        })
    }

    /// What a stream sends first, and whenever it cannot say what is new: how things are. Who shows anything else reads
    /// the page again.
    pub fn hello(&self) -> String {
        let (name, head) = (self.name.to_string(), &self.head);
        let (rows, moved, heard, gone) = (Vec::new(), Vec::new(), HashMap::new(), Vec::new());
        to_json(&News { at: now(), from: name.clone(), to: name, head, rows, moved, heard, gone, touched: &[] })
    }
}
