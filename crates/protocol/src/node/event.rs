//! The reports of a node about its steps: `POST /v1/node/events`.

pub use bounds::{MAX_EVENT_TEXT_BYTES, MAX_SEQ_GAP};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::shared::{duration, printable};
use crate::workflow::capture::CapturedImage;

mod bounds;

/// The body of `POST /v1/node/events`. The server skips events that it has already stored, by (run, seq).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EventBatch {
    /// The run that the events belong to.
    pub run: String,
    /// The events in ascending order of `seq`. One batch has at most [`crate::MAX_EVENTS_PER_BATCH`].
    pub events: Vec<Event>,
}

/// The answer (200) to `POST /v1/node/events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventAck {
    /// The highest sequence number that the server has stored for the run.
    pub seq: u64,
    /// An operator ended the run. The node must not do the rest of the run.
    #[serde(default)]
    pub ended: bool,
}

/// One event of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// The sequence number. It starts at 1 and grows by at least one from event to event of a run. A gap means that
    /// progress was dropped.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub seq: u64,
    /// The time, in milliseconds since 1970 by the node's clock.
    pub at: u64,
    /// The index of the step in the workflow, from 0.
    pub step: u32,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The kind of event.
    pub kind: EventKind,
}

/// The kind of an event in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// An attempt began.
    Started,
    /// The progress of the attempt. The node may drop it while the server cannot be reached. Only the newest progress
    /// matters.
    Progress(Progress),
    /// A fact worth keeping that is neither progress nor the end of the step, such as the chosen disk and the reason
    /// for the choice.
    Note(String),
    /// The attempt failed, and another one follows.
    Retrying(Failure),
    /// The step is done.
    Succeeded(Outcome),
    /// The step failed for good. No later step runs.
    Failed(Failure),
    /// The last attempt took longer than allowed. No later step runs.
    TimedOut(Failure),
    /// The step did not run, because an earlier step failed.
    Skipped,
}

/// The progress of an attempt. Bytes are counted from the start of the attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The bytes that are done: written to the disk for an image, or read from the disk for a capture.
    pub bytes: u64,
    /// The total of the bytes to do, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The bytes received from the network for an image, or sent for a capture.
    #[serde(default)]
    pub fetched: u64,
    /// The total of the bytes to receive, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch_total: Option<u64>,
    /// The bytes done per second, over the last seconds.
    #[serde(default)]
    pub rate: u64,
    /// The estimated seconds until the end, at the rate of the last seconds. The estimate uses `total` if known,
    /// otherwise `fetch_total`. Absent while neither is known or no bytes move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// The stage of the pipeline that the other stages wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<Stage>,
}

/// A stage of the image pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Receives from the source.
    Fetch,
    /// Decompresses.
    Decode,
    /// Hashes the raw image.
    Digest,
    /// Writes to the disk.
    Write,
    /// Reads a disk for a capture.
    Read,
    /// Compresses a capture.
    Encode,
    /// Sends a capture to the server.
    Send,
}

impl Stage {
    /// Returns the work of the stage in a word or two, for messages about what other stages wait for.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Fetch => "the download",
            Self::Decode => "decompression",
            Self::Digest => "the digest",
            Self::Write => "writes to the disk",
            Self::Read => "reads of the disk",
            Self::Encode => "compression",
            Self::Send => "the upload",
        }
    }
}

/// The result of a step that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// One sentence: the work that was done and its object.
    pub summary: String,
    /// Facts that the operator should know although the step succeeded.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Whether the step is optional and could not be done. The warnings say why.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_out: bool,
    /// The most memory that the whole boot image used during the step, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
    /// The result for each disk, for a step that erases disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskErasure>,
    /// The disk as an image, for a step that captures a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<CapturedImage>,
}

/// The result for one disk of a step that erases disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DiskErasure {
    /// The kernel path.
    pub path: String,
    /// The serial number, if the disk reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The result.
    pub result: Erasure,
}

impl DiskErasure {
    /// The disk and its result, for people: `/dev/sda, serial number S5: erased by NVMe format in 3 s, and read back at
    /// 64 places`.
    pub fn in_words(&self) -> String {
        let serial = self.serial.as_ref().map(|serial| format!(", serial number {serial}")).unwrap_or_default();
        let result = match &self.result {
            Erasure::Erased { method, millis, samples } => {
                let took = duration::words(Duration::from_millis(*millis));
                format!("erased by {method} in {took}, and read back at {samples} places")
            }
            Erasure::Skipped { reason } => format!("skipped: {reason}"),
        };
        format!("{}{serial}: {result}", self.path)
    }
}

/// The result of erasing one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Erasure {
    /// The disk is erased.
    Erased {
        /// The method in words, such as "NVMe sanitize, crypto erase".
        method: String,
        /// The duration in milliseconds.
        millis: u64,
        /// The number of places that were read back from the disk. Each was found erased.
        samples: u64,
    },
    /// The disk was left as it was.
    Skipped {
        /// The reason.
        reason: String,
    },
}

/// Whether a message of the HTTP client only says that something failed, which its cause says better. On a machine's
/// screen there is little room for both.
fn says_nothing(message: &str) -> bool {
    const FILLER: [&str; 4] =
        ["error sending request", "client error (Connect)", "client error (SendRequest)", "tcp connect error"];
    FILLER.contains(&message)
}

/// The reason why an attempt failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The work that failed, and its object.
    pub reason: String,
    /// The causes, outermost first.
    #[serde(default)]
    pub causes: Vec<String>,
    /// The last lines of the node's log.
    #[serde(default)]
    pub log_tail: Vec<String>,
}

impl Failure {
    /// Makes the failure of an error. The reason is the error's message, and the causes are its chain of sources.
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let said = |error: &(dyn std::error::Error + 'static)| printable::for_people(&error.to_string());
        let says_something =
            |cause: &&(dyn std::error::Error + 'static)| cause.source().is_none() || !says_nothing(&cause.to_string());
        let causes = std::iter::successors(error.source(), |cause| cause.source());
        let causes = causes.filter(says_something).map(said).collect();
        Self { reason: said(error), causes, log_tail: Vec::new() }
    }

    /// Returns the reason and the causes in one line, outermost first, safe for a terminal or a log.
    pub fn in_one_line(&self) -> String {
        let mut line = printable::line(&self.reason).into_owned();
        for cause in self.causes.iter().map(|cause| printable::line(cause)) {
            // Some libraries include the cause in their own message.
            if !line.ends_with(&*cause) {
                line += ": ";
                line += &cause;
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str, #[source] Option<Box<Said>>);

    #[test]
    fn what_says_nothing_is_left_out_unless_it_is_all_that_is_known() {
        let chain = |messages: &[&'static str]| {
            let error = messages.iter().rev().fold(None, |cause, said| Some(Box::new(Said(said, cause))));
            Failure::of(&*error.expect("a message")).in_one_line()
        };
        let messages =
            ["asking", "error sending request", "client error (Connect)", "tcp connect error", "Connection refused"];
        assert_eq!(chain(&messages), "asking: Connection refused");
        assert_eq!(chain(&messages[..2]), "asking: error sending request");
    }
}
