//! What happened at the site, in order.

use std::collections::HashMap;

use slipway_protocol::shared::printable;
use slipway_protocol::{SiteEvent, SiteEventKind};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::rules::trouble::{Known, Often, Refused};
use crate::store::nodes::Node;
use crate::store::runs::Run;
use crate::store::{
    Connection, Row, Transaction, database, db, enum_from_text, get, number, optional_json, optional_number, to_word,
};

/// Longest message in characters. Causes and logs are kept with the run.
const MAX_MESSAGE: usize = 500;
/// Milliseconds for which events are kept.
pub const KEPT: Millis = 30 * 24 * 60 * 60 * 1000;
/// Maximum number of events that are removed at a time, so that no writer waits long.
const BATCH: i64 = 500;
/// Maximum number of events kept of one node, and of machines that are no nodes, so that nobody fills the database.
const MAX_OF_NODE: i64 = 20_000;
const MAX_OF_STRANGERS: i64 = 10_000;
/// How far the numbers are raised when a backup is restored: further than a site gets in the age of a backup.
const LEAP: i64 = 1_000_000;

/// An event to be recorded.
#[derive(Clone, Debug, Default)]
pub struct NewEvent<'a> {
    node: Option<&'a str>,
    name: Option<&'a str>,
    run: Option<&'a str>,
    step: Option<&'a str>,
    operator: Option<String>,
    message: String,
    report: Option<String>,
}

impl<'a> NewEvent<'a> {
    /// An event about the whole site.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// Adds the node that the event is about.
    pub fn of(self, node: &'a Node) -> Self {
        Self { node: Some(&node.id), name: node.name.as_deref(), ..self }
    }

    /// Adds the id of the node that the event is about. Its name is looked up.
    pub fn of_id(self, node: &'a str) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Adds the run that the event is about, and its node. The node's name is looked up.
    pub fn of_run(self, run: &'a Run) -> Self {
        Self { node: Some(&run.node), run: Some(&run.id), ..self }
    }

    /// Adds the id of the run that the event is about.
    pub fn of_run_id(self, run: &'a str) -> Self {
        Self { run: Some(run), ..self }
    }

    /// Adds the name of the step.
    pub fn step(self, name: &'a str) -> Self {
        Self { step: Some(name), ..self }
    }

    /// Adds what was reported, in JSON.
    pub fn report(self, json: String) -> Self {
        Self { report: Some(json), ..self }
    }

    /// Adds the operator for whom a transaction was begun.
    pub fn by(self, transaction: &Transaction) -> Self {
        Self { operator: transaction.operator().map(str::to_owned), ..self }
    }
}

/// Records an event. The write lock keeps the numbers in the order of the commits.
pub async fn record(
    connection: &mut Connection,
    kind: SiteEventKind,
    event: NewEvent<'_>,
    now: Millis,
) -> Result<(), Error> {
    let NewEvent { node, name, run, step, operator, message, report } = event;
    let sql = "INSERT INTO history (number, at, kind, node, name, run, step, operator, message, report_json) \
               SELECT (SELECT COALESCE(MAX(number), 0) + 1 FROM history), $1, $2, $3, \
               COALESCE($4, (SELECT name FROM nodes WHERE id = $3)), $5, $6, $7, $8, $9";
    let done = db::query(sql)
        .bind(now.cast_signed())
        .bind(to_word(&kind))
        .bind(node)
        .bind(name)
        .bind(run)
        .bind(step)
        .bind(operator)
        .bind(printable::short_line(&message, MAX_MESSAGE))
        .bind(report)
        .execute(connection)
        .await;
    done.map(drop).map_err(database("recording an event"))
}

/// Records what the operator did for whom a transaction was begun.
pub async fn did(
    transaction: &mut Transaction,
    kind: SiteEventKind,
    event: NewEvent<'_>,
    now: Millis,
) -> Result<(), Error> {
    let event = event.by(transaction);
    record(transaction, kind, event, now).await
}

/// Like [`record`], unless the node already has such an event with the same message since `since`. For what a machine
/// does again and again.
pub async fn record_once(
    connection: &mut Connection,
    kind: SiteEventKind,
    event: NewEvent<'_>,
    since: Millis,
    now: Millis,
) -> Result<(), Error> {
    let sql = "SELECT number FROM history WHERE node = $1 AND kind = $2 AND message = $3 AND at > $4 LIMIT 1";
    let query = db::query(sql).bind(event.node).bind(to_word(&kind));
    let query = query.bind(printable::short_line(&event.message, MAX_MESSAGE)).bind(since.cast_signed());
    let known = query.fetch_optional(&mut *connection).await.map_err(database("looking for an event"))?;
    match known {
        Some(_) => Ok(()),
        None => record(connection, kind, event, now).await,
    }
}

/// Returns what is counted of one node, or of all if `node` is `None`, after a time: starts of slipway and new keys, if
/// there are several, and reports that were not accepted.
pub async fn of_the_hour(
    connection: &mut Connection,
    node: Option<&str>,
    after: Millis,
) -> Result<HashMap<String, Known>, Error> {
    // The words are those of the index.
    let sql = "SELECT node, kind, COUNT(*) AS times, MIN(at) AS since, MAX(at) AS newest FROM history WHERE at > $1 \
               AND kind IN ('enrolled', 'key-changed', 'report-refused') AND node IS NOT NULL \
               AND (CAST($2 AS TEXT) IS NULL OR node = $2) GROUP BY node, kind \
               HAVING COUNT(*) > 1 OR kind = 'report-refused'";
    let rows = db::query(sql).bind(after.cast_signed()).bind(node).fetch_all(&mut *connection).await;
    let mut found: HashMap<String, Known> = HashMap::new();
    for row in rows.map_err(database("counting events"))? {
        let known = found.entry(get(&row, "node")?).or_default();
        let often = Often { times: number(&row, "times")?, since: number(&row, "since")? };
        match enum_from_text(&row, "kind")? {
            SiteEventKind::KeyChanged => known.keys = often,
            SiteEventKind::ReportRefused => {
                known.refused =
                    Some(Refused { since: often.since, at: number(&row, "newest")?, message: String::new() });
            }
            _ => known.boots = often,
        }
    }
    for (node, known) in &mut found {
        if known.boots.times > 1 {
            let sql = "SELECT COUNT(*) AS runs FROM history WHERE node = $1 AND at > $2 AND kind = 'run-fetched'";
            let row = db::query(sql).bind(node.as_str()).bind(after.cast_signed()).fetch_one(&mut *connection).await;
            known.runs = number(&row.map_err(database("counting events"))?, "runs")?;
        }
        if let Some(refused) = &mut known.refused {
            let sql = "SELECT message FROM history WHERE node = $1 AND kind = 'report-refused' \
                       ORDER BY number DESC LIMIT 1";
            let row = db::query(sql).bind(node.as_str()).fetch_optional(&mut *connection).await;
            let row = row.map_err(database("reading the history"))?;
            refused.message = row.map(|row| get(&row, "message")).transpose()?.unwrap_or_default();
        }
    }
    Ok(found)
}

/// Which events are read. `None` does not restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only events of the node with this id.
    pub node: Option<String>,
    /// Only events of the run with this id.
    pub run: Option<String>,
    /// Only events of these kinds.
    pub kinds: Option<Vec<SiteEventKind>>,
}

/// Where in the history events are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The oldest ones after this number.
    After(u64),
    /// The newest ones before this number.
    Before(u64),
}

/// Returns at most `most` events at a place, oldest first.
pub async fn read(
    connection: &mut Connection,
    filter: &Filter,
    place: Place,
    most: u32,
) -> Result<Vec<SiteEvent>, Error> {
    // A statement for each case, so that the database can use the index that fits.
    let (sql, bound) = match (&filter.node, place) {
        (None, Place::After(bound)) => (
            "SELECT * FROM history WHERE number > $1 AND (CAST($2 AS TEXT) IS NULL OR run = $2) \
             AND (CAST($3 AS TEXT) IS NULL OR $3 LIKE '%,' || kind || ',%') ORDER BY number LIMIT $4",
            bound,
        ),
        (None, Place::Before(bound)) => (
            "SELECT * FROM history WHERE number < $1 AND (CAST($2 AS TEXT) IS NULL OR run = $2) \
             AND (CAST($3 AS TEXT) IS NULL OR $3 LIKE '%,' || kind || ',%') ORDER BY number DESC LIMIT $4",
            bound,
        ),
        (Some(_), Place::After(bound)) => (
            "SELECT * FROM history WHERE number > $1 AND (CAST($2 AS TEXT) IS NULL OR run = $2) \
             AND (CAST($3 AS TEXT) IS NULL OR $3 LIKE '%,' || kind || ',%') AND node = $5 \
             ORDER BY number LIMIT $4",
            bound,
        ),
        (Some(_), Place::Before(bound)) => (
            "SELECT * FROM history WHERE number < $1 AND (CAST($2 AS TEXT) IS NULL OR run = $2) \
             AND (CAST($3 AS TEXT) IS NULL OR $3 LIKE '%,' || kind || ',%') AND node = $5 \
             ORDER BY number DESC LIMIT $4",
            bound,
        ),
    };
    let kinds = filter.kinds.as_ref().map(|kinds| {
        let words = kinds.iter().map(|kind| format!("{},", to_word(kind)));
        format!(",{}", words.collect::<String>())
    });
    let query = db::query(sql)
        .bind(i64::try_from(bound).unwrap_or(i64::MAX))
        .bind(filter.run.as_deref())
        .bind(kinds)
        .bind(i64::from(most));
    let query = match &filter.node {
        Some(node) => query.bind(node.as_str()),
        None => query,
    };
    let rows = query.fetch_all(connection).await.map_err(database("reading the history"))?;
    let mut events = rows.iter().map(from_row).collect::<Result<Vec<_>, _>>()?;
    if matches!(place, Place::Before(_)) {
        events.reverse();
    }
    Ok(events)
}

/// Returns the ids of the nodes of events after a number; `None` for events that are not of a node. Left out are
/// unknown machines that wait.
pub async fn touched(connection: &mut Connection, number: u64) -> Result<Vec<Option<String>>, Error> {
    let sql = "SELECT DISTINCT node FROM history WHERE number > $1 AND (node IS NOT NULL OR kind <> 'held')";
    let rows = db::query(sql).bind(number.cast_signed()).fetch_all(connection).await;
    rows.map_err(database("reading the history"))?.iter().map(|row| get(row, "node")).collect()
}

/// Returns the id of the node that had this name last, or has this id.
pub async fn node_named(connection: &mut Connection, name: &str) -> Result<Option<String>, Error> {
    for sql in [
        "SELECT node FROM history WHERE name = $1 AND node IS NOT NULL ORDER BY number DESC LIMIT 1",
        "SELECT node FROM history WHERE node = $1 ORDER BY number DESC LIMIT 1",
    ] {
        let row = db::query(sql).bind(name).fetch_optional(&mut *connection).await;
        if let Some(row) = row.map_err(database("looking for a node in the history"))? {
            return get(&row, "node").map(Some);
        }
    }
    Ok(None)
}

/// Returns the numbers of the oldest and of the newest event. Both are 0 if there is none.
pub async fn range(connection: &mut Connection) -> Result<(u64, u64), Error> {
    let sql = "SELECT MIN(number) AS oldest, MAX(number) AS newest FROM history";
    let row = db::query(sql).fetch_one(connection).await.map_err(database("reading the history"))?;
    let read = |column| optional_number(&row, column).map(Option::unwrap_or_default);
    Ok((read("oldest")?, read("newest")?))
}

/// Returns whether there are events that are too old, apart from the newest one, which stays so that numbers go on.
pub async fn has_old(connection: &mut Connection, now: Millis) -> Result<bool, Error> {
    let sql = "SELECT number FROM history WHERE at < $1 AND number < (SELECT MAX(number) FROM history) LIMIT 1";
    let row = db::query(sql).bind(now.saturating_sub(KEPT).cast_signed()).fetch_optional(connection).await;
    Ok(row.map_err(database("looking for old events"))?.is_some())
}

/// Removes some of the events that are too old.
pub async fn forget_old(connection: &mut Connection, now: Millis) -> Result<(), Error> {
    let sql = "DELETE FROM history WHERE number IN (SELECT number FROM history WHERE at < $1 \
               AND number < (SELECT MAX(number) FROM history) ORDER BY number LIMIT $2)";
    let query = db::query(sql).bind(now.saturating_sub(KEPT).cast_signed()).bind(BATCH);
    query.execute(connection).await.map(drop).map_err(database("removing old events"))
}

/// Returns the nodes with more events than are kept of one. `None` stands for machines that are no nodes. What
/// operators did is not counted.
pub async fn overfull(connection: &mut Connection) -> Result<Vec<Option<String>>, Error> {
    let sql = "SELECT node FROM history WHERE operator IS NULL GROUP BY node \
               HAVING COUNT(*) > CASE WHEN node IS NULL THEN CAST($1 AS BIGINT) ELSE CAST($2 AS BIGINT) END";
    let rows = db::query(sql).bind(MAX_OF_STRANGERS).bind(MAX_OF_NODE).fetch_all(connection).await;
    rows.map_err(database("counting events"))?.iter().map(|row| get(row, "node")).collect()
}

/// Removes some of the oldest events of a node, apart from what operators did.
pub async fn forget_of(connection: &mut Connection, node: Option<&str>) -> Result<(), Error> {
    let sql = "DELETE FROM history WHERE number IN (SELECT number FROM history WHERE operator IS NULL \
               AND (node = $1 OR (node IS NULL AND CAST($1 AS TEXT) IS NULL)) ORDER BY number LIMIT $2)";
    let query = db::query(sql).bind(node).bind(BATCH);
    query.execute(connection).await.map(drop).map_err(database("removing events of a node"))
}

/// Raises the numbers of later events, so that nobody who knows events of a newer state takes them for those.
pub async fn leap(connection: &mut Connection, message: &str, now: Millis) -> Result<(), Error> {
    record(connection, SiteEventKind::Operator, NewEvent::new(message), now).await?;
    let sql = "UPDATE history SET number = number + $1 WHERE number = (SELECT MAX(number) FROM history)";
    let done = db::query(sql).bind(LEAP).execute(connection).await;
    done.map(drop).map_err(database("raising the numbers of events"))
}

fn from_row(row: &Row) -> Result<SiteEvent, Error> {
    Ok(SiteEvent {
        number: number(row, "number")?,
        at: number(row, "at")?,
        kind: enum_from_text(row, "kind")?,
        node: get(row, "node")?,
        name: get(row, "name")?,
        run: get(row, "run")?,
        step: get(row, "step")?,
        operator: get(row, "operator")?,
        message: get(row, "message")?,
        report: optional_json(row, "report_json")?,
    })
}
