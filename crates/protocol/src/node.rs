//! Messages between a node and the server, and what a boot medium holds.

pub mod agent;
pub mod attestation;
pub mod boot_report;
pub mod boot_settings;
pub mod enrolment;
pub mod event;
pub mod external_step;
pub mod medium;
pub mod rare_drivers;
pub mod state;
