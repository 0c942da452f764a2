//! Trouble that the server noticed, as it shows it to operators.

use serde::{Deserialize, Serialize};

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FlagKind {
    /// Nothing is heard of a machine that should say something.
    Silent,
    /// Nothing gets on.
    Stuck,
    /// The same happens again and again.
    Looping,
    /// A machine asks for work, but should have started its installed system.
    CameBack,
    /// A machine that is not let in has the identifiers of the node.
    Contested,
    /// A report of the node's system arrived and was not accepted.
    ReportRefused,
    /// The power of the machine could not be switched.
    Power,
    /// A task of the installed system's agent failed.
    Task,
    /// Parts of the installed system failed.
    Degraded,
    /// A step takes much longer than on other machines.
    Slow,
    /// The boot files were made for another version, CA or Secure Boot key than the server has now.
    BootFilesOutdated,
    /// The token in boot files lets no machine in any more.
    TokenExpired,
}

/// How bad trouble is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The machine does not get on without an operator.
    Bad,
    /// It may get on by itself, or works all the same.
    Warn,
}

/// Trouble with a node, or with the site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Flag {
    /// The kind of trouble.
    pub kind: FlagKind,
    /// How bad it is.
    pub severity: Severity,
    /// Since when, in milliseconds since 1970 by the server's clock.
    pub since: u64,
    /// The name of the step, or of the external step, that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The limit by which it was noticed, such as `stuck.booting`. None where nothing is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// What was noticed. The machine is the subject of the sentence.
    pub reason: String,
    /// The likely cause, and what to do about it.
    pub cause: String,
    /// The command to run next.
    pub command: String,
}

impl Flag {
    /// Adds the name of the step.
    #[must_use]
    pub fn of_step(self, name: &str) -> Self {
        Self { step: Some(name.to_owned()), ..self }
    }

    /// Adds the name of the limit.
    #[must_use]
    pub fn by_limit(self, name: impl Into<String>) -> Self {
        Self { limit: Some(name.into()), ..self }
    }

    /// Whether two flags are about the same trouble, also if they tell it in other words. A version that knew no limits
    /// may have made one of them.
    pub fn is_same(&self, other: &Self) -> bool {
        let is_by_same = self.limit == other.limit || self.limit.is_none() || other.limit.is_none();
        (self.kind, &self.step) == (other.kind, &other.step) && is_by_same
    }
}

/// The state of the site, apart from its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SiteStatus {
    /// Trouble of the site as a whole, the worst first.
    pub flags: Vec<Flag>,
}
