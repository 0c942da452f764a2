//! What is reported of a running action.

use slipway_protocol::Progress;

/// What an action says while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Something worth keeping, such as the disk chosen and why.
    Note(String),
    /// How far it is; only the newest matters.
    Progress(Progress),
}
