//! Pure functions: states of runs, boot scripts, shell snippets, and settings of the phone-home block.

pub mod ipxe;
pub mod phone_home_settings;
pub mod snippet;
pub mod state;
pub mod told;
