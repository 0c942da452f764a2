//! Decisions as pure functions, and texts: states of runs, boot scripts, the phone-home block.

pub mod ipxe;
pub mod phone_home_settings;
pub mod snippet;
pub mod state;
