//! What operators do, whether on the command line or over HTTPS.

pub mod backup;
pub mod check;
mod class;
mod compare;
mod events;
mod image;
mod limits;
mod log;
mod network;
mod node;
mod operator;
mod power;
mod release;
mod replace;
mod request;
mod retry;
mod run;
mod session;
pub mod site_keys;
mod system;
mod task;
mod token;
mod tpm;
mod workflow_file;
mod yaml;

use slipway_protocol::node::boot_settings::is_host_name;
use slipway_protocol::shared::ssh_key;
use slipway_protocol::{ErrorCode, SiteEventKind};

use crate::base::error::Error;
use crate::base::time::now;
use crate::store::claimants::{self, Claimant};
use crate::store::history::{self, NewEvent};
use crate::store::nodes::{self, Node};
use crate::store::{Connection, Transaction, settings};

pub use self::class::{erasure, install_anew, refuse_anew, request_of};
pub use self::compare::compare_runs;
pub use self::events::{MOST_EVENTS, check_follows, event_filter, list_events};
pub use self::image::{Cleaned, check_objects, clean_images, known_image, remove_image};
pub use self::limits::{list_limits, reset_limit, set_limit, site_status};
pub use self::log::{LogType, list_boots, node_log};
pub use self::network::parse_network;
pub use self::node::{
    NewNode, NodeChange, add_node, change_node, decommission_node, decommission_node_and_switch_off, recommission_node,
    remove_node, show_node,
};
pub use self::operator::{
    Bearer, FIRST, IssuedOperator, OperatorStatus, add_operator, adopt_first, bearer, first_token, list_operators,
    remove_operator, rotate_operator,
};
pub use self::power::{PowerChange, PowerRequest, change_power, show_power, switch_power};
pub use self::release::release_node;
pub use self::replace::{Replacement, plan_replacement, replace_machine};
pub use self::retry::{Retry, plan_retry, retry_of, retry_run};
pub use self::run::{
    BootsBy, Destroyed, GoesOn, Plan, cancel_run, confirm_run, list_runs, plan_run, runs_since, show_run, start_run,
};
pub use self::session::{SESSION_LASTS, sign_in, sign_out, signed_in};
pub use self::system::{add_system, remove_system};
pub use self::task::{
    LIMIT, NewTask, Reboot, ask_task, cancel_task, list_tasks, reboot, reboots_by_agent, remove_agent,
};
pub use self::token::{
    IssuedToken, MetadataUrl, TokenStatus, add_run_token, add_token, list_tokens, metadata_url, revoke_token,
};
pub use self::tpm::{NodeAttestation, node_attestation};
pub use self::workflow_file::parse_workflow;
pub use crate::run::new_run::{NewRun, Task, WorkflowFile};

/// Records what the operator did for whom a transaction was begun.
async fn did(transaction: &mut Transaction, kind: SiteEventKind, event: NewEvent<'_>) -> Result<(), Error> {
    history::did(transaction, kind, event, now()).await
}

/// Refuses a name that cannot be a host name: labels of letters, digits and hyphens (RFC 1123, section 2.1).
fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if is_host_name(name) {
        return Ok(());
    }
    let message =
        format!("{name:?} is not a valid {what} name: use letters, digits, hyphens and dots, as in host names");
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

fn check_keys(keys: &[String]) -> Result<(), Error> {
    // The message gives the number of the key: a text that is not a public key may be a private one, and the message
    // is logged.
    let problem =
        |(number, key): (usize, &String)| Some(format!("SSH key {number} cannot be used: {}", ssh_key::problem(key)?));
    (1..).zip(keys).find_map(problem).map_or(Ok(()), |message| Err(Error::refused(ErrorCode::InvalidRequest, message)))
}

/// Returns the node with this id or name, or the node whose identifiers the machine with this claim code has.
async fn known_node(connection: &mut Connection, reference: &str) -> Result<Node, Error> {
    if let Some(node) = nodes::find(connection, reference).await? {
        return Ok(node);
    }
    let claimant = claimants::find(connection, reference).await?;
    if let Some(id) =
        claimant.as_ref().filter(|claimant| claimant.reason.identifiers_match()).and_then(|c| c.node.as_ref())
        && let Some(node) = nodes::get_by_id(connection, id).await?
    {
        return Ok(node);
    }
    let message = match claimant {
        Some(Claimant { code, .. }) => {
            format!(
                "the machine with the claim code {code} is not a node yet; `node release {code} --name NAME` lets it in"
            )
        }
        None => format!("no node has the id, name or claim code {reference:?}"),
    };
    Err(Error::refused(ErrorCode::NotFound, message))
}

async fn server_url(connection: &mut Connection) -> Result<String, Error> {
    let url = settings::read(connection, settings::SERVER_URL).await?;
    url.ok_or_else(settings::no_server_url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_host_names() {
        for good in ["web1", "web-1.example", "debian-12"] {
            check_name("node", good).expect(good);
        }
        for bad in ["", "-a", "a-", "a b", "a..b", "ä", &"a".repeat(64)] {
            check_name("node", bad).expect_err(bad);
        }
    }
}
