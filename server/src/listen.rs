//! A running server: sockets, connections, and the keys that are valid on them.

mod connections;
mod listener;
mod live_keys;
pub mod serve;
mod settings;
pub mod url;
