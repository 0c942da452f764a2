//! Requests of machines: enrolment and admission, reports, captured disks and recovery keys; and trouble with them.

pub mod admission;
pub mod capture;
pub mod contacts;
pub mod enrol;
pub mod flags;
pub mod noticing;
pub mod recovery_keys;
pub mod reports;
pub mod status;
pub mod tasks;
pub mod watcher;
