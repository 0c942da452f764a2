//! External steps: progress that any program with curl or wget reports, next to the steps of a workflow.

use serde::{Deserialize, Serialize};

/// The largest body of `POST /v1/report`, in bytes.
pub const MAX_REPORT_BYTES: usize = 64 << 10;
/// The greatest length of an external step's name, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// The priority of an external step whose reports contain none.
pub const DEFAULT_PRIORITY: u16 = 100;

/// The status of an external step. A step that only reports that it was there has no status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ExternalStepStatus {
    /// The step has begun.
    Init,
    /// The step is done.
    Done,
    /// The step failed.
    Failed,
}

impl ExternalStepStatus {
    /// Returns the status that a word means, or nothing if the word means no status.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Init, Self::Done, Self::Failed].into_iter().find(|status| status.word() == word)
    }

    /// Returns the name of the status in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// The body of `POST /v1/report`. A field that is left out keeps its value. A report with a known name updates that
/// step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExternalStepReport {
    /// The name of the step: 1 to 64 bytes, without control characters.
    pub name: String,
    /// A description of the step, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The step's place among the external steps. Lower numbers are shown first; equal ones in the order of their first
    /// report. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u16>,
    /// The status of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ExternalStepStatus>,
    /// The part of the step that is done, in percent: 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 100))]
    pub percent: Option<u8>,
    /// Lines for the step's log. They are added to the lines of earlier reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<String>,
}

impl ExternalStepReport {
    /// Returns why the server cannot accept this report, or nothing if it can.
    pub fn problem(&self) -> Option<String> {
        let rule = "a name has 1 to 64 bytes and no control characters";
        if self.name.len() > MAX_NAME_BYTES {
            return Some(format!("a name of {} bytes is too long: {rule}", self.name.len()));
        }
        if self.name.is_empty() || self.name.chars().any(char::is_control) {
            return Some(format!("the name is not valid for a step: {rule}"));
        }
        let percent = self.percent.filter(|percent| *percent > 100)?;
        Some(format!("{percent} is not a percentage: give 0 to 100"))
    }
}

/// The answer (200) to `POST /v1/report`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExternalStepAck {
    /// A warning that an operator should look at. The report was stored nevertheless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// An external step, as operators see it. Times are in milliseconds since 1970, by the server's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExternalStep {
    /// The name of the step.
    pub name: String,
    /// A description of the step, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The place of the step. Lower numbers come first.
    pub priority: u16,
    /// The status of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ExternalStepStatus>,
    /// The part of the step that is done, in percent: 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 100))]
    pub percent: Option<u8>,
    /// Whether the step is unexpected: the run has a list of expected names, and this name is not in it.
    #[serde(default)]
    pub unknown: bool,
    /// The number of reports.
    pub reports: u64,
    /// How often the step began: more than once if something repeats it.
    #[serde(default)]
    pub begins: u32,
    /// The time of the first report.
    pub first_at: u64,
    /// The time of the last report.
    pub updated_at: u64,
    /// The newest part of the step's log. Left out in lists of many nodes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub logs: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_a_name_that_can_be_shown() {
        let check = |name: &str, percent, expect: Option<&str>| {
            let report = ExternalStepReport { name: name.to_owned(), percent, ..ExternalStepReport::default() };
            assert_eq!(report.problem().as_deref(), expect, "{name:?}");
        };
        let rule = "a name has 1 to 64 bytes and no control characters";
        check("part 1", Some(100), None);
        let invalid = format!("the name is not valid for a step: {rule}");
        check("", None, Some(&invalid));
        check("a\u{1b}[2J", None, Some(&invalid));
        check(&"a".repeat(64), None, None);
        check(&"a".repeat(65), None, Some(&format!("a name of 65 bytes is too long: {rule}")));
        check("a", Some(101), Some("101 is not a percentage: give 0 to 100"));
    }
}
