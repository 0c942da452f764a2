//! Loose steps: progress that anything with curl or wget reports, beside the steps of a workflow.

use serde::{Deserialize, Serialize};

/// Largest body of `POST /v1/report`, in bytes.
pub const MAX_LOOSE_REPORT_BYTES: usize = 64 << 10;
/// Longest name of a loose step, in bytes.
pub const MAX_LOOSE_NAME_BYTES: usize = 64;
/// Priority of a loose step that was not given one.
pub const DEFAULT_PRIORITY: u16 = 100;

/// How a loose step stands; one that only tells that it was there has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LooseStatus {
    /// Begun.
    Init,
    /// Done.
    Done,
    /// Failed.
    Failed,
}

impl LooseStatus {
    /// The status a word means; none if it means none.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Init, Self::Done, Self::Failed].into_iter().find(|status| status.word() == word)
    }

    /// Its name in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// `POST /v1/report`. What is left out stays as it was; repeating a name updates its step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LooseReport {
    /// Name of the step: 1 to 64 bytes, no control characters.
    pub name: String,
    /// What it is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Its place among the loose steps: lower ones are shown first, equal ones in the order they were first reported. 100 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u16>,
    /// How it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<LooseStatus>,
    /// How much of it is done, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// Lines of its log, added to those reported before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<String>,
}

impl LooseReport {
    /// Why this cannot be taken; nothing if it can.
    pub fn problem(&self) -> Option<String> {
        let rule = "a name has 1 to 64 bytes and no control characters";
        if self.name.len() > MAX_LOOSE_NAME_BYTES {
            // Not shown: it may be as long as a report.
            return Some(format!("{} bytes cannot name a step: {rule}", self.name.len()));
        }
        if self.name.is_empty() || self.name.chars().any(char::is_control) {
            return Some(format!("{:?} cannot name a step: {rule}", self.name));
        }
        let percent = self.percent.filter(|percent| *percent > 100)?;
        Some(format!("{percent} is no percentage: give 0 to 100"))
    }
}

/// 200 of `POST /v1/report`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LooseAck {
    /// What an operator should look at. The report was stored all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// A loose step as operators see it. Times in milliseconds since 1970, by the server's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LooseStep {
    /// Its name.
    pub name: String,
    /// What it is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Its place: lower ones first.
    pub priority: u16,
    /// How it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<LooseStatus>,
    /// How much of it is done, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// The run knows the names it expects, and this is none of them.
    #[serde(default)]
    pub unknown: bool,
    /// How often it was reported.
    pub reports: u64,
    /// When it was first reported.
    pub first_at: u64,
    /// When it was last reported.
    pub updated_at: u64,
    /// The newest of its log. Left out where many nodes are listed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub logs: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_a_name_that_can_be_shown() {
        let check = |name: &str, percent, expect: Option<&str>| {
            let report = LooseReport { name: name.to_owned(), percent, ..LooseReport::default() };
            assert_eq!(report.problem().as_deref(), expect, "{name:?}");
        };
        let rule = "a name has 1 to 64 bytes and no control characters";
        check("part 1", Some(100), None);
        check("", None, Some(&format!("\"\" cannot name a step: {rule}")));
        check("a\u{1b}[2J", None, Some(&format!("\"a\\u{{1b}}[2J\" cannot name a step: {rule}")));
        check(&"a".repeat(64), None, None);
        check(&"a".repeat(65), None, Some(&format!("65 bytes cannot name a step: {rule}")));
        check("a", Some(101), Some("101 is no percentage: give 0 to 100"));
    }
}
