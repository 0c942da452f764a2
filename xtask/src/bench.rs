//! Benchmarks: slipway against other tools and against the limit of this machine.

pub mod boot;
pub mod cost;
pub mod disk;
pub mod installations;
pub mod load;
pub mod servers;
pub mod stalls;
pub mod stream;
pub mod streams;
pub mod user_data;
