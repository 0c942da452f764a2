//! Composes the steps of a run.

use slipway_protocol::{Action, ErrorCode, MAX_WORKFLOW_BYTES, Proof, Step, workflow};
use slipway_user_data::ignition::Additions;
use slipway_user_data::seed;

use super::new_run::{NewRun, Task};
use super::{captured, named_images};
use super::{check_disk, server_url};
use crate::base::error::Error;
use crate::base::random;
use crate::node::reports::boot;
use crate::node::reports::external_steps::check_known;
use crate::rules::phone_home_settings::PhoneHomeSettings;
use crate::run::compose;
use crate::run::compose::phone_home;
use crate::store::nodes::Node;
use crate::store::{Connection, settings, systems, to_json};

/// Bytes that a workflow needs in addition to its steps when it is sent, with some to spare.
const ROOM: usize = 1 << 10;

/// The steps of a run, and the tokens in them. Tokens are stored as hashes.
pub(super) struct Work {
    pub steps: Vec<Step>,
    /// Token in the URL that the installed system reports to, if it is asked to report.
    pub phone_home_token: Option<String>,
    /// Token of the boot reporter, if there is one.
    pub boot_token: Option<String>,
    /// Hashes of the tokens for images that were captured.
    pub image_tokens: Vec<String>,
    /// Whether the metadata stays open after the system reported.
    pub keep_metadata: bool,
    /// Names of the expected external steps.
    pub known_steps: Vec<String>,
    /// The least that the machine must prove.
    pub require: Proof,
}

/// Composes the steps for a node. Anything that the node would refuse is refused here, before a disk is erased.
pub(super) async fn compose_work(
    connection: &mut Connection,
    node: &Node,
    ca: &str,
    new: NewRun,
) -> Result<Work, Error> {
    let known_steps = known_steps(connection, &new).await?;
    let require = required(connection, &new).await?;
    let Composed { mut steps, reporting, keep_metadata } = steps(connection, node, new).await?;
    // As the operator wrote them, so that lines and columns are theirs.
    refuse(seed::problems(&steps))?;
    named_images::resolve(connection, &mut steps).await?;
    compose::set_up(&mut steps, node.name.as_deref(), node.network.as_ref(), &node.ssh_keys);
    give_instance_ids(&mut steps);
    let phone_home_token = ask_to_phone_home(connection, &mut steps, reporting, ca).await?;
    let boot_token = boot::is_asked_for(&steps).then(random::token);
    if let Some(token) = &boot_token {
        compose::ask_to_report_boots(&mut steps, &server_url(connection).await?, token, ca);
    }
    refuse(workflow::validate(&steps))?;
    let image_tokens = captured::open_images(connection, &mut steps).await?;
    check_ignition(&steps)?;
    refuse_too_large(&steps)?;
    Ok(Work { steps, phone_home_token, boot_token, image_tokens, keep_metadata, known_steps, require })
}

/// What a task says.
struct Composed {
    steps: Vec<Step>,
    reporting: PhoneHomeSettings,
    keep_metadata: bool,
}

/// The steps of a task, and its settings. Those of the run take precedence.
async fn steps(connection: &mut Connection, node: &Node, new: NewRun) -> Result<Composed, Error> {
    let reporting = new.reporting();
    match new.task {
        Task::Os(name) => {
            let Some(mut system) = systems::get_by_name(connection, &name).await? else {
                let message = format!("there is no operating system {name:?}; add it with `os add`");
                return Err(Error::refused(ErrorCode::NotFound, message));
            };
            if new.user_data.is_some() && !system.allow_override {
                let message = format!(
                    "the operating system {name:?} has allow_override false, so a run cannot have its own user-data; \
                     start the run without it, or add the system again with --allow-override true"
                );
                return Err(Error::refused(ErrorCode::Forbidden, message));
            }
            let server = server_url(connection).await?;
            // Hints are used as a whole: parts of several could select a disk that nobody intended.
            if let Some(disk) = new.disk.or_else(|| node.disk.clone()) {
                check_disk(&disk)?;
                system.disk = disk;
            }
            let steps = compose::install(&system, &server, new.user_data.as_deref());
            let reporting = reporting.or(system.reporting());
            Ok(Composed { steps, reporting, keep_metadata: system.keep_metadata })
        }
        Task::Workflow(_) if new.user_data.is_some() => {
            let message =
                "user-data cannot be combined with a workflow; put it into the seed-cloud-init step of the workflow";
            Err(Error::refused(ErrorCode::InvalidRequest, message))
        }
        Task::Workflow(_) if new.disk.is_some() => {
            let message = "disk hints cannot be combined with a workflow; set `disk` in the steps of the workflow";
            Err(Error::refused(ErrorCode::InvalidRequest, message))
        }
        Task::Workflow(workflow) => {
            let reporting = reporting.or(workflow.reporting());
            Ok(Composed { steps: workflow.steps, reporting, keep_metadata: workflow.keep_metadata })
        }
    }
}

/// Makes the installed system report or not, as set. Returns the token in the URL it reports to.
async fn ask_to_phone_home(
    connection: &mut Connection,
    steps: &mut [Step],
    reporting: PhoneHomeSettings,
    ca: &str,
) -> Result<Option<String>, Error> {
    reporting.check()?;
    if !reporting.on.unwrap_or_default() {
        let server = settings::read(connection, settings::SERVER_URL).await?;
        phone_home::disable_phone_home(steps, server.as_deref())?;
        return Ok(None);
    }
    let token = random::token();
    let url = format!("{}/v1/phone-home/{token}", server_url(connection).await?);
    phone_home::enable_phone_home(steps, &reporting.block(url), ca)?;
    Ok(Some(token))
}

/// Gives every seed without an instance id a new one, so that cloud-init treats the system as a new machine. An id of
/// ours is replaced, because it is from an older run, whose system may still report with it.
fn give_instance_ids(steps: &mut [Step]) {
    for step in steps {
        if let Action::SeedCloudInit(seed) = &mut step.action
            && (seed.instance_id.is_empty() || compose::is_unguessable(&seed.instance_id))
        {
            seed.instance_id = compose::instance_id();
        }
    }
}

/// The names of the external steps that a run expects: its own, else those of its task.
async fn known_steps(connection: &mut Connection, new: &NewRun) -> Result<Vec<String>, Error> {
    let names = match &new.task {
        _ if !new.known_steps.is_empty() => new.known_steps.clone(),
        Task::Os(name) => {
            let system = systems::get_by_name(connection, name).await?;
            system.map(|system| system.known_steps).unwrap_or_default()
        }
        Task::Workflow(workflow) => workflow.known_steps.clone(),
    };
    check_known(&names)?;
    Ok(names)
}

/// What the operating system of a run requires. A workflow of its own requires nothing more than node and site.
async fn required(connection: &mut Connection, new: &NewRun) -> Result<Proof, Error> {
    let Task::Os(name) = &new.task else { return Ok(Proof::default()) };
    let system = systems::get_by_name(connection, name).await?;
    Ok(system.map(|system| system.require).unwrap_or_default())
}

fn refuse(problems: Vec<String>) -> Result<(), Error> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::refused(ErrorCode::InvalidRequest, problems.join("; ")))
}

/// Refuses steps that are too large for any node to read.
fn refuse_too_large(steps: &[Step]) -> Result<(), Error> {
    let size = to_json(&steps).len() + ROOM;
    if size <= MAX_WORKFLOW_BYTES {
        return Ok(());
    }
    let message = format!(
        "the steps are {size} bytes of JSON, including user-data and the content of files, but a machine accepts at \
         most {MAX_WORKFLOW_BYTES}; put large files on the server, and fetch them with write-file or from user-data"
    );
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

/// Refuses an Ignition config that the node would refuse.
fn check_ignition(steps: &[Step]) -> Result<(), Error> {
    for step in steps {
        if let Action::SeedCloudInit(seed) = &step.action
            && seed.is_for_ignition()
        {
            phone_home::complete_config(&seed.user_data, &Additions::of(seed))?;
        }
    }
    Ok(())
}

/// The instance ids that systems may report with: those that cannot be guessed.
pub(super) fn instances(steps: &[Step]) -> Vec<&str> {
    let instances = steps.iter().filter_map(|step| match &step.action {
        Action::SeedCloudInit(seed) => Some(seed.instance_id.as_str()),
        _ => None,
    });
    instances.filter(|instance| compose::is_unguessable(instance)).collect()
}
