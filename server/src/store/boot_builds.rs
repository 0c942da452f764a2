//! The boot files that attested machines may boot, with the TPM register values that they cause.

use serde::Serialize;
use slipway_media::Measurements;

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, database, db, get, json, number, to_json};

/// A build of boot files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Build {
    /// Id of the build's manifest.
    pub id: String,
    /// When the boot files were last built, in milliseconds since 1970.
    pub at: Millis,
    /// First digits of the hash of the bootstrap token in it, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Register values that the unified kernel images of the build cause.
    pub measurements: Vec<Measurements>,
}

/// A program that may run before the boot files, such as a boot loader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Authenticode digest of the program, in hexadecimal.
    pub digest: String,
    /// Name given by the operator.
    pub name: String,
    /// When the operator allowed it, in milliseconds since 1970.
    pub at: Millis,
}

/// Stores a build, replacing an earlier record with the same id.
pub async fn save(connection: &mut Connection, build: &Build) -> Result<(), Error> {
    let sql = "INSERT INTO boot_builds (id, at, measurements_json, token) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (id) DO UPDATE SET at = excluded.at, measurements_json = excluded.measurements_json, \
               token = excluded.token";
    let query = db::query(sql).bind(&build.id).bind(build.at.cast_signed()).bind(to_json(&build.measurements));
    let query = query.bind(&build.token);
    query.execute(connection).await.map(drop).map_err(database("storing the TPM measurements of boot files"))
}

/// Returns all builds, newest first.
pub async fn all(connection: &mut Connection) -> Result<Vec<Build>, Error> {
    let rows = db::query("SELECT * FROM boot_builds ORDER BY at DESC, id").fetch_all(connection).await;
    let build = |row: &Row| {
        Ok(Build {
            id: get(row, "id")?,
            at: number(row, "at")?,
            token: get(row, "token")?,
            measurements: json(row, "measurements_json")?,
        })
    };
    rows.map_err(database("reading the TPM measurements of boot files"))?.iter().map(build).collect()
}

/// Stores a program.
pub async fn save_program(connection: &mut Connection, program: &Program) -> Result<(), Error> {
    let sql = "INSERT INTO boot_programs (digest, name, at) VALUES ($1, $2, $3) \
               ON CONFLICT (digest) DO UPDATE SET name = excluded.name, at = excluded.at";
    let query = db::query(sql).bind(&program.digest).bind(&program.name).bind(program.at.cast_signed());
    query.execute(connection).await.map(drop).map_err(database("storing an allowed program"))
}

/// Returns all programs, in the order in which they were allowed.
pub async fn programs(connection: &mut Connection) -> Result<Vec<Program>, Error> {
    let rows = db::query("SELECT * FROM boot_programs ORDER BY at, digest").fetch_all(connection).await;
    let program =
        |row: &Row| Ok(Program { digest: get(row, "digest")?, name: get(row, "name")?, at: number(row, "at")? });
    rows.map_err(database("reading the allowed programs"))?.iter().map(program).collect()
}

/// Removes the build with this id, or the program with this digest. Returns whether it existed.
pub async fn remove(connection: &mut Connection, reference: &str) -> Result<bool, Error> {
    let mut removed = 0;
    for sql in ["DELETE FROM boot_builds WHERE id = $1", "DELETE FROM boot_programs WHERE digest = $1"] {
        let done = db::query(sql).bind(reference).execute(&mut *connection).await;
        removed += done.map_err(database("removing boot files"))?;
    }
    Ok(removed > 0)
}
