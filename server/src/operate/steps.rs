//! What a run consists of.

use slipway_protocol::{Action, ErrorCode, MAX_WORKFLOW_BYTES, Step, workflow};
use slipway_user_data::ignition::Additions;

use super::run::{NewRun, Task};
use super::{check_disk, server_url};
use crate::compose::phone_home;
use crate::error::Error;
use crate::phone_home_settings::PhoneHomeSettings;
use crate::reports::boot;
use crate::reports::external_steps::check_known;
use crate::store::nodes::Node;
use crate::store::{Connection, settings, systems, to_json};
use crate::{compose, random};

/// Bytes that a workflow has beside its steps when it is handed out, and some to spare.
const ROOM: usize = 1 << 10;

/// What a run consists of, and the tokens in its steps. They are stored as their hashes.
pub(super) struct Work {
    pub steps: Vec<Step>,
    /// In the URL the installed system reports to, if it is to.
    pub phone_home_token: Option<String>,
    /// Of the boot reporter, if there is one.
    pub boot_token: Option<String>,
    /// Names of the loose steps that are expected.
    pub known_steps: Vec<String>,
}

/// Composes what a node is told to do. What the node would refuse is refused here, while no disk is erased yet.
pub(super) async fn compose_work(
    connection: &mut Connection,
    node: &Node,
    ca: &str,
    new: NewRun,
) -> Result<Work, Error> {
    let known_steps = known_steps(connection, &new).await?;
    let (mut steps, reporting) = steps(connection, node, new).await?;
    compose::set_up(&mut steps, node.name.as_deref(), node.network.as_ref(), &node.ssh_keys);
    give_instance_ids(&mut steps);
    let phone_home_token = ask_to_phone_home(connection, &mut steps, reporting, ca).await?;
    let boot_token = boot::is_asked_for(&steps).then(random::token);
    if let Some(token) = &boot_token {
        compose::ask_to_report_boots(&mut steps, &server_url(connection).await?, token, ca);
    }
    refuse_problems(&steps)?;
    check_ignition(&steps)?;
    refuse_too_large(&steps)?;
    Ok(Work { steps, phone_home_token, boot_token, known_steps })
}

/// The steps of a task, and what is said about the reports of the installed system: the run's word before all others.
async fn steps(connection: &mut Connection, node: &Node, new: NewRun) -> Result<(Vec<Step>, PhoneHomeSettings), Error> {
    let reporting = new.reporting();
    match new.task {
        Task::Os(name) => {
            let Some(mut system) = systems::get_by_name(connection, &name).await? else {
                let message = format!("there is no operating system {name:?}; add it with `os add`");
                return Err(Error::refused(ErrorCode::NotFound, message));
            };
            if new.user_data.is_some() && !system.allow_override {
                let message = format!(
                    "the operating system {name:?} has allow_override false: a run brings no user-data of its own; \
                     start it without, or add the system again with --allow-override true"
                );
                return Err(Error::refused(ErrorCode::Forbidden, message));
            }
            let server = server_url(connection).await?;
            // The whole hint of one of them: a part of each could mean a disk that nobody meant.
            if let Some(disk) = new.disk.or_else(|| node.disk.clone()) {
                check_disk(&disk)?;
                system.disk = disk;
            }
            let steps = compose::install(&system, &server, new.user_data.as_deref());
            Ok((steps, reporting.or(system.reporting())))
        }
        Task::Workflow(_) if new.user_data.is_some() => {
            let message = "a workflow brings its own user-data, in its seed-cloud-init step";
            Err(Error::refused(ErrorCode::InvalidRequest, message))
        }
        Task::Workflow(_) if new.disk.is_some() => {
            let message = "a workflow says itself which disks are meant, by `disk` in its steps";
            Err(Error::refused(ErrorCode::InvalidRequest, message))
        }
        Task::Workflow(workflow) => {
            let reporting = reporting.or(workflow.reporting());
            Ok((workflow.steps, reporting))
        }
    }
}

/// Has the installed system report or not, as it is wished. Returns the token in the URL it reports to.
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

/// Gives every seed an instance id that has none, so that cloud-init takes what it finds for a new machine. One of ours that stands
/// there already is from an older run, whose system may still report with it.
fn give_instance_ids(steps: &mut [Step]) {
    for step in steps {
        if let Action::SeedCloudInit(seed) = &mut step.action
            && (seed.instance_id.is_empty() || compose::is_unguessable(&seed.instance_id))
        {
            seed.instance_id = compose::instance_id();
        }
    }
}

/// The names of loose steps a run is to expect: its own, else those of what it is made of.
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

fn refuse_problems(steps: &[Step]) -> Result<(), Error> {
    let problems = workflow::validate(steps);
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::refused(ErrorCode::InvalidRequest, problems.join("; ")))
}

/// Refuses what no node would read to its end, however often it asked.
fn refuse_too_large(steps: &[Step]) -> Result<(), Error> {
    let size = to_json(&steps).len() + ROOM;
    if size <= MAX_WORKFLOW_BYTES {
        return Ok(());
    }
    let message = format!(
        "the steps are {size} bytes of JSON, user-data and contents of files among them, and a machine takes at most \
         {MAX_WORKFLOW_BYTES}: put large files on the server, and fetch them with write-file or from user-data"
    );
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

/// Refuses an Ignition config that the node would refuse.
fn check_ignition(steps: &[Step]) -> Result<(), Error> {
    for step in steps {
        if let Action::SeedCloudInit(seed) = &step.action
            && seed.is_for_ignition()
        {
            let additions = Additions {
                hostname: seed.hostname.as_deref(),
                ssh_keys: &seed.ssh_keys,
                phone_home: seed.phone_home.as_ref(),
                ca: seed.ca.as_deref(),
                instance_id: &seed.instance_id,
            };
            phone_home::complete_config(&seed.user_data, &additions)?;
        }
    }
    Ok(())
}

/// The instance ids that systems may report with: those that nobody guesses.
pub(super) fn instances(steps: &[Step]) -> Vec<&str> {
    let instances = steps.iter().filter_map(|step| match &step.action {
        Action::SeedCloudInit(seed) => Some(seed.instance_id.as_str()),
        _ => None,
    });
    instances.filter(|instance| compose::is_unguessable(instance)).collect()
}
