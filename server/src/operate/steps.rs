//! What a run consists of.

use slipway_protocol::{Action, ErrorCode, Step, workflow};
use slipway_user_data::ignition::{self, Additions};

use super::run::{NewRun, Task};
use super::server_url;
use super::workflow_file::WorkflowFile;
use crate::loose::check_known;
use crate::reporting::Wish;
use crate::store::nodes::Node;
use crate::store::{Connection, systems};
use crate::{Error, compose};

/// The steps of a task, and what is said about the reports of the installed system: the run's word before all others.
pub(super) async fn steps(connection: &mut Connection, node: &Node, new: NewRun) -> Result<(Vec<Step>, Wish), Error> {
    let wish = new.reporting();
    match new.task {
        Task::Os(name) => {
            let Some(system) = systems::get_by_name(connection, &name).await? else {
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
            let mut steps = compose::install(&system, &server, node.name.as_deref(), new.user_data.as_deref());
            compose::set_up(&mut steps, node.network.as_ref(), &node.ssh_keys);
            Ok((steps, wish.or(system.reporting())))
        }
        Task::Workflow(_) if new.user_data.is_some() => {
            let message = "a workflow brings its own user-data, in its seed-cloud-init step";
            Err(Error::refused(ErrorCode::InvalidRequest, message))
        }
        Task::Workflow(workflow) => {
            let WorkflowFile { steps, phone_home, phone_home_post: post, phone_home_tries: tries, .. } = workflow;
            Ok((steps, wish.or(Wish { on: Some(phone_home), post, tries })))
        }
    }
}

/// Gives every seed an instance id that has none, so that cloud-init takes what it finds for a new machine.
pub(super) fn give_instance_ids(steps: &mut [Step]) {
    for step in steps {
        if let Action::SeedCloudInit(seed) = &mut step.action
            && seed.instance_id.is_empty()
        {
            seed.instance_id = compose::instance_id();
        }
    }
}

/// The names of loose steps a run is to expect: its own, else those of what it is made of.
pub(super) async fn known_steps(connection: &mut Connection, new: &NewRun) -> Result<Vec<String>, Error> {
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

/// Refuses what the node would refuse, while no disk is erased yet.
pub(super) fn refuse_problems(steps: &[Step]) -> Result<(), Error> {
    let problems = workflow::problems(steps);
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::refused(ErrorCode::InvalidRequest, problems.join("; ")))
}

/// Refuses an Ignition config that the node would refuse.
pub(super) fn check_ignition(steps: &[Step]) -> Result<(), Error> {
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
            complete_config(&seed.user_data, &additions)?;
        }
    }
    Ok(())
}

pub(crate) fn complete_config(config: &str, additions: &Additions) -> Result<(), Error> {
    ignition::complete(config, additions).map(drop).map_err(|refusal| {
        let message = format!("the Ignition config cannot be used: {refusal}");
        Error::refused(ErrorCode::InvalidRequest, message)
    })
}

/// The instance ids that systems may report with: those that nobody guesses.
pub(super) fn instances(steps: &[Step]) -> Vec<&str> {
    let instances = steps.iter().filter_map(|step| match &step.action {
        Action::SeedCloudInit(seed) => Some(seed.instance_id.as_str()),
        _ => None,
    });
    instances.filter(|instance| compose::is_unguessable(instance)).collect()
}
