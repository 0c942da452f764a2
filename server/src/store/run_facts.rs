//! What is known of runs, to compare a bad one with a good one. It goes with the run.

use slipway_protocol::RunState;

use crate::base::error::Error;
use crate::rules::changes::{MachineFacts, Named};
use crate::store::runs::Run;
use crate::store::{Connection, database, db, get, optional_json, to_json, to_word};

/// What is known of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFacts {
    /// Settings of its steps.
    pub settings: Option<Named>,
    /// The machine that fetched it. `None` until one did.
    pub machine: Option<MachineFacts>,
}

/// Stores the settings of a new run.
pub async fn insert(connection: &mut Connection, run: &str, settings: &Named) -> Result<(), Error> {
    let query = db::query("INSERT INTO run_facts (run, settings_json) VALUES ($1, $2)");
    let done = query.bind(run).bind(to_json(settings)).execute(connection).await;
    done.map(drop).map_err(database("storing the settings of a run"))
}

/// Stores the machine that fetched a run, in place of the one before.
pub async fn set_machine(connection: &mut Connection, run: &str, machine: &MachineFacts) -> Result<(), Error> {
    let sql = "INSERT INTO run_facts (run, machine_json, vendor, model) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (run) DO UPDATE SET machine_json = excluded.machine_json, vendor = excluded.vendor, \
               model = excluded.model";
    let system = &machine.inventory.system;
    let query = db::query(sql).bind(run).bind(to_json(machine)).bind(&system.vendor).bind(&system.model);
    query.execute(connection).await.map(drop).map_err(database("storing the machine of a run"))
}

/// Returns what is known of a run. `None` if an earlier version started it.
pub async fn of_run(connection: &mut Connection, run: &str) -> Result<Option<RunFacts>, Error> {
    let query = db::query("SELECT settings_json, machine_json FROM run_facts WHERE run = $1").bind(run);
    let row = query.fetch_optional(connection).await.map_err(database("reading what is known of a run"))?;
    let facts = |row| {
        let (settings, machine) = (optional_json(row, "settings_json")?, optional_json(row, "machine_json")?);
        Ok(RunFacts { settings, machine })
    };
    row.as_ref().map(facts).transpose()
}

/// Returns the id of the newest run of the same node that was started before this one and succeeded.
pub async fn good_of_node(connection: &mut Connection, run: &Run) -> Result<Option<String>, Error> {
    let sql = "SELECT runs.id AS id FROM runs JOIN run_facts ON run_facts.run = runs.id WHERE runs.node = $1 \
               AND runs.state = $2 AND runs.created_at <= $3 AND runs.id <> $4 \
               ORDER BY runs.created_at DESC, runs.id DESC LIMIT 1";
    let query = db::query(sql).bind(&run.node).bind(to_word(&RunState::Succeeded));
    let row = query.bind(run.created_at.cast_signed()).bind(&run.id).fetch_optional(connection).await;
    row.map_err(database("looking for a run that succeeded"))?.map(|row| get(&row, "id")).transpose()
}

/// Returns the id of the newest run that was started before this one and succeeded, on a machine of this vendor and
/// model and with the same operating system. A run of a workflow must have written the same image.
pub async fn good_of_model(
    connection: &mut Connection,
    run: &Run,
    vendor: Option<&str>,
    model: &str,
) -> Result<Option<String>, Error> {
    let sql = "SELECT runs.id AS id FROM run_facts JOIN runs ON runs.id = run_facts.run WHERE run_facts.model = $1 \
               AND COALESCE(run_facts.vendor, '') = $2 AND runs.state = $3 AND runs.created_at <= $4 \
               AND runs.id <> $5 AND (runs.os = $6 OR (runs.os IS NULL AND CAST($6 AS TEXT) IS NULL \
               AND runs.image = $7)) ORDER BY runs.created_at DESC, runs.id DESC LIMIT 1";
    let query = db::query(sql).bind(model).bind(vendor.unwrap_or_default()).bind(to_word(&RunState::Succeeded));
    let query = query.bind(run.created_at.cast_signed()).bind(&run.id).bind(&run.os);
    let row = query.bind(run.image.as_ref().map(ToString::to_string)).fetch_optional(connection).await;
    row.map_err(database("looking for a run that succeeded"))?.map(|row| get(&row, "id")).transpose()
}
