//! External steps, reported from outside of a run's workflow. They are in the table `loose_steps`, their old name,
//! because an applied migration must not change.

use slipway_protocol::ExternalStep;

use crate::base::error::Error;
use crate::store::{Connection, Row, database, db, get, json, number, to_json};

/// Stores the names of the external steps that a new run expects.
pub async fn expect(connection: &mut Connection, run: &str, names: &[String]) -> Result<(), Error> {
    for name in names {
        let sql = "INSERT INTO known_steps (run, name) VALUES ($1, $2) ON CONFLICT (run, name) DO NOTHING";
        let done = db::query(sql).bind(run).bind(name).execute(&mut *connection).await;
        done.map_err(database("storing the name of a step"))?;
    }
    Ok(())
}

/// Returns the names of the external steps that a run expects. If there are none, any name is expected.
pub async fn expected(connection: &mut Connection, run: &str) -> Result<Vec<String>, Error> {
    let query = db::query("SELECT name FROM known_steps WHERE run = $1 ORDER BY name").bind(run);
    let rows = query.fetch_all(connection).await.map_err(database("reading the names of steps"))?;
    rows.iter().map(|row| get(row, "name")).collect()
}

/// Returns the number of external steps of a run.
pub async fn count(connection: &mut Connection, run: &str) -> Result<u64, Error> {
    let row = db::query("SELECT COUNT(*) AS steps FROM loose_steps WHERE run = $1").bind(run).fetch_one(connection);
    number(&row.await.map_err(database("counting external steps"))?, "steps")
}

/// Stores a step, replacing one with the same name.
pub async fn save(connection: &mut Connection, run: &str, step: &ExternalStep) -> Result<(), Error> {
    let sql = "INSERT INTO loose_steps (run, name, priority, first_at, step_json, logs) VALUES ($1, $2, $3, $4, $5, \
               $6) ON CONFLICT (run, name) DO UPDATE SET priority = excluded.priority, step_json = excluded.step_json, \
               logs = excluded.logs";
    let without_logs = ExternalStep { logs: String::new(), ..step.clone() };
    let query = db::query(sql).bind(run).bind(&step.name).bind(i64::from(step.priority));
    let query = query.bind(step.first_at.cast_signed()).bind(to_json(&without_logs)).bind(&step.logs);
    query.execute(connection).await.map(drop).map_err(database("storing an external step"))
}

/// Returns the external step of a run with this name.
pub async fn get_by_name(connection: &mut Connection, run: &str, name: &str) -> Result<Option<ExternalStep>, Error> {
    let query = db::query("SELECT * FROM loose_steps WHERE run = $1 AND name = $2").bind(run).bind(name);
    let row = query.fetch_optional(connection).await.map_err(database("reading an external step"))?;
    row.as_ref().map(with_logs).transpose()
}

/// Returns a run's external steps with their logs, in display order.
pub async fn of_run(connection: &mut Connection, run: &str) -> Result<Vec<ExternalStep>, Error> {
    let sql = "SELECT * FROM loose_steps WHERE run = $1 ORDER BY priority, first_at, name";
    let rows = db::query(sql).bind(run).fetch_all(connection).await;
    rows.map_err(database("reading external steps"))?.iter().map(with_logs).collect()
}

/// Returns the external steps of each node's newest run, in display order, with the id of the run and without logs.
pub async fn newest(connection: &mut Connection) -> Result<Vec<(String, ExternalStep)>, Error> {
    let sql = "SELECT loose_steps.run AS run, step_json FROM loose_steps JOIN nodes ON nodes.run = loose_steps.run \
               ORDER BY loose_steps.priority, loose_steps.first_at, loose_steps.name";
    let rows = db::query(sql).fetch_all(connection).await.map_err(database("reading external steps"))?;
    rows.iter().map(|row| Ok((get(row, "run")?, json(row, "step_json")?))).collect()
}

/// Like [`newest`], for these nodes.
pub async fn newest_of_nodes(
    connection: &mut Connection,
    nodes: &[String],
) -> Result<Vec<(String, ExternalStep)>, Error> {
    let sql = "SELECT loose_steps.run AS run, step_json FROM loose_steps JOIN nodes ON nodes.run = loose_steps.run \
               WHERE nodes.id IN ({ids})";
    let mut steps = Vec::new();
    for query in db::by_ids(sql, nodes) {
        let rows = query.fetch_all(&mut *connection).await.map_err(database("reading external steps"))?;
        for row in &rows {
            steps.push((get(row, "run")?, json(row, "step_json")?));
        }
    }
    Ok(steps)
}

fn with_logs(row: &Row) -> Result<ExternalStep, Error> {
    Ok(ExternalStep { logs: get(row, "logs")?, ..json(row, "step_json")? })
}
