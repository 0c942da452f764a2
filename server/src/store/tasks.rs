//! What agents are to do, and did.

use std::collections::HashMap;

use slipway_protocol::TaskStatus;

use crate::base::error::Error;
use crate::store::{Connection, Row, database, db, get, json, node_changes, to_json, to_word};

/// The most tasks of a node that are kept.
const KEPT: i64 = 20;

/// Returns the newest task of a node, without its output.
pub async fn newest_of(connection: &mut Connection, node: &str) -> Result<Option<TaskStatus>, Error> {
    let sql = "SELECT node, task_json FROM tasks WHERE node = $1 ORDER BY number DESC LIMIT 1";
    let row = db::query(sql).bind(node).fetch_optional(connection).await.map_err(database("reading a task"))?;
    row.map(|row| json(&row, "task_json")).transpose()
}

/// Returns the task of a node that is not over, without its output. There is one at most.
pub async fn open_of(connection: &mut Connection, node: &str) -> Result<Option<TaskStatus>, Error> {
    Ok(newest_of(connection, node).await?.filter(|task| task.state.is_open()))
}

/// Returns the newest task of each of these nodes, or of all, by the ids of the nodes, without output.
pub async fn newest_of_nodes(
    connection: &mut Connection,
    ids: Option<&[String]>,
) -> Result<HashMap<String, TaskStatus>, Error> {
    macro_rules! select {
        ($rest:literal) => {
            concat!(
                "SELECT node, task_json FROM tasks WHERE number = \
                 (SELECT MAX(number) FROM tasks AS others WHERE others.node = tasks.node)",
                $rest
            )
        };
    }
    let queries = match ids {
        Some(ids) => db::by_ids(select!(" AND node IN ({ids})"), ids),
        None => vec![db::query(select!(""))],
    };
    let mut found = HashMap::new();
    for query in queries {
        let rows = query.fetch_all(&mut *connection).await.map_err(database("reading the tasks"))?;
        for row in &rows {
            found.insert(get(row, "node")?, json(row, "task_json")?);
        }
    }
    Ok(found)
}

/// Returns the tasks of a node that are kept, the newest first, with their output.
pub async fn of_node(connection: &mut Connection, node: &str) -> Result<Vec<TaskStatus>, Error> {
    let sql = "SELECT task_json, output FROM tasks WHERE node = $1 ORDER BY number DESC";
    let rows = db::query(sql).bind(node).fetch_all(connection).await.map_err(database("reading the tasks"))?;
    let task = |row: &Row| Ok(TaskStatus { output: get(row, "output")?, ..json(row, "task_json")? });
    rows.iter().map(task).collect()
}

/// Stores a task. A new one is the newest of its node, and takes the place of the oldest beyond a limit. Output that is
/// there is stored; that of earlier calls stays.
pub async fn save(connection: &mut Connection, node: &str, task: &TaskStatus) -> Result<(), Error> {
    let sql = "INSERT INTO tasks (id, node, state, asked_at, number, task_json, output) VALUES ($1, $2, $3, $4, \
               (SELECT COALESCE(MAX(number), 0) + 1 FROM tasks WHERE node = $2), $5, $6) \
               ON CONFLICT (id) DO UPDATE SET state = excluded.state, task_json = excluded.task_json, \
               output = COALESCE(excluded.output, tasks.output)";
    let done = db::query(sql)
        .bind(&task.id)
        .bind(node)
        .bind(to_word(&task.state))
        .bind(task.asked_at.cast_signed())
        .bind(to_json(&TaskStatus { output: None, ..task.clone() }))
        .bind(&task.output)
        .execute(&mut *connection)
        .await;
    done.map_err(database("storing a task"))?;
    let sql = "DELETE FROM tasks WHERE node = $1 AND number <= \
               (SELECT MAX(number) FROM tasks AS others WHERE others.node = $1) - $2";
    let done = db::query(sql).bind(node).bind(KEPT).execute(&mut *connection).await;
    done.map_err(database("removing old tasks"))?;
    node_changes::record(connection, node).await
}

/// Returns the tasks that are not over, each with the id of its node.
pub async fn all_open(connection: &mut Connection) -> Result<Vec<(String, TaskStatus)>, Error> {
    let sql = "SELECT node, task_json FROM tasks WHERE state IN ('asked', 'running') ORDER BY node";
    let rows = db::query(sql).fetch_all(connection).await.map_err(database("looking for open tasks"))?;
    rows.iter().map(|row| Ok((get(row, "node")?, json(row, "task_json")?))).collect()
}
