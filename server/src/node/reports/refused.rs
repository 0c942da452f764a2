//! Records reports and credentials that arrived and were not accepted, so that operators learn why a machine is not
//! heard. A stranger's report is not recorded: it belongs to a node if it has a token of one of its runs, or if it came
//! from an address where that node alone was recently seen.

use std::net::IpAddr;

use slipway_protocol::{ErrorCode, SiteEventKind};

use crate::base::error::Error;
use crate::base::random::token_hash;
use crate::base::rate::Rate;
use crate::base::time::Millis;
use crate::node::reports::phone_home::Caller;
use crate::store::history::{self, NewEvent};
use crate::store::run_tokens::{self, Purpose};
use crate::store::{self, Connection, Store, boot_fetches, nodes, runs};

/// Milliseconds in which the same refusal is recorded once.
const REPEATED: Millis = 10 * 60 * 1000;
/// Refusals of one kind that are looked at of a node in a minute.
pub const A_MINUTE: usize = 2;

/// Who sent a report.
#[derive(Clone, Copy, Debug)]
pub enum Sender<'a> {
    /// The holder of a run's token.
    Run(&'a str, Purpose),
    /// cloud-init in an installed system.
    System(Caller<'a>),
}

/// Records that a report was not accepted. `what` names the report, such as `boot report`.
pub async fn report(
    store: &Store,
    rate: &Rate,
    (what, sender): (&str, Sender<'_>),
    from: IpAddr,
    error: &Error,
    now: Millis,
) -> Result<(), Error> {
    let Some(why) = reason(error) else { return Ok(()) };
    let mut connection = store.read().await?;
    let Some(node) = node_of(&mut connection, sender, from, now).await? else { return Ok(()) };
    drop(connection);
    let message = format!("{what} from {}: {why}", from.to_canonical());
    record(store, rate, SiteEventKind::ReportRefused, (&node, what), message, now).await
}

/// Records that credentials of a node were not accepted.
pub async fn credentials(
    store: &Store,
    rate: &Rate,
    node: &str,
    from: Option<IpAddr>,
    error: &Error,
    now: Millis,
) -> Result<(), Error> {
    let Some(why) = reason(error) else { return Ok(()) };
    if nodes::access(&mut *store.read().await?, node).await?.is_none() {
        return Ok(());
    }
    let from = from.map(|from| format!(" from {}", from.to_canonical())).unwrap_or_default();
    let message = format!("a request{from} had credentials that were not accepted: {why}");
    record(store, rate, SiteEventKind::CredentialRefused, (node, "credentials"), message, now).await
}

async fn record(
    store: &Store,
    rate: &Rate,
    kind: SiteEventKind,
    (node, what): (&str, &str),
    message: String,
    now: Millis,
) -> Result<(), Error> {
    // A machine that goes on and on must not take the write lock each time.
    if rate.take(&format!("{node} {what}")).is_err() {
        return Ok(());
    }
    let mut transaction = store.write().await?;
    let event = NewEvent::new(message).of_id(node);
    history::record_once(&mut transaction, kind, event, now.saturating_sub(REPEATED), now).await?;
    store::commit(transaction).await
}

/// Returns why a request was refused, or nothing if that was a fault of the server. It is the same each time, so that a
/// repetition is known.
fn reason(error: &Error) -> Option<String> {
    match error {
        Error::Refused { code: ErrorCode::Unavailable | ErrorCode::Internal, .. } => None,
        Error::Refused { message, .. } => Some(message.clone()),
        Error::TooOften { what, most, .. } => Some(format!("more than {most} {what} within a minute")),
        _ => None,
    }
}

async fn node_of(
    connection: &mut Connection,
    sender: Sender<'_>,
    from: IpAddr,
    now: Millis,
) -> Result<Option<String>, Error> {
    let run = match sender {
        Sender::Run(token, purpose) => match run_tokens::run_of(connection, &token_hash(token), purpose).await? {
            Some(run) => runs::get_by_id(connection, &run).await?,
            None => None,
        },
        Sender::System(Caller::Token(token)) => runs::by_phone_home_hash(connection, &token_hash(token)).await?,
        Sender::System(Caller::Instance(id)) => match runs::by_instance(connection, id).await? {
            // It is told each boot that one report is enough.
            Some(run) if run.phoned_home_at.is_some() => return Ok(None),
            run => run,
        },
    };
    match run {
        Some(run) => Ok(Some(run.node)),
        None => boot_fetches::only_node_at(connection, from, now).await,
    }
}
