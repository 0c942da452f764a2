//! What a node says about its steps: `POST /v1/node/events`.

use serde::{Deserialize, Serialize};

use crate::CapturedImage;

/// Body of `POST /v1/node/events`. Events already stored, by (run, seq), are skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EventBatch {
    /// The run the events belong to.
    pub run: String,
    /// In ascending order of `seq`; at most [`crate::MAX_EVENTS_PER_BATCH`].
    pub events: Vec<Event>,
}

/// 200 of `POST /v1/node/events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventAck {
    /// Highest sequence number stored for the run.
    pub seq: u64,
    /// An operator ended the run: what is left of it is not to be done.
    #[serde(default)]
    pub ended: bool,
}

/// One thing that happened in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Grows by at least one from event to event of a run, starting at 1. Progress that was dropped leaves a gap.
    pub seq: u64,
    /// When, in milliseconds since 1970 by the node's clock.
    pub at: u64,
    /// Index of the step in the workflow, from 0.
    pub step: u32,
    /// Which try, from 1.
    pub attempt: u32,
    /// What happened.
    pub kind: EventKind,
}

/// What happened in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// An attempt began.
    Started,
    /// How far the attempt is. May be dropped when the server is away; only the newest matters.
    Progress(Progress),
    /// Something worth keeping that is neither progress nor the end, such as the disk chosen and why.
    Note(String),
    /// The attempt failed and another follows.
    Retrying(Failure),
    /// The step is done.
    Succeeded(Outcome),
    /// The step failed for good; no later step runs.
    Failed(Failure),
    /// The last attempt took longer than allowed; no later step runs.
    TimedOut(Failure),
    /// The step did not run, because an earlier one failed.
    Skipped,
}

/// How far an attempt is. Bytes are counted from the start of the attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Bytes done: written to the disk, for an image; read from it, for a disk that is captured.
    pub bytes: u64,
    /// Bytes there are to do, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Bytes received from the network, for an image; sent, for a disk that is captured.
    #[serde(default)]
    pub fetched: u64,
    /// Bytes there are to receive, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch_total: Option<u64>,
    /// Bytes done a second, over the last seconds.
    #[serde(default)]
    pub rate: u64,
    /// Seconds until all is done at the rate of the last seconds: by the bytes there are to do, else by those there are to
    /// receive. None while neither is known or nothing moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// The stage of the pipeline the others wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<Stage>,
}

/// A stage of the image pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Receiving from the source.
    Fetch,
    /// Decompressing.
    Decode,
    /// Hashing the raw image.
    Digest,
    /// Writing to the disk.
    Write,
    /// Reading a disk that is captured.
    Read,
    /// Compressing it.
    Encode,
    /// Sending it to the server.
    Send,
}

/// How a step that succeeded went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// One sentence: what was done to what.
    pub summary: String,
    /// What the operator should know although the step succeeded.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Most memory in use in the whole micro-OS during the step, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
    /// What came of each disk, for a step that erases disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskErasure>,
    /// What the disk is now as an image, for a step that captures one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<CapturedImage>,
}

/// What came of one disk that was to be erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DiskErasure {
    /// Kernel path.
    pub path: String,
    /// Serial number, where the disk tells one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// What came of it.
    pub result: Erasure,
}

/// What came of a disk that was to be erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Erasure {
    /// It is erased.
    Erased {
        /// In words, such as "NVMe sanitize, crypto erase".
        method: String,
        /// Duration in milliseconds.
        millis: u64,
        /// Places read back from the disk, each found erased.
        samples: u64,
    },
    /// It was left as it is.
    Skipped {
        /// Why.
        reason: String,
    },
}

/// Why an attempt failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// What was being done, to what.
    pub reason: String,
    /// Why, outermost first.
    #[serde(default)]
    pub causes: Vec<String>,
    /// The last lines of the node's log.
    #[serde(default)]
    pub log_tail: Vec<String>,
}

impl Failure {
    /// The failure of an error: its message, and its chain of sources as causes.
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let causes = std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string).collect();
        Self { reason: error.to_string(), causes, log_tail: Vec::new() }
    }

    /// Reason and causes in one line, outermost first.
    pub fn in_one_line(&self) -> String {
        std::iter::once(&self.reason).chain(&self.causes).map(String::as_str).collect::<Vec<_>>().join(": ")
    }
}
