//! The base of all other modules: the data folder, errors, limits, meters, random numbers, readiness and time.

pub mod data;
pub mod error;
pub mod limits;
pub mod meters;
pub mod random;
pub mod rate;
pub mod readiness;
pub mod time;
