//! What a task asks for, before the server adds anything.

use slipway_protocol::{ErrorCode, Proof, Step};

use super::install;
use crate::base::error::Error;
use crate::rules::phone_home_settings::PhoneHomeSettings;
use crate::run::facts::Facts;
use crate::run::new_run::{NewRun, Task, check_disk};
use crate::store::nodes::Node;
use crate::store::systems::System;

/// The steps of a task, and its settings for the run.
pub struct Said {
    pub steps: Vec<Step>,
    pub reporting: PhoneHomeSettings,
    pub keep_metadata: bool,
    pub known_steps: Vec<String>,
    pub require: Proof,
}

/// Returns the steps and settings of a task. Settings of the run take precedence.
pub fn said(new: NewRun, system: Option<System>, node: &Node, facts: &Facts) -> Result<Said, Error> {
    let reporting = new.reporting();
    let own_steps = new.known_steps;
    let known_steps = |of_task: Vec<String>| if own_steps.is_empty() { of_task } else { own_steps };
    match new.task {
        Task::Os(name) => {
            let Some(mut system) = system else {
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
            // Hints are used as a whole: parts of several could select a disk that nobody intended.
            if let Some(disk) = new.disk.or_else(|| node.disk.clone()) {
                check_disk(&disk)?;
                system.disk = disk;
            }
            Ok(Said {
                steps: install(&system, facts.server()?, new.user_data.as_deref()),
                reporting: reporting.or(system.reporting()),
                keep_metadata: system.keep_metadata,
                known_steps: known_steps(system.known_steps),
                require: system.require,
            })
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
        Task::Workflow(workflow) => Ok(Said {
            reporting: reporting.or(workflow.reporting()),
            steps: workflow.steps,
            keep_metadata: workflow.keep_metadata,
            known_steps: known_steps(workflow.known_steps),
            // A workflow requires no more proof than the node and the site.
            require: Proof::default(),
        }),
    }
}
