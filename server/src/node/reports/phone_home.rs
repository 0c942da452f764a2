//! The report of an installed system that it has booted.

use std::collections::BTreeMap;

use slipway_protocol::{ErrorCode, NodeState, SiteEventKind};

use super::{node_state, secrets};
use crate::base::error::Error;
use crate::base::random::token_hash;
use crate::base::rate::Rate;
use crate::base::time::Millis;
use crate::rules::state::NodeEvent;
use crate::store;
use crate::store::history::{self, NewEvent};
use crate::store::runs::{self, Run};
use crate::store::{Connection, Store, node_contacts, nodes};

/// How the installed system identifies its run.
#[derive(Clone, Copy, Debug)]
pub enum Caller<'a> {
    /// By the token in the URL that the run gave the system.
    Token(&'a str),
    /// By the cloud-init instance id that the run gave the system, which is as hard to guess.
    Instance(&'a str),
}

/// Records that an installed system reported, and at its first report also what it posted.
pub async fn phone_home(
    store: &Store,
    rate: &Rate,
    caller: Caller<'_>,
    form: BTreeMap<String, String>,
    now: Millis,
) -> Result<(), Error> {
    // Reading does not take the write lock, so systems that report too often do not hold it. The limit is per run, so
    // that a holder of an old run's URL cannot block the new run's reports.
    let known = reporting_run(&mut *store.read().await?, caller).await?;
    rate.take(&known.id)?;
    let mut transaction = store.write().await?;
    let node = nodes::get_by_id(&mut transaction, &known.node).await?;
    let (Some(node), Some(mut run)) = (node, runs::get_by_id(&mut transaction, &known.id).await?) else {
        return Err(unknown_caller());
    };
    if node.state == NodeState::Decommissioned {
        let message = format!("node {} was taken out of service by an operator", node.label());
        return Err(Error::refused(ErrorCode::Decommissioned, message));
    }
    let first = if run.phoned_home_at.is_none() { "reported that it is up" } else { "reported again" };
    let event = NewEvent::new(format!("the installed system {first}")).of(&node).of_run(&run);
    history::record(&mut transaction, SiteEventKind::PhonedHome, event, now).await?;
    if run.phoned_home_at.is_none() {
        run.phoned_home_at = Some(now);
        run.phone_home = form;
    }
    run.last_contact_at = Some(now);
    runs::update(&mut transaction, &run).await?;
    node_contacts::seen(&mut transaction, &run.node, now).await?;
    node_state::advance(&mut transaction, &run, NodeEvent::PhonedHome).await?;
    secrets::forget_of_node(&mut transaction, &run.node).await?;
    store::commit(transaction).await
}

async fn reporting_run(connection: &mut Connection, caller: Caller<'_>) -> Result<Run, Error> {
    let run = match caller {
        Caller::Token(token) => runs::by_phone_home_hash(connection, &token_hash(token)).await?,
        // The system's users know the instance id, so it is valid for one report only.
        Caller::Instance(id) => runs::by_instance(connection, id).await?.filter(|run| run.phoned_home_at.is_none()),
    };
    run.ok_or_else(unknown_caller)
}

fn unknown_caller() -> Error {
    Error::refused(ErrorCode::NotFound, "no run issued the token or instance id that this system reports with")
}
