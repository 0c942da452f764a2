//! What the server shows to operators.

pub mod admission;
pub mod agent;
pub mod boot_fetch;
pub mod comparison;
pub mod flag;
pub mod history;
pub mod node_class;
pub mod power;
pub mod status;
