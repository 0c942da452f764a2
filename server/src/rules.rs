//! Pure functions: states of runs, what changed between two, how much of one is done, trouble with nodes and its
//! limits, which nodes are meant, boot scripts, shell snippets, recipes that take a machine's work away, settings of
//! the phone-home block, and what the history says.

pub mod changes;
pub mod drain;
pub mod filter;
pub mod ipxe;
pub mod limits;
pub mod phone_home_settings;
pub mod progress;
pub mod snippet;
pub mod state;
pub mod told;
pub mod trouble;
