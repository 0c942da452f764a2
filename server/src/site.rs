//! Several servers on one database: they know each other, and do in turn what only one of them may do at a time.

pub mod leases;
pub mod presence;
pub mod retention;
pub mod signing;
