//! The state of a node.

use serde::{Deserialize, Serialize};

/// The stored state of a node. "Silent", "stuck" and "looping" are not stored: the server derives them from times and
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// An operator registered the node. The server has not seen it yet.
    Registered,
    /// The server has seen the node, which waits for an operator.
    Held,
    /// The node has credentials. It has nothing to do, or a run of which no step has begun.
    Enrolled,
    /// A run is in progress.
    Installing,
    /// The run is done. The installed system was not asked to report.
    Installed,
    /// The run is done. The installed system has not reported yet.
    Booting,
    /// The installed system has reported.
    Running,
    /// The installed system runs, and its work is taken away, or was.
    Draining,
    /// The last run failed. The machine stays in slipway and polls.
    Failed,
    /// The machine erases its disks, and then goes out of service.
    Terminating,
    /// The node is out of service.
    Decommissioned,
}
