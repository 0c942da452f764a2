//! Disks: listing them, choosing one for an action, and the layers under the file systems: partitions, RAID and LVM.

#[allow(clippy::indexing_slicing, reason = "its bounds are its own; bytes must not be lost if they were wrong")]
mod buffer;
pub(crate) mod candidates;
pub(crate) mod choose;
pub(crate) mod expected;
pub(crate) mod grow;
pub(crate) mod list;
pub(crate) mod node;
pub(crate) mod open;
pub(crate) mod partitions;
pub(crate) mod previous_install;
pub(crate) mod probe;
pub(crate) mod relocate;
pub(crate) mod teardown;

pub(crate) use buffer::{Buffer, is_zero};
