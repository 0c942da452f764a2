//! How long steps took, so that a slow one is noticed.

use slipway_protocol::{Digest, StepStatus};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, database, db, number};

/// Number of times that are kept of each kind of step.
const KEPT: i64 = 50;
/// Number of times that are kept of all steps with one action and image.
const KEPT_OF_ACTION: i64 = 1000;

/// Steps that are compared with each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Digest of the image that their runs install; empty if they install none.
    pub image: String,
    /// Name of the action.
    pub action: String,
    /// Name of the step, because two steps of a run may have the same action, such as the writes of two disks.
    pub step: String,
}

impl Kind {
    /// The kind of a step of a run that installs this image.
    pub fn of(image: Option<&Digest>, step: &StepStatus) -> Self {
        let image = image.map(ToString::to_string).unwrap_or_default();
        Self { image, action: step.action.clone(), step: step.name.clone() }
    }
}

/// How long a step took that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTime<'a> {
    /// What it is compared with.
    pub kind: Kind,
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
    let Kind { image, action, step } = &time.kind;
    let sql = "INSERT INTO step_times (image, action, step, at, run, millis, bytes) \
               VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (image, action, at, run) DO NOTHING";
    let query = db::query(sql).bind(image).bind(action).bind(step).bind(time.at.cast_signed()).bind(time.run);
    let query = query.bind(time.millis.cast_signed()).bind(time.bytes.cast_signed());
    query.execute(&mut *connection).await.map_err(database("storing how long a step took"))?;
    let sql = "DELETE FROM step_times WHERE image = $1 AND action = $2 AND step = $3 AND at < (\
               SELECT at FROM step_times WHERE image = $1 AND action = $2 AND step = $3 \
               ORDER BY at DESC LIMIT 1 OFFSET $4)";
    let query = db::query(sql).bind(image).bind(action).bind(step).bind(KEPT - 1);
    query.execute(&mut *connection).await.map_err(database("removing old times of steps"))?;
    // Operators may give each run other names.
    let sql = "DELETE FROM step_times WHERE image = $1 AND action = $2 AND at < (\
               SELECT at FROM step_times WHERE image = $1 AND action = $2 ORDER BY at DESC LIMIT 1 OFFSET $3)";
    let query = db::query(sql).bind(image).bind(action).bind(KEPT_OF_ACTION - 1);
    query.execute(connection).await.map(drop).map_err(database("removing old times of steps"))
}

/// Returns how long steps of a kind took, in milliseconds, and the bytes that they moved.
pub async fn of(connection: &mut Connection, kind: &Kind) -> Result<Vec<(Millis, u64)>, Error> {
    let sql = "SELECT millis, bytes FROM step_times WHERE image = $1 AND action = $2 AND step = $3";
    let query = db::query(sql).bind(&kind.image).bind(&kind.action).bind(&kind.step);
    let time = |row: &Row| Ok((number(row, "millis")?, number(row, "bytes")?));
    let rows = query.fetch_all(connection).await.map_err(database("reading how long steps took"))?;
    rows.iter().map(time).collect()
}
