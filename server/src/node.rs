//! What a machine does here: it enrols, is admitted, reports and sends captured disks and recovery keys.

pub mod admission;
pub mod capture;
pub mod enrol;
pub mod recovery_keys;
pub mod reports;
pub mod status;
