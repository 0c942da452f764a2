//! A run to start, as operators ask for it.

use serde::{Deserialize, Serialize};
use slipway_protocol::{
    Action, Afterwards, DiskHints, EnrolSecureBoot, EraseDisk, EraseMode, ErrorCode, ExternalStepReport, Reboot, Step,
};

use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::keys::secure_boot::{SecureBoot, Update, no_keys};
use crate::rules::phone_home_settings::{PhoneHomeSettings, PostKeys};
use crate::site::signing;
use crate::store::Store;

/// Maximum number of external steps that a run may expect.
const MAX_KNOWN: usize = 1000;
/// Timeout of a step that writes keys to the firmware, in seconds.
const KEYS_TIMEOUT: u64 = 600;

/// What a node is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Install the operating system of this name.
    Os(String),
    /// Run these steps.
    Workflow(WorkflowFile),
}

/// A workflow as operators write it, in YAML or JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkflowFile {
    /// Steps, in the order in which they run.
    pub steps: Vec<Step>,
    /// Whether the installed system reports that it is up. Applies to every `seed-cloud-init` step.
    #[serde(default)]
    pub phone_home: bool,
    /// What the report contains: `all`, or names of keys, separated by commas. Default: `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home_post: Option<PostKeys>,
    /// How often the system tries to report, 3 s apart. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub phone_home_tries: Option<u32>,
    /// Whether the installed system's metadata can be read after it reported that it is up, as long as the run is the
    /// newest of its node.
    #[serde(default)]
    pub keep_metadata: bool,
    /// Names of the expected external steps. If there are any, reports of other steps are stored and flagged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_steps: Vec<String>,
}

impl WorkflowFile {
    pub(super) fn reporting(&self) -> PhoneHomeSettings {
        PhoneHomeSettings {
            on: Some(self.phone_home),
            post: self.phone_home_post.clone(),
            tries: self.phone_home_tries,
        }
    }
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
    /// Hints for the disk to install on, in place of the hints from the node and the operating system. Not for a
    /// workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskHints>,
    /// Names of the expected external steps, in place of the operating system's or the workflow's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_steps: Vec<String>,
    /// Whether to end a run that is not over as failed. Otherwise the new run is refused.
    #[serde(default)]
    pub replace: bool,
    /// Whether to leave the power of the machine alone. Otherwise, a machine that does not run slipway is switched on,
    /// or off and on again, if the server can do so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_power: bool,
    /// What becomes of the node once the run succeeded, for a run that does nothing but erase disks. Left out, it
    /// stays in service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub afterwards: Option<Afterwards>,
    /// The site's keys for the firmware, signed for this run; see [`NewRun::with_keys`]. No request over HTTPS has any.
    #[serde(skip)]
    pub keys: Vec<Update>,
}

impl NewRun {
    /// Creates a run that uses the settings of its task.
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
            no_power: false,
            afterwards: None,
            keys: Vec::new(),
        }
    }

    /// Creates a run that writes the site's keys for Secure Boot to a machine's firmware, and restarts it.
    pub fn enrolling_keys() -> Self {
        let step =
            |action: Action| Step { name: action.name().to_owned(), action, retries: 0, timeout: Some(KEYS_TIMEOUT) };
        let steps = [Action::EnrolSecureBoot(EnrolSecureBoot::default()), Action::Reboot(Reboot::default())].map(step);
        Self::new(Task::Workflow(WorkflowFile { steps: steps.into(), ..WorkflowFile::default() }))
    }

    /// Creates a run that erases all disks of a machine, and then takes its node out of service. A disk that cannot do
    /// the mode is overwritten with zeros.
    pub fn erasing(mode: EraseMode, afterwards: Afterwards) -> Self {
        let fallback = match mode {
            EraseMode::Secure | EraseMode::Discard => vec![EraseMode::Zero],
            EraseMode::Zero | EraseMode::Metadata => Vec::new(),
        };
        let action = Action::EraseDisk(EraseDisk { disk: DiskHints::all(), mode, fallback, strict: true });
        let steps = vec![Step { name: action.name().to_owned(), action, retries: 0, timeout: None }];
        let task = Task::Workflow(WorkflowFile { steps, ..WorkflowFile::default() });
        Self { afterwards: Some(afterwards), ..Self::new(task) }
    }

    /// Returns the run with the site's keys, if its steps write keys to the firmware. The keys are signed now, because
    /// firmware accepts only updates later than its keys. Fails if the site has no keys.
    pub async fn with_keys(mut self, store: &Store, data: &DataDir) -> Result<Self, Error> {
        let wants_keys =
            |step: &Step| matches!(&step.action, Action::EnrolSecureBoot(enrol) if enrol.updates.is_empty());
        if let Task::Workflow(workflow) = &self.task
            && workflow.steps.iter().any(wants_keys)
        {
            let keys = SecureBoot::open(data)?.ok_or_else(no_keys)?;
            self.keys = signing::updates(store, data, keys).await?;
        }
        Ok(self)
    }

    pub(super) fn reporting(&self) -> PhoneHomeSettings {
        PhoneHomeSettings { on: self.phone_home, post: self.phone_home_post.clone(), tries: self.phone_home_tries }
    }
}

/// Refuses names that no external step could have.
pub fn check_known(names: &[String]) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::refused(ErrorCode::InvalidRequest, message));
    if names.len() > MAX_KNOWN {
        return invalid(format!("{} known steps are given, but at most {MAX_KNOWN} are allowed", names.len()));
    }
    let problem = |name: &String| ExternalStepReport { name: name.clone(), ..ExternalStepReport::default() }.problem();
    names.iter().find_map(problem).map_or(Ok(()), invalid)
}

/// Refuses hints that no disk could have.
pub fn check_disk(hints: &DiskHints) -> Result<(), Error> {
    let problems = hints.validate(false);
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::refused(
        ErrorCode::InvalidRequest,
        format!("the disk hint cannot be used: it {}", problems.join("; it ")),
    ))
}
