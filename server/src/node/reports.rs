//! What nodes and the systems they install report.

pub mod boot;
pub mod external_steps;
pub mod node_state;
pub mod phone_home;
pub mod run_events;
pub mod run_token;
pub mod secrets;
