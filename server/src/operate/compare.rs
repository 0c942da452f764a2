//! What changed since the last good run.

use slipway_protocol::{Chosen, ComparedRun, Comparison, ErrorCode};

use super::run::known_run;
use crate::base::error::Error;
use crate::node::status;
use crate::rules::changes;
use crate::store::run_facts::{self, RunFacts};
use crate::store::runs::{self, Run};
use crate::store::{Connection, Store, nodes};

/// Compares a run with another one: with `with`, or else with the last one of the node that succeeded, or else with the
/// last one of the same model and operating system that did. Each is the id of a run, or a node, whose newest run is
/// meant. Refuses if there is none to compare with.
pub async fn compare_runs(store: &Store, reference: &str, with: Option<&str>) -> Result<Comparison, Error> {
    let mut connection = store.read().await?;
    let run = known_run(&mut connection, reference).await?;
    let facts = facts(&mut connection, &run).await?;
    let (other, chosen) = match with {
        Some(with) => (known_run(&mut connection, with).await?, Chosen::Given),
        None => good(&mut connection, &run, &facts).await?,
    };
    if other.id == run.id {
        let message = format!("run {} cannot be compared with itself: name another run", run.id);
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    let others = self::facts(&mut connection, &other).await?;
    let is_same_machine = other.node == run.node;
    let (compared, with) = (compared(&mut connection, &run).await?, compared(&mut connection, &other).await?);
    // Settings that are known of one run alone say nothing.
    let are_known = facts.settings.is_some() && others.settings.is_some();
    let named = async |connection: &mut Connection, run: Run, facts: &RunFacts| {
        let status = status::with_reports(connection, run).await?;
        let settings = facts.settings.as_ref().filter(|_| are_known);
        Ok::<_, Error>(changes::facts(&status, settings, facts.machine.as_ref(), is_same_machine))
    };
    let then = named(&mut connection, other, &others).await?;
    let now = named(&mut connection, run, &facts).await?;
    Ok(Comparison { run: compared, with, chosen, facts: changes::compare(&then, &now) })
}

/// Returns what is known of a run. Refuses a run of which nothing is.
async fn facts(connection: &mut Connection, run: &Run) -> Result<RunFacts, Error> {
    run_facts::of_run(connection, &run.id).await?.ok_or_else(|| {
        let message = format!(
            "run {} was started by an earlier version of slipway-server, which kept nothing to compare; compare a \
             later run",
            run.id
        );
        Error::refused(ErrorCode::Conflict, message)
    })
}

/// Returns the last good run before this one: of the same node, or else of the same model with the same system.
async fn good(connection: &mut Connection, run: &Run, facts: &RunFacts) -> Result<(Run, Chosen), Error> {
    let mut found = run_facts::good_of_node(connection, run).await?.map(|id| (id, Chosen::SameNode));
    let system = facts.machine.as_ref().map(|machine| &machine.inventory.system);
    if found.is_none()
        && let Some(system) = system
        && let Some(model) = &system.model
    {
        let good = run_facts::good_of_model(connection, run, system.vendor.as_deref(), model).await?;
        found = good.map(|id| (id, Chosen::SameModel));
    }
    if let Some((id, chosen)) = found
        && let Some(good) = runs::get_by_id(connection, &id).await?
    {
        return Ok((good, chosen));
    }
    let model = match system.and_then(|system| system.model.as_deref()) {
        Some(model) => format!("none of another {model} with the same operating system did"),
        None => "the model of its machine is not known".to_owned(),
    };
    let message = format!(
        "run {} has no run to compare with: no earlier run of its node succeeded, and {model}; one that succeeds is \
         compared from then on, or name any other run",
        run.id
    );
    Err(Error::refused(ErrorCode::Conflict, message))
}

async fn compared(connection: &mut Connection, run: &Run) -> Result<ComparedRun, Error> {
    let name = nodes::get_by_id(connection, &run.node).await?.and_then(|node| node.name);
    let (id, node, state) = (run.id.clone(), run.node.clone(), run.progress.state);
    Ok(ComparedRun { id, node, name, state, created_at: run.created_at })
}
