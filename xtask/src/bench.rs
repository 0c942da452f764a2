//! Measures slipway against its peers and against the limit of the machine it runs on.

pub mod cost;
pub mod servers;
pub mod stream;
pub mod streams;
pub mod user_data;
