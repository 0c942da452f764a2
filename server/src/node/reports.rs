//! Reports of nodes and of the systems installed on them.

pub mod agent;
pub mod boot;
pub mod decommission;
pub mod external_steps;
pub mod node_state;
pub mod phone_home;
pub mod refused;
pub mod run_events;
pub mod run_meters;
pub mod run_token;
pub mod secrets;
