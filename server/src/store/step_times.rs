//! How long steps took, so that a slow one is noticed.

use std::collections::HashMap;

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, database, db, get, number};

/// Number of times that are kept of the steps of one action with one image.
const KEPT: i64 = 50;

/// How long a step took that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTime<'a> {
    /// Digest of the image that its run installs; empty if it installs none.
    pub image: &'a str,
    /// Name of the action.
    pub action: &'a str,
    /// When the step ended, in milliseconds since 1970.
    pub at: Millis,
    /// Id of the run.
    pub run: &'a str,
    /// How long it took, in milliseconds.
    pub millis: Millis,
    /// Bytes that it moved; 0 if it moves none.
    pub bytes: u64,
}

/// Stores how long a step took, and removes the oldest ones of its kind beyond the limit.
pub async fn insert(connection: &mut Connection, time: &StepTime<'_>) -> Result<(), Error> {
    let sql = "INSERT INTO step_times (image, action, at, run, millis, bytes) VALUES ($1, $2, $3, $4, $5, $6) \
               ON CONFLICT (image, action, at, run) DO NOTHING";
    let query = db::query(sql).bind(time.image).bind(time.action).bind(time.at.cast_signed()).bind(time.run);
    let query = query.bind(time.millis.cast_signed()).bind(time.bytes.cast_signed());
    query.execute(&mut *connection).await.map_err(database("storing how long a step took"))?;
    let sql = "DELETE FROM step_times WHERE image = $1 AND action = $2 AND at < (SELECT at FROM step_times \
               WHERE image = $1 AND action = $2 ORDER BY at DESC LIMIT 1 OFFSET $3)";
    let done = db::query(sql).bind(time.image).bind(time.action).bind(KEPT - 1).execute(connection).await;
    done.map(drop).map_err(database("removing old times of steps"))
}

/// Returns how long the steps of an action took with an image, in milliseconds, and the bytes that they moved.
pub async fn of(connection: &mut Connection, image: &str, action: &str) -> Result<Vec<(Millis, u64)>, Error> {
    let sql = "SELECT millis, bytes FROM step_times WHERE image = $1 AND action = $2";
    let rows = db::query(sql).bind(image).bind(action).fetch_all(connection).await;
    let time = |row: &Row| Ok((number(row, "millis")?, number(row, "bytes")?));
    rows.map_err(database("reading how long steps took"))?.iter().map(time).collect()
}

/// Returns how long each action took with an image, in milliseconds, and the bytes that it moved.
pub async fn of_image(connection: &mut Connection, image: &str) -> Result<HashMap<String, Vec<(Millis, u64)>>, Error> {
    let sql = "SELECT action, millis, bytes FROM step_times WHERE image = $1";
    let rows = db::query(sql).bind(image).fetch_all(connection).await;
    let mut found: HashMap<String, Vec<(Millis, u64)>> = HashMap::new();
    for row in rows.map_err(database("reading how long steps took"))? {
        let times = found.entry(get(&row, "action")?).or_default();
        times.push((number(&row, "millis")?, number(&row, "bytes")?));
    }
    Ok(found)
}
