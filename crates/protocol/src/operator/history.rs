//! The history of a site: what happened to its nodes, and what operators did.

use serde::{Deserialize, Serialize};

/// Something that happened at the site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SiteEvent {
    /// The number of the event. Later events have higher numbers; a number may be missing.
    pub number: u64,
    /// The time, in milliseconds since 1970 by the server's clock.
    pub at: u64,
    /// The kind of event.
    pub kind: SiteEventKind,
    /// The id of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The name that the node had then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The id of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The name of the step of the run, or of the external step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The operator who did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// What happened, for people.
    pub message: String,
    /// The report of an external step or of a boot, as `GET /v1/operator/nodes/{node}` shows the newest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<serde_json::Value>,
}

/// The kind of an event in the history of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SiteEventKind {
    /// A machine asks to be let in, and waits for an operator.
    Held,
    /// An operator let a machine in.
    Released,
    /// A machine fetched boot files.
    BootFilesFetched,
    /// A machine was let in, at the start of slipway.
    Enrolled,
    /// A node has another key than before.
    KeyChanged,
    /// A node has new credentials for its key.
    CredentialRenewed,
    /// Credentials were not accepted.
    CredentialRefused,
    /// A run was started, by an operator or because the node is ephemeral.
    RunStarted,
    /// The server could not start a run that it starts by itself.
    RunRefused,
    /// The machine has the run.
    RunFetched,
    /// An attempt of a step began.
    StepStarted,
    /// An attempt of a step failed, and another one follows.
    StepRetrying,
    /// A step ended, well or not.
    StepEnded,
    /// A machine began its run again from the first step.
    Restarted,
    /// A run ended, well or not.
    RunEnded,
    /// The state of a node changed.
    State,
    /// The installed system reported that it is up.
    PhonedHome,
    /// The boot reporter of the installed system reported.
    BootReport,
    /// An external step was reported.
    ExternalStep,
    /// A disk is being captured, or its image is complete.
    Capture,
    /// The power of a machine was switched, or would be.
    Power,
    /// The power of a machine could not be switched.
    PowerFailed,
    /// The agent of the installed system began to report, or was removed.
    Agent,
    /// A task of the agent was asked for, began, or ended well.
    Task,
    /// A task of the agent failed.
    TaskFailed,
    /// A report arrived and was not accepted.
    ReportRefused,
    /// A problem was noticed.
    Flagged,
    /// A problem is over.
    Unflagged,
    /// An operator did something else.
    Operator,
}

impl SiteEventKind {
    /// All kinds.
    pub const ALL: [Self; 29] = [
        Self::Held,
        Self::Released,
        Self::BootFilesFetched,
        Self::Enrolled,
        Self::KeyChanged,
        Self::CredentialRenewed,
        Self::CredentialRefused,
        Self::RunStarted,
        Self::RunRefused,
        Self::RunFetched,
        Self::StepStarted,
        Self::StepRetrying,
        Self::StepEnded,
        Self::Restarted,
        Self::RunEnded,
        Self::State,
        Self::PhonedHome,
        Self::BootReport,
        Self::ExternalStep,
        Self::Capture,
        Self::Power,
        Self::PowerFailed,
        Self::Agent,
        Self::Task,
        Self::TaskFailed,
        Self::ReportRefused,
        Self::Flagged,
        Self::Unflagged,
        Self::Operator,
    ];
}
