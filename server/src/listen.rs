//! One running server: sockets, connections, and the keys that may use them.

mod connections;
mod listener;
mod live_keys;
pub mod serve;
