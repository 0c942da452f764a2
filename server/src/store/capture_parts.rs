//! Parts of disk images that runs are uploading to a bucket. Any server of the site can store the next part.

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, database, db, get, number};

/// A part of an image that is being captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Offset in the image behind the part, in bytes.
    pub until: u64,
    /// Name of the object with the part, within those of its run. Empty for the first row, which stands for the begin
    /// of the upload and has no bytes.
    pub object: String,
}

/// Begins an image: forgets the parts that were stored before, and returns them.
pub async fn begin(connection: &mut Connection, run: &str, name: &str, now: Millis) -> Result<Vec<Part>, Error> {
    let before = all(connection, run, name).await?;
    forget(connection, run, name).await?;
    add(connection, run, name, &Part { until: 0, object: String::new() }, now).await?;
    Ok(before)
}

/// Stores the next part.
pub async fn add(connection: &mut Connection, run: &str, name: &str, part: &Part, now: Millis) -> Result<(), Error> {
    let sql = "INSERT INTO capture_parts (run, name, until, object, stored_at) VALUES ($1, $2, $3, $4, $5)";
    let query = db::query(sql).bind(run).bind(name).bind(part.until.cast_signed());
    let done = query.bind(&part.object).bind(now.cast_signed()).execute(connection).await;
    done.map(drop).map_err(database("storing a part of an image"))
}

/// Returns the number of bytes that are stored of an image. `None` if it was not begun.
pub async fn stored(connection: &mut Connection, run: &str, name: &str) -> Result<Option<u64>, Error> {
    let sql = "SELECT until FROM capture_parts WHERE run = $1 AND name = $2 ORDER BY until DESC LIMIT 1";
    let row = db::query(sql).bind(run).bind(name).fetch_optional(connection).await;
    row.map_err(database("reading the parts of an image"))?.map(|row| number(&row, "until")).transpose()
}

/// Returns the parts of an image in their order.
pub async fn all(connection: &mut Connection, run: &str, name: &str) -> Result<Vec<Part>, Error> {
    let sql = "SELECT until, object FROM capture_parts WHERE run = $1 AND name = $2 ORDER BY until";
    let rows = db::query(sql).bind(run).bind(name).fetch_all(connection).await;
    rows.map_err(database("reading the parts of an image"))?.iter().map(from_row).collect()
}

/// Returns the ids of the runs that have parts, or have begun an image.
pub async fn runs(connection: &mut Connection) -> Result<Vec<String>, Error> {
    let rows = db::query("SELECT DISTINCT run FROM capture_parts").fetch_all(connection).await;
    rows.map_err(database("reading the parts of images"))?.iter().map(|row| get(row, "run")).collect()
}

/// Forgets the parts of an image, and that it was begun.
pub async fn forget(connection: &mut Connection, run: &str, name: &str) -> Result<(), Error> {
    let deleted = db::query("DELETE FROM capture_parts WHERE run = $1 AND name = $2").bind(run).bind(name);
    deleted.execute(connection).await.map(drop).map_err(database("forgetting the parts of an image"))
}

/// Forgets all parts of a run.
pub async fn forget_run(connection: &mut Connection, run: &str) -> Result<(), Error> {
    let deleted = db::query("DELETE FROM capture_parts WHERE run = $1").bind(run).execute(connection).await;
    deleted.map(drop).map_err(database("forgetting parts of images"))
}

fn from_row(row: &Row) -> Result<Part, Error> {
    Ok(Part { until: number(row, "until")?, object: get(row, "object")? })
}
