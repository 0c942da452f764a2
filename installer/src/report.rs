//! Sends events and the machine's log to the server.

pub mod log_book;
pub mod reporter;
