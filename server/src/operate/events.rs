//! What happened at the site, for operators.

use slipway_protocol::{ErrorCode, SiteEvent, SiteEventKind};

use super::known_node;
use crate::base::error::Error;
use crate::store::history::{self, Filter, Place};
use crate::store::{Connection, nodes, runs};

/// Maximum number of events in one answer.
pub const MOST_EVENTS: u32 = 1000;

/// Returns a filter. `node` is the id, name or claim code of a node, or the id or name of one that was removed.
pub async fn event_filter(
    connection: &mut Connection,
    node: Option<&str>,
    run: Option<String>,
    kinds: Option<Vec<SiteEventKind>>,
) -> Result<Filter, Error> {
    let node = match node {
        None => None,
        Some(reference) => Some(match nodes::find(connection, reference).await? {
            Some(node) => node.id,
            None => match history::node_named(connection, reference).await? {
                Some(id) => id,
                None => known_node(connection, reference).await?.id,
            },
        }),
    };
    // The events of a run are among those of its node, of which there are fewer than of all.
    let of_run = match &run {
        Some(run) if node.is_none() => runs::get_by_id(connection, run).await?.map(|run| run.node),
        _ => None,
    };
    Ok(Filter { node: node.or(of_run), run, kinds })
}

/// Returns events, oldest first: those after or before a number, or else the newest. Refuses a number after which
/// events are missing.
pub async fn list_events(
    connection: &mut Connection,
    filter: &Filter,
    place: Option<Place>,
    most: u32,
) -> Result<Vec<SiteEvent>, Error> {
    if let Some(Place::After(number)) = place {
        check_follows(connection, number).await?;
    }
    history::read(connection, filter, place.unwrap_or(Place::Before(u64::MAX)), most.min(MOST_EVENTS)).await
}

/// Refuses a number after which events were removed already, or which no event has yet. 0 stands for the oldest event.
pub async fn check_follows(connection: &mut Connection, number: u64) -> Result<(), Error> {
    let (oldest, newest) = history::range(connection).await?;
    let why = match number {
        0 => return Ok(()),
        number if number > newest => format!("there is no event {number} yet: the newest is {newest}"),
        number if number + 1 < oldest => {
            format!("events after {number} were removed, because they were old: the oldest is {oldest}")
        }
        _ => return Ok(()),
    };
    Err(Error::refused(ErrorCode::Conflict, format!("{why}; start again without `after`")))
}
