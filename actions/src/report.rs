//! Reports of a running action.

use slipway_protocol::Progress;

/// What an action reports while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A message to keep, such as which disk was chosen and why.
    Note(String),
    /// Current progress; only the newest report matters.
    Progress(Progress),
}

/// Takes the reports of an action.
pub type Tell<'a> = &'a mut dyn FnMut(Report);
