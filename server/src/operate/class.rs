//! What follows from the class of a node: whether it is reinstalled when its machine boots slipway, and whether its
//! disks are erased at the end.

use slipway_protocol::{EraseMode, ErrorCode, NodeClass, NodeState, NodeStatus, RunStatus, SiteEventKind};

use super::request;
use super::run::{Again, start};
use crate::base::error::Error;
use crate::base::time::now;
use crate::node::reports::node_state;
use crate::run::new_run::NewRun;
use crate::store::history::{self, NewEvent};
use crate::store::nodes::{self, Node};
use crate::store::{self, Connection, Store, run_requests, runs};

/// Changes the class of a node, and what follows from it. Refuses a change after the first run, unless it is forced:
/// operators may count on a disk that is kept, or that is erased.
pub(super) async fn change_class(
    connection: &mut Connection,
    node: &mut Node,
    class: NodeClass,
    force: bool,
) -> Result<(), Error> {
    if class == node.class {
        return Ok(());
    }
    let run = runs::newest_of(connection, &node.id).await?;
    if run.is_some() && !force {
        let (label, now) = (node.label(), node.class.name());
        let message = format!(
            "node {label} had a run as a node of the class {now}; to make it {} all the same, force it (`node set \
             {label} --class {0} --force`)",
            class.name()
        );
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    node.class = class;
    node_state::forget_anew(connection, node).await
}

/// Returns how the disks of a node are erased before it goes out of service, if they are. Those of an ephemeral node
/// are, if it had a run, unless they are to be kept.
pub fn erasure(node: &NodeStatus, asked: Option<EraseMode>, keeps_disks: bool) -> Option<EraseMode> {
    let is_used = node.run.is_some() && node.state != NodeState::Decommissioned;
    let is_due = node.class == NodeClass::Ephemeral && is_used && !keeps_disks;
    asked.or(is_due.then_some(EraseMode::Secure))
}

/// Returns what the run with this id was asked for, to be done again. Keys for the firmware have to be signed again
/// ([`NewRun::with_keys`]).
pub async fn request_of(store: &Store, run: &str) -> Result<NewRun, Error> {
    let sealed = run_requests::get_by_run(&mut *store.read().await?, run).await?;
    let refused = |why: &str| {
        let message = format!("what run {run} was asked for {why}; start another run");
        Error::refused(ErrorCode::Conflict, message)
    };
    let sealed = sealed.ok_or_else(|| refused("is not kept: another version of slipway may have removed it"))?;
    request::open(store, run, &sealed)?.map_err(refused)
}

/// Starts a run that does again what the newest run of an ephemeral node did. Fails if its machine is not to be
/// reinstalled any more.
///
/// `ca` is the certificate the installed system must trust to report.
pub async fn install_anew(store: &Store, ca: &str, node: &str, run: &str, new: NewRun) -> Result<RunStatus, Error> {
    start(store, ca, node, new, Some(Again::Anew { run })).await
}

/// Records why a node could not be reinstalled by a run, once for each start of its machine. Returns false if it is
/// not to be done again by now, because another request was faster.
pub async fn refuse_anew(store: &Store, node: &str, run: &str, why: &Error) -> Result<bool, Error> {
    let mut transaction = store.write().await?;
    let access = nodes::access(&mut transaction, node).await?.filter(|access| !access.has_open_run);
    if access.and_then(|access| access.anew).is_none_or(|anew| anew != run) {
        return Ok(false);
    }
    let Some(node) = nodes::get_by_id(&mut transaction, node).await? else { return Ok(false) };
    let event =
        NewEvent::new(format!("the node is ephemeral, and could not be reinstalled: {}", why.body().message)).of(&node);
    let since = node.enrolled_at.unwrap_or_default().saturating_sub(1);
    history::record_once(&mut transaction, SiteEventKind::RunRefused, event, since, now()).await?;
    store::commit(transaction).await?;
    Ok(true)
}
