//! The base of all other modules: the data folder, the files of images, errors, limits, meters, random numbers,
//! readiness, time, and clocks that are set.

pub mod data;
pub mod error;
pub mod limits;
pub mod meters;
pub mod objects;
pub mod random;
pub mod rate;
pub mod readiness;
pub mod set_clock;
pub mod time;
