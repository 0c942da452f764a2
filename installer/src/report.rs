//! Events on their way to the server, and the machine's log.

pub mod log_book;
pub mod reporter;
