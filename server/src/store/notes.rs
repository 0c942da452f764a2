//! Notes on the steps of runs. They are stored separately from runs, because a run is rewritten at every event.

use crate::base::error::Error;
use crate::store::runs::Run;
use crate::store::{Connection, Row, database, db, get, number};

/// Maximum number of notes kept for a step, and maximum of their total size in bytes. The first note is kept whatever
/// its size. Further notes are only in the event history.
const MAX_NOTES: u64 = 100;
const MAX_NOTE_BYTES: u64 = 64 << 10;

/// Stores a note on a step, unless the step has too many.
pub async fn insert(connection: &mut Connection, run: &str, step: u32, seq: u64, note: &str) -> Result<(), Error> {
    let sql = "SELECT COUNT(*) AS notes, COALESCE(SUM(LENGTH(note)), 0) AS stored FROM notes \
               WHERE run = $1 AND step = $2";
    let row = db::query(sql).bind(run).bind(i64::from(step)).fetch_one(&mut *connection).await;
    let row = row.map_err(database("counting the notes of a step"))?;
    if number(&row, "notes")? >= MAX_NOTES || number(&row, "stored")? >= MAX_NOTE_BYTES {
        return Ok(());
    }
    store(connection, run, step, seq, note).await
}

async fn store(connection: &mut Connection, run: &str, step: u32, seq: u64, note: &str) -> Result<(), Error> {
    let sql = "INSERT INTO notes (run, step, seq, note) VALUES ($1, $2, $3, $4)";
    let query = db::query(sql).bind(run).bind(i64::from(step)).bind(seq.cast_signed()).bind(note);
    query.execute(connection).await.map(drop).map_err(database("storing a note"))
}

/// Stores a note that appears only once in a run, however many other notes the step has. Returns false if the run
/// already has the note.
pub async fn mark(connection: &mut Connection, run: &str, step: u32, seq: u64, note: &str) -> Result<bool, Error> {
    let sql = "SELECT 1 FROM notes WHERE run = $1 AND note = $2";
    let known = db::query(sql).bind(run).bind(note).fetch_optional(&mut *connection).await;
    if known.map_err(database("looking for a note"))?.is_some() {
        return Ok(false);
    }
    store(connection, run, step, seq, note).await.map(|()| true)
}

/// Removes the notes on a step and on later steps.
pub async fn forget_from(connection: &mut Connection, run: &str, step: u32) -> Result<(), Error> {
    let sql = "DELETE FROM notes WHERE run = $1 AND step >= $2";
    let done = db::query(sql).bind(run).bind(i64::from(step)).execute(connection).await;
    done.map(drop).map_err(database("removing notes"))
}

/// Adds the stored notes to the steps of a run.
pub async fn add_to(connection: &mut Connection, run: &mut Run) -> Result<(), Error> {
    let sql = "SELECT run, step, note FROM notes WHERE run = $1 ORDER BY step, seq";
    let rows = db::query(sql).bind(&run.id).fetch_all(connection).await;
    add(&rows.map_err(database("reading the notes of a run"))?, std::slice::from_mut(run))
}

/// Adds the stored notes to the steps of each node's newest run.
pub async fn add_to_newest(connection: &mut Connection, runs: &mut [Run]) -> Result<(), Error> {
    let sql =
        "SELECT notes.run, step, note FROM notes JOIN nodes ON nodes.run = notes.run ORDER BY notes.run, step, seq";
    let rows = db::query(sql).fetch_all(connection).await.map_err(database("reading the notes of all runs"))?;
    runs.sort_by(|a, b| a.id.cmp(&b.id));
    add(&rows, runs)
}

/// Adds notes to runs. Both are sorted by the id of the run.
fn add(rows: &[Row], runs: &mut [Run]) -> Result<(), Error> {
    for row in rows {
        let id: String = get(row, "run")?;
        let run = runs.binary_search_by(|run| run.id.cmp(&id)).ok().and_then(|at| runs.get_mut(at));
        let step = usize::try_from(number(row, "step")?).unwrap_or(usize::MAX);
        if let Some(step) = run.and_then(|run| run.progress.steps.get_mut(step)) {
            step.notes.push(get(row, "note")?);
        }
    }
    Ok(())
}
