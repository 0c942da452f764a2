//! A run to start.

use serde::{Deserialize, Serialize};
use slipway_protocol::DiskHints;
use time::OffsetDateTime;

use super::workflow_file::WorkflowFile;
use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::keys::secure_boot::{SecureBoot, no_keys};
use crate::rules::phone_home_settings::{PhoneHomeSettings, PostKeys};
use crate::run::compose;

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
    /// User-data, in place of the operating system's. Not for a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Whether the installed system reports that it is up. Default: as the operating system or the workflow sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home: Option<bool>,
    /// What the report contains: `all`, or names of keys, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home_post: Option<PostKeys>,
    /// How often the system tries to report, 3 s apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub phone_home_tries: Option<u32>,
    /// Hints for the disk to install on, in place of those of the node and the operating system. Not for a workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskHints>,
    /// Names of the expected external steps, in place of the operating system's or the workflow's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_steps: Vec<String>,
    /// Whether to end a run that is not over as failed. Otherwise the new run is refused.
    #[serde(default)]
    pub replace: bool,
}

impl NewRun {
    /// A run that uses the settings of its task.
    pub fn new(task: Task) -> Self {
        Self {
            task,
            user_data: None,
            phone_home: None,
            phone_home_post: None,
            phone_home_tries: None,
            known_steps: Vec::new(),
            disk: None,
            replace: false,
        }
    }

    /// A run that gives the firmware of a machine the site's keys for Secure Boot, and restarts it.
    pub fn enrolling_keys() -> Self {
        Self::new(Task::Workflow(WorkflowFile { steps: compose::enrol_keys(), ..WorkflowFile::default() }))
    }

    /// The run with the site's keys where its steps give keys to the firmware. They are signed now, because firmware takes only
    /// what is later than what it has. Fails if the site has no keys.
    pub fn with_keys(mut self, data: &DataDir) -> Result<Self, Error> {
        if let Task::Workflow(workflow) = &mut self.task
            && compose::wants_keys(&workflow.steps)
        {
            let keys = SecureBoot::open(data)?.ok_or_else(no_keys)?;
            compose::fill_in_keys(&mut workflow.steps, &keys.updates(OffsetDateTime::now_utc())?);
        }
        Ok(self)
    }

    pub(super) fn reporting(&self) -> PhoneHomeSettings {
        PhoneHomeSettings { on: self.phone_home, post: self.phone_home_post.clone(), tries: self.phone_home_tries }
    }
}
