//! The history of a run's steps.

use slipway_protocol::Event;

use crate::base::error::Error;
use crate::store::{Connection, database, db, json};

/// Stores an event, serialised in `json`.
pub async fn insert(connection: &mut Connection, run: &str, seq: u64, json: &str) -> Result<(), Error> {
    let sql = "INSERT INTO events (run, seq, event_json) VALUES ($1, $2, $3)";
    let done = db::query(sql).bind(run).bind(seq.cast_signed()).bind(json).execute(connection).await;
    done.map(drop).map_err(database("storing an event"))
}

/// Returns the events of a run in order.
pub async fn of_run(connection: &mut Connection, run: &str) -> Result<Vec<Event>, Error> {
    let sql = "SELECT event_json FROM events WHERE run = $1 ORDER BY seq";
    let rows = db::query(sql).bind(run).fetch_all(connection).await.map_err(database("reading a run's events"))?;
    rows.iter().map(|row| json(row, "event_json")).collect()
}
