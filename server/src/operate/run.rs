//! Runs: what a node is to do next.

use serde::{Deserialize, Serialize};
use slipway_protocol::{ErrorCode, NodeState, RunStatus};

use super::steps::{check_ignition, give_instance_ids, instances, known_steps, refuse_problems, steps};
use super::workflow_file::WorkflowFile;
use super::{known_node, server_url};
use crate::reporting::{PostKeys, Wish};
use crate::state::{self, Happening};
use crate::store::nodes::{self, Node};
use crate::store::run_tokens::{self, Purpose};
use crate::store::runs::{self, Run};
use crate::store::{self, Connection, Store, loose, settings};
use crate::time::{Millis, now};
use crate::{Error, boot_report, compose, random, reporting, status};

/// What a node is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Install the operating system of this name.
    Os(String),
    /// Run these steps.
    Workflow(WorkflowFile),
}

/// A run to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRun {
    /// What the node is to do.
    pub task: Task,
    /// User-data in place of the operating system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Whether the installed system reports that it is up, whatever the operating system or the workflow says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home: Option<bool>,
    /// What it posts: `all`, or names of keys with commas between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home_post: Option<PostKeys>,
    /// How often it tries, 3 s apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home_tries: Option<u32>,
    /// Names of the loose steps that are expected, in place of the operating system's or the workflow's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_steps: Vec<String>,
    /// End a run that is still going on, as failed, instead of refusing.
    #[serde(default)]
    pub replace: bool,
}

impl NewRun {
    /// A run that leaves everything to its task.
    pub fn new(task: Task) -> Self {
        Self {
            task,
            user_data: None,
            phone_home: None,
            phone_home_post: None,
            phone_home_tries: None,
            known_steps: Vec::new(),
            replace: false,
        }
    }

    pub(super) fn reporting(&self) -> Wish {
        Wish { on: self.phone_home, post: self.phone_home_post.clone(), tries: self.phone_home_tries }
    }
}

/// Starts a run on a node. The node fetches it when it next polls, at once if it is polling.
///
/// `ca` is the certificate the installed system must trust to report.
pub async fn start_run(store: &Store, ca: &str, reference: &str, new: NewRun) -> Result<RunStatus, Error> {
    let now = now();
    let mut transaction = store.write().await?;
    let mut node = known_node(&mut transaction, reference).await?;
    if matches!(node.state, NodeState::Decommissioned | NodeState::Draining) {
        let message = format!("node {} is out of service or about to be", node.label());
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let id = random::id();
    make_room(&mut transaction, &node, &id, new.replace, now).await?;

    let known_steps = known_steps(&mut transaction, &new).await?;
    let (mut steps, wish) = steps(&mut transaction, &node, new).await?;
    give_instance_ids(&mut steps);
    wish.check()?;
    let token = wish.on.unwrap_or_default().then(random::token);
    if let Some(token) = &token {
        let url = format!("{}/v1/phone-home/{token}", server_url(&mut transaction).await?);
        reporting::ask(&mut steps, &wish.block(url), ca)?;
    } else {
        let server = settings::read(&mut transaction, settings::SERVER_URL).await?;
        reporting::do_not_ask(&mut steps, server.as_deref())?;
    }
    let boot_token = random::token();
    let reports_boots = boot_report::is_asked_for(&steps);
    if reports_boots {
        compose::ask_to_report_boots(&mut steps, &server_url(&mut transaction).await?, &boot_token, ca);
    }
    refuse_problems(&steps)?;
    check_ignition(&steps)?;
    let run = Run {
        id: id.clone(),
        node: node.id.clone(),
        progress: state::pending(&steps),
        workflow: steps,
        last_seq: 0,
        phone_home_hash: token.as_deref().map(random::token_hash),
        phone_home: std::collections::BTreeMap::new(),
        created_at: now,
        started_at: None,
        phoned_home_at: None,
        last_contact_at: None,
    };
    runs::insert(&mut transaction, &run, &instances(&run.workflow)).await?;
    loose::expect(&mut transaction, &id, &known_steps).await?;
    if reports_boots {
        run_tokens::insert(&mut transaction, &random::token_hash(&boot_token), &id, Purpose::Boot, now).await?;
    }
    node.run = Some(id);
    node.state = state::next(node.state, Happening::GivenWork);
    // Who gives a machine work knows of it.
    node.registered = true;
    nodes::save(&mut transaction, &node).await?;
    store::commit(transaction).await?;
    tracing::info!(node = node.label(), run = run.id, "run started");
    Ok(status::of_run(run))
}

/// Refuses, or ends, a run that is still going on.
async fn make_room(
    connection: &mut Connection,
    node: &Node,
    by: &str,
    replace: bool,
    now: Millis,
) -> Result<(), Error> {
    let Some(mut run) = runs::newest_of(connection, &node.id).await? else { return Ok(()) };
    if !state::is_open(run.progress.state) {
        return Ok(());
    }
    if !replace {
        let message = format!(
            "node {} still has run {} to finish; have it replaced (--replace) to end it as failed",
            node.label(),
            run.id
        );
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    state::end(&mut run.progress, &format!("replaced by run {by}"), now);
    runs::update(connection, &run).await
}
